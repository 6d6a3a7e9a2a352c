"""What must hold where one writer's text ends and the next one's begins."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from disco.endpoints.continuation.repetition import MIN_CHARS, common_chars, overlap_chars, repeats_itself
from disco.endpoints.continuation.seam import Seam, SeamMismatchError
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


OVER = Prefix(LONG, withheld=" over")
ANEW = LONG[:20] + "wolf"
ALL = (True, False, None)

P, THE, ABA = Prefix(LONG), Prefix("The"), Prefix("aba b aba b", withheld=" b")
ROWS, DOG = Prefix(ROW + " over", withheld=" over"), Prefix("The dog", withheld=" dog")
NOT_TOLD = (False, None)

# prefix, what may be known of the server, what it writes, what is let through, the verdict
SEAMS = {
    "nothing to swallow": (P, [False], [" the", " lazy"], " the lazy", "continued"),
    "a declared echo": (P, [True], [LONG, " the"], " the", "echo"),
    "a likely echo": (P, [None], [LONG + " the", " dog"], " the dog", "unproved"),
    "a short text, echoed": (THE, [True], ["The", " dog"], " dog", "echo"),
    "a short text, repeated": (THE, [None], ["The", " dog"], "The dog", "unproved"),
    # What does not begin with the words that were shown last is an echo, whatever is known.
    "no continuation": (OVER, ALL, [LONG, " the"], " the", "echo"),
    "no continuation of a row": (ROWS, ALL, [ROW, " over", " a"], " a", "echo"),
    "no short continuation": (DOG, ALL, ["The", " dog", " barks"], " barks", "echo"),
    # After "aba.." and the word " b", an echo of the whole and of its last half begin alike.
    "a part or the whole": (ABA, [None], ["aba b aba b", " c"], " c", "unproved"),
    "not declared": (ABA, [False], ["aba b aba b", " c"], None, "continued"),
    "a divergence": (P, [None], ["The quick ", "red"], "The quick red", "continued"),
    "a short beginning": (P, [None], ["The"], "The", "continued"),
    "ends within an echo": (P, [None], [LONG[:MIN_CHARS]], None, None),
    "ends within a declared echo": (P, [True], [LONG[:3]], None, None),
    "repeats itself": (P, [None], [LONG, LONG, "!"], LONG * 2 + "!", "unproved"),
    "begins to repeat itself": (P, [None], [LONG, LONG[:5]], LONG + LONG[:5], "unproved"),
    "ends behind a repetition": (P, [None], [LONG], LONG, "unproved"),
    "repeats itself, no echo": (P, [False], [LONG, LONG], LONG * 2, "continued"),
    "an echo in part": (P, [None], [LONG[8:], " the"], LONG[8:] + " the", "unproved"),
    "a part said again": (P, [False], [LONG[8:], " the"], LONG[8:] + " the", "continued"),
    "begins anew": (P, ALL, [ANEW], ANEW, "unproved"),
    # Knowledge that proves wrong loses nothing, and is told.
    "should echo": (P, [True], [" the", " dog"], " the dog", "unproved"),
    "should not echo": (P, [False], [LONG, " the dog"], LONG + " the dog", "unproved"),
    "withheld in pieces": (OVER, NOT_TOLD, [" ", "ov", "er", " the"], " the", "continued"),
    "withheld and more": (OVER, NOT_TOLD, [" overtly"], "tly", "continued"),
    "another word": (OVER, ALL, [" ove", "n"], None, None),
    "without its space": (OVER, ALL, ["over"], None, None),
    "not to its end": (OVER, ALL, [" ov"], None, None),
    "nothing": (OVER, ALL, [], None, None),
}


@pytest.mark.parametrize(("prefix", "known", "wrote", "shown", "verdict"), SEAMS.values(), ids=SEAMS)
def test_what_is_let_through_and_the_verdict(prefix, known, wrote, shown, verdict):
    for echoes in known:
        seam = Seam(prefix, echoes=echoes)
        assert run(seam, wrote) == shown
        assert verdict in (None, seam.report.verdict)


def test_text_is_let_through_and_a_mismatch_raised_as_soon_as_it_is_known():
    for echoes in NOT_TOLD:  # text that repeats itself is never taken for an echo, and not even held back
        seam = Seam(Prefix(ROW), echoes=echoes)
        assert [seam.feed("=") for _ in range(100)] == ["="] * 100
        assert (seam.end(), seam.report.verdict) == ("", "unproved" if echoes is None else "continued")
    seam = Seam(P, echoes=None)
    assert [seam.feed("The quick "), seam.feed("red"), seam.passed] == ["", "The quick red", True]
    assert Seam(P, echoes=False).passed
    with pytest.raises(SeamMismatchError) as caught:
        Seam(OVER, echoes=False).feed(" under")
    assert "under" not in str(caught.value)
    assert "over" not in str(caught.value)


LONGER = ["👍🏽", "la la, ", "    pass\n", "| a | b |\n", "Der Mai ist gekommen, die Bäume"]
UNITS = st.sampled_from(["哈", "=", "ACGT", "加油！", "ab ", *LONGER]) | st.text(
    alphabet="ab \n=哈油😀", min_size=1, max_size=40
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Prefix, str, str, str]:
    """An answer's beginning, what should be added, and a kind of server with what it writes."""
    unit = draw(UNITS)
    answer = draw(st.sampled_from(["", "Here: "])) + unit * draw(st.integers(1, 200 // len(unit) + 1))
    answer += draw(st.sampled_from(["", " So it is.", "哈"]))
    shown = draw(st.integers(1, len(answer)))
    withheld = draw(st.integers(0, min(shown, 12)))
    prefix = Prefix(answer[:shown], withheld=answer[shown - withheld : shown])
    sent, rest = prefix.sent, answer[shown:]
    go_on = answer[len(sent) :]
    servers = {
        "continues": go_on,
        "echoes": sent + go_on,
        "echoes in part": sent[-draw(st.integers(1, len(sent) or 1)) :] + go_on,
        "restarts": answer,
        "restarts otherwise": answer[: draw(st.integers(0, max(0, len(sent) - 1)))] + "#" + rest,
    }
    server = draw(st.sampled_from(list(servers)))
    return prefix, rest, server, servers[server]


@settings(max_examples=200)
@given(cuts(), st.sampled_from([True, False, None]), st.lists(st.integers(0, 300), max_size=8))
def test_whatever_repeats_and_however_it_is_cut_no_text_is_lost_in_silence(cut, echoes, at):
    prefix, rest, server, wrote = cut
    sent, withheld = prefix.sent, prefix.withheld
    results = set()
    for pieces in ([wrote] if wrote else [], list(wrote), split(wrote, at)):
        seam = Seam(prefix, echoes=echoes)
        text = run(seam, pieces)
        results.add((text, None if text is None else seam.report))
    assert len(results) == 1  # character by character, in one lump, or anything between
    event(f"{server}, told {echoes}: {seam.report.verdict if text is not None else 'mismatch'}")
    right = {"continues": False, "echoes": True}.get(server)
    if right is not None and (echoes is right or not sent):
        assert text == rest
        if right or repeats_itself(sent) or common_chars(sent, wrote) < MIN_CHARS:
            assert seam.report.verdict == ("echo" if right and sent else "continued")
    if text is None:  # the attempt has failed, which loses nothing: the next one goes on at the same place
        return
    report = seam.report
    assert (report.sent_chars, report.written_chars) == (len(sent), len(wrote))
    assert wrote == wrote[: report.swallowed_chars] + text
    assert report.swallowed_chars in {len(withheld), len(sent + withheld)}
    if report.swallowed_chars > len(withheld):
        assert wrote.startswith(sent + withheld)
        assert echoes is not False or not wrote.startswith(withheld)
    if server == "continues" and echoes is None and text != rest:
        # The one loss there can be without knowledge: the whole answer so far, which does not repeat itself, said
        # exactly once more and then left. It is told.
        assert not repeats_itself(sent)
        assert report.verdict == "unproved"
    same = common_chars(sent, wrote)
    visible = same >= MIN_CHARS or same == len(sent) or overlap_chars(sent, wrote)
    if echoes is None and sent and text != rest and visible:
        assert report.verdict == "unproved"
    beyond = wrote[len(sent) :]
    goes_on_repeating = repeats_itself(sent) or sent.startswith(beyond[: len(sent)])
    if right is not None and text != rest and len(sent) >= MIN_CHARS and not goes_on_repeating:
        assert report.verdict == "unproved"  # whatever was said of the server
    if echoes is True and sent and report.swallowed_chars == len(withheld) and wrote:
        assert report.verdict == "unproved"


AB = st.text(alphabet="ab", max_size=60)


@given(AB | UNITS.map(lambda unit: unit * 3), AB, st.integers(0, 60))
def test_repetition_overlap_and_common_beginning_are_found_as_their_definitions_say(before, after, middle):
    borders = [k for k in range(1, len(before)) if before.startswith(before[-k:])]
    longest = max(borders, default=0)
    assert repeats_itself(before) == (longest >= MIN_CHARS or (0 < len(before) <= 2 * longest))
    after = before[middle:] + after
    ends = [k for k in range(MIN_CHARS, len(after) + 1) if before.endswith(after[:k])]
    assert overlap_chars(before, after) == max(ends, default=0)
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
    assert common_chars(before, after) == len(list(same))
