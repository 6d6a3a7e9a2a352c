"""What must hold where one writer's text ends and the next one's begins."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.continuation.seam import MIN_ECHO_CHARS, Seam, SeamMismatchError
from disco.request import Prefix

LONG = "The quick brown fox jumps over"


def run(seam: Seam, pieces: list[str]) -> str | None:
    """Everything the seam lets through; None for a mismatch."""
    try:
        return "".join([*(seam.feed(piece) for piece in pieces), seam.end()])
    except SeamMismatchError:
        return None


def split(text: str, cuts: list[int]) -> list[str]:
    at = sorted({min(c, len(text)) for c in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


def test_text_passes_when_there_is_nothing_to_swallow():
    seam = Seam(Prefix(LONG), may_echo=False)
    assert seam.passed
    assert run(seam, [" the", " lazy", " dog"]) == " the lazy dog"


def test_full_echo_is_swallowed_even_with_the_first_token_in_the_same_piece():
    assert run(Seam(Prefix(LONG), may_echo=True), [LONG + " the", " dog"]) == " the dog"


def test_divergence_releases_what_was_held_back():
    seam = Seam(Prefix(LONG), may_echo=True)
    assert seam.feed("The quick ") == ""
    assert seam.feed("red") == "The quick red"
    assert seam.passed


def test_short_beginning_of_the_sent_text_at_the_end_is_text():
    assert run(Seam(Prefix(LONG), may_echo=True), ["The"]) == "The"


def test_answer_that_ends_within_an_echo_is_a_mismatch():
    assert run(Seam(Prefix(LONG), may_echo=True), [LONG[:MIN_ECHO_CHARS]]) is None


def test_short_sent_text_is_watched_only_when_the_server_is_known_to_echo():
    assert run(Seam(Prefix("The"), may_echo=True), ["The", " dog"]) == "The dog"
    assert run(Seam(Prefix("The"), may_echo=True, echoes=True), ["The", " dog"]) == " dog"


def test_withheld_text_is_swallowed_across_pieces():
    prefix = Prefix(LONG, withheld=" over")
    assert run(Seam(prefix, may_echo=True), [" ", "ov", "er", " the"]) == " the"
    assert run(Seam(prefix, may_echo=True), [" overtly"]) == "tly"


@pytest.mark.parametrize("pieces", [[" ove", "n"], ["over"], [" ov"], []])
def test_withheld_text_that_is_not_reproduced_is_a_mismatch(pieces):
    assert run(Seam(Prefix(LONG, withheld=" over"), may_echo=True), pieces) is None


def test_echo_and_then_withheld_text():
    prefix = Prefix(LONG, withheld=" over")
    assert run(Seam(prefix, may_echo=True), [prefix.sent + " ov", "er the"]) == " the"


def test_mismatch_is_raised_at_once_and_does_not_quote_the_text():
    seam = Seam(Prefix(LONG, withheld=" over"), may_echo=False)
    with pytest.raises(SeamMismatchError) as caught:
        seam.feed(" under")
    assert "under" not in str(caught.value)
    assert "over" not in str(caught.value)


TEXT = st.text(alphabet="ab \n€😀", max_size=60)
PREFIXES = st.builds(lambda sent, end: Prefix(sent + end, withheld=end), TEXT, TEXT)


@given(prefix=PREFIXES, says=TEXT, watched=st.tuples(st.booleans(), st.booleans()), data=st.data())
def test_pieces_do_not_matter(prefix, says, watched, data):
    """Character by character, in one lump, or anything between: the same text, or the same mismatch."""
    may, known = watched
    echo = data.draw(st.sampled_from([prefix.sent, prefix.sent[:20], ""]))
    spoken = echo + data.draw(st.sampled_from([prefix.withheld, prefix.withheld[:2], ""])) + says
    cuts = data.draw(st.lists(st.integers(0, 130), max_size=12))
    results = {
        run(Seam(prefix, may_echo=may, echoes=known), pieces)
        for pieces in ([spoken] if spoken else [], list(spoken), split(spoken, cuts))
    }
    assert len(results) == 1


@given(sent=st.text(alphabet="ab é", min_size=MIN_ECHO_CHARS, max_size=40), withheld=TEXT, says=TEXT)
def test_new_text_is_never_lost_or_changed(sent, withheld, says):
    """With a known echo and the withheld text reproduced, exactly what follows comes out."""
    prefix = Prefix(sent + withheld, withheld=withheld)
    assert run(Seam(prefix, may_echo=True), list(sent + withheld + says)) == says
