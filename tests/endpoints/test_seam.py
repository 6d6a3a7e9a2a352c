"""What must hold where one writer's text ends and the next one's begins."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from disco.endpoints.continuation.repetition import MIN_CHARS, common_chars, overlap_chars, repeats_itself
from disco.endpoints.continuation.seam import Seam, SeamMismatchError
from disco.events import SeamReport
from disco.request import Prefix

LONG = "The quick brown fox jumps over"
ROW = "=" * 40


def run(seam: Seam, pieces: list[str]) -> str | None:
    """Everything the seam lets through; None for a mismatch."""
    try:
        return "".join([*(seam.feed(piece) for piece in pieces), seam.end()])
    except SeamMismatchError:
        return None


def split(text: str, cuts: list[int]) -> list[str]:
    at = sorted({min(c, len(text)) for c in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(at)]


def told(prefix: Prefix, echoes: bool | None, *pieces: str) -> tuple[str | None, str]:
    """What the seam lets through, and its verdict."""
    seam = Seam(prefix, echoes=echoes)
    return run(seam, list(pieces)), seam.report.verdict


def test_text_passes_when_there_is_nothing_to_swallow():
    seam = Seam(Prefix(LONG), echoes=False)
    assert seam.passed
    assert run(seam, [" the", " lazy", " dog"]) == " the lazy dog"
    assert seam.report == SeamReport("continued", len(LONG), 13, 0)


@pytest.mark.parametrize("echoes", [True, None])
def test_full_echo_is_swallowed_even_with_the_first_token_in_the_same_piece(echoes):
    seam = Seam(Prefix(LONG), echoes=echoes)
    assert run(seam, [LONG + " the", " dog"]) == " the dog"
    assert seam.report.written_chars == len(LONG) + 8
    assert seam.report.swallowed_chars == len(LONG)


def test_an_echo_is_proved_by_knowledge():
    assert told(Prefix(LONG), True, LONG, " the") == (" the", "echo")
    assert told(Prefix(LONG), None, LONG, " the") == (" the", "unproved")


@pytest.mark.parametrize("echoes", [True, False, None])
def test_an_echo_is_proved_where_the_text_can_be_no_continuation(echoes):
    """It does not begin with the words that were shown last; not even what is known is against that."""
    assert told(Prefix(LONG, withheld=" over"), echoes, LONG, " the") == (" the", "echo")
    assert told(Prefix(ROW + " over", withheld=" over"), echoes, ROW, " over", " the") == (" the", "echo")
    assert told(Prefix("The dog", withheld=" dog"), echoes, "The", " dog", " barks") == (" barks", "echo")


def test_an_echo_that_may_be_one_of_a_part_is_not_proved():
    """After "aba.." and the word " b", an echo of the whole and of its last half begin alike."""
    prefix = Prefix("aba b aba b", withheld=" b")
    assert told(prefix, None, "aba b aba b", " c") == (" c", "unproved")
    assert told(prefix, False, "aba b aba b", " c") == (None, "continued")


def test_divergence_releases_what_was_held_back():
    seam = Seam(Prefix(LONG), echoes=None)
    assert seam.feed("The quick ") == ""
    assert seam.feed("red") == "The quick red"
    assert seam.passed
    assert seam.report.verdict == "continued"


def test_short_beginning_of_the_sent_text_at_the_end_is_text():
    assert told(Prefix(LONG), None, "The") == ("The", "continued")


def test_answer_that_ends_within_an_echo_is_a_mismatch():
    assert run(Seam(Prefix(LONG), echoes=None), [LONG[:MIN_CHARS]]) is None
    assert run(Seam(Prefix(LONG), echoes=True), [LONG[:3]]) is None


def test_short_sent_text_is_swallowed_only_when_the_server_is_known_to_echo():
    assert told(Prefix("The"), None, "The", " dog") == ("The dog", "unproved")
    assert told(Prefix("The"), True, "The", " dog") == (" dog", "echo")


@pytest.mark.parametrize("echoes", [False, None])
def test_text_that_repeats_itself_is_never_taken_for_an_echo(echoes):
    """It is not even held back."""
    seam = Seam(Prefix(ROW), echoes=echoes)
    assert [seam.feed("=") for _ in range(100)] == ["="] * 100
    assert seam.end() == ""
    assert seam.report.verdict == ("unproved" if echoes is None else "continued")


def test_text_that_goes_on_repeating_itself_behind_one_copy_is_passed_on():
    assert told(Prefix(LONG), None, LONG, LONG, "!") == (LONG * 2 + "!", "unproved")
    assert told(Prefix(LONG), None, LONG, LONG[:5]) == (LONG + LONG[:5], "unproved")
    assert told(Prefix(LONG), None, LONG) == (LONG, "unproved")
    assert told(Prefix(LONG), False, LONG, LONG) == (LONG * 2, "continued")


def test_an_echo_in_part_is_passed_on_and_unproved():
    assert told(Prefix(LONG), None, LONG[8:], " the") == (LONG[8:] + " the", "unproved")
    assert told(Prefix(LONG), False, LONG[8:], " the") == (LONG[8:] + " the", "continued")


@pytest.mark.parametrize("echoes", [True, False, None])
def test_an_answer_that_begins_anew_is_passed_on_and_unproved(echoes):
    anew = LONG[:20] + "wolf"
    assert told(Prefix(LONG), echoes, anew) == (anew, "unproved")


def test_knowledge_that_proves_wrong_loses_nothing_and_is_told():
    assert told(Prefix(LONG), True, " the", " dog") == (" the dog", "unproved")
    assert told(Prefix(LONG), False, LONG, " the dog") == (LONG + " the dog", "unproved")


def test_withheld_text_is_swallowed_across_pieces():
    prefix = Prefix(LONG, withheld=" over")
    for echoes in (False, None):
        assert told(prefix, echoes, " ", "ov", "er", " the") == (" the", "continued")
        assert told(prefix, echoes, " overtly") == ("tly", "continued")


@pytest.mark.parametrize("echoes", [True, False, None])
@pytest.mark.parametrize("segments", [[" ove", "n"], ["over"], [" ov"], []])
def test_withheld_text_that_is_not_reproduced_is_a_mismatch(pieces, echoes):
    assert run(Seam(Prefix(LONG, withheld=" over"), echoes=echoes), pieces) is None


def test_echo_and_then_withheld_text():
    prefix = Prefix(LONG, withheld=" over")
    seam = Seam(prefix, echoes=None)
    assert run(seam, [prefix.sent + " ov", "er the"]) == " the"
    assert seam.report == SeamReport("echo", len(prefix.sent), len(LONG) + 4, len(LONG))


def test_mismatch_is_raised_at_once_and_does_not_quote_the_text():
    seam = Seam(Prefix(LONG, withheld=" over"), echoes=False)
    with pytest.raises(SeamMismatchError) as caught:
        seam.feed(" under")
    assert "under" not in str(caught.value)
    assert "over" not in str(caught.value)


TEXT = st.text(alphabet="ab \n€😀", max_size=60)
PREFIXES = st.builds(lambda sent, end: Prefix(sent + end, withheld=end), TEXT, TEXT)
KNOWLEDGE = st.sampled_from([True, False, None])


@given(prefix=PREFIXES, says=TEXT, echoes=KNOWLEDGE, data=st.data())
def test_pieces_do_not_matter(prefix, says, echoes, data):
    """Character by character, in one lump, or anything between: the same text and verdict, or the same mismatch."""
    echo = data.draw(st.sampled_from([prefix.sent, prefix.sent[:20], ""]))
    spoken = echo + data.draw(st.sampled_from([prefix.withheld, prefix.withheld[:2], ""])) + says
    cuts = data.draw(st.lists(st.integers(0, 130), max_size=12))
    results = set()
    for pieces in ([spoken] if spoken else [], list(spoken), split(spoken, cuts)):
        seam = Seam(prefix, echoes=echoes)
        text = run(seam, pieces)
        results.add((text, None if text is None else seam.report))
    assert len(results) == 1


# ---------------------------------------------------------------------- answers that repeat themselves

UNITS = st.sampled_from(
    [
        "哈",
        "=",
        "ACGT",
        "加油！",
        "👍🏽",
        "ab ",
        "la la, ",
        "    pass\n",
        "| a | b |\n",
        "Der Mai ist gekommen, die Bäume",
    ]
) | st.text(alphabet="ab \n=哈油😀", min_size=1, max_size=40)
SERVERS = st.sampled_from(["continues", "echoes", "echoes in part", "restarts", "restarts otherwise"])


@dataclass
class Cut:
    """An answer, where its writer died, what the next server writes, and what it should have added."""

    prefix: Prefix
    rest: str
    server: str
    wrote: str


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    unit = draw(UNITS)
    answer = draw(st.sampled_from(["", "Here: "])) + unit * draw(st.integers(1, 200 // len(unit) + 1))
    answer += draw(st.sampled_from(["", " So it is.", "哈"]))
    shown = draw(st.integers(1, len(answer)))
    withheld = draw(st.integers(0, min(shown, 12)))
    prefix = Prefix(answer[:shown], withheld=answer[shown - withheld : shown])
    sent, rest = prefix.sent, answer[shown:]
    go_on = answer[len(sent) :]
    server = draw(SERVERS)
    wrote = {
        "continues": go_on,
        "echoes": sent + go_on,
        "echoes in part": sent[-draw(st.integers(1, len(sent) or 1)) :] + go_on,
        "restarts": answer,
        "restarts otherwise": answer[: draw(st.integers(0, max(0, len(sent) - 1)))] + "#" + rest,
    }[server]
    return Cut(prefix, rest, server, wrote)


@settings(max_examples=1000, deadline=None)
@given(cut=cuts(), echoes=KNOWLEDGE, data=st.data())
def test_whatever_repeats_no_text_is_lost_in_silence(cut, echoes, data):
    seam = Seam(cut.prefix, echoes=echoes)
    sent, withheld = cut.prefix.sent, cut.prefix.withheld
    text = run(seam, split(cut.wrote, data.draw(st.lists(st.integers(0, len(cut.wrote)), max_size=8))))
    event(f"{cut.server}, told {echoes}: {seam.report.verdict if text is not None else 'mismatch'}")
    right = {"continues": False, "echoes": True}.get(cut.server)
    if right is not None and (echoes is right or not sent):
        assert text == cut.rest
        if right or repeats_itself(sent) or common_chars(sent, cut.wrote) < MIN_CHARS:
            assert seam.report.verdict == ("echo" if right and sent else "continued")
    if text is None:  # the attempt has failed, which loses nothing: the next one goes on at the same place
        return
    report = seam.report
    assert (report.sent_chars, report.written_chars) == (len(sent), len(cut.wrote))
    assert cut.wrote == cut.wrote[: report.swallowed_chars] + text
    assert report.swallowed_chars in {len(withheld), len(sent + withheld)}
    if report.swallowed_chars > len(withheld):
        assert cut.wrote.startswith(sent + withheld)
        assert echoes is not False or not cut.wrote.startswith(withheld)
    if cut.server == "continues" and echoes is None and text != cut.rest:
        # The one loss there can be without knowledge: the whole answer so far, which does not repeat itself, said
        # exactly once more and then left. It is told.
        assert not repeats_itself(sent)
        assert report.verdict == "unproved"
    same = common_chars(sent, cut.wrote)
    visible = same >= MIN_CHARS or same == len(sent) or overlap_chars(sent, cut.wrote)
    if echoes is None and sent and text != cut.rest and visible:
        assert report.verdict == "unproved"
    beyond = cut.wrote[len(sent) :]
    goes_on_repeating = repeats_itself(sent) or sent.startswith(beyond[: len(sent)])
    if right is not None and text != cut.rest and len(sent) >= MIN_CHARS and not goes_on_repeating:
        assert report.verdict == "unproved"  # whatever was said of the server
    if echoes is True and sent and report.swallowed_chars == len(withheld) and cut.wrote:
        assert report.verdict == "unproved"


@given(text=st.text(alphabet="ab", max_size=70) | UNITS.map(lambda unit: unit * 3))
def test_repetition_is_found_as_its_definition_says(text):
    borders = [k for k in range(1, len(text)) if text.startswith(text[-k:])]
    longest = max(borders, default=0)
    assert repeats_itself(text) == (longest >= MIN_CHARS or (0 < len(text) <= 2 * longest))


@given(
    before=st.text(alphabet="ab", max_size=60),
    after=st.text(alphabet="ab", max_size=60),
    middle=st.integers(0, 60),
)
def test_overlap_and_common_beginning_are_found_as_their_definitions_say(before, after, middle):
    after = before[middle:] + after
    ends = [k for k in range(MIN_CHARS, len(after) + 1) if before.endswith(after[:k])]
    assert overlap_chars(before, after) == max(ends, default=0)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    assert common_chars(before, after) == len(list(same))
