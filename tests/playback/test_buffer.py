"""The buffer loses nothing, invents nothing, holds nothing too long, and lets nothing pass its gate."""

import math
from collections.abc import Iterable
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback
from disco.playback.reader_metrics import late_tokens, qoe

READING = 4.8
PACE = Pace(READING)
LEAD_S = 0.01  # text leaves so long before the reader's deadline: a timer rings late
FAMILY = "👨‍👩‍👧"
PIECES = st.sampled_from(
    [
        "a", " ", " word", "word ", "\r", "\n", "你", "好。", "👨", "\u200d", "👩", "🇩", "🇪", "e", "\u0301",
        "x" * 70, "two words", " a longer piece of text, with\nlines", "", "สวัสดี", "{", '"key":',
        "SGVsbG8gd29ybGQ=",
    ]
)  # fmt: skip
TEXT = st.builds(
    Delta,
    st.lists(PIECES, max_size=4).map("".join),
    tokens=st.integers(0, 9),
    ids=st.none() | st.just((1, 2)),
)
OTHERS = st.sampled_from([Delta("", kind=kind) for kind in DeltaKind if kind is not DeltaKind.TEXT])
DELTAS = st.lists(TEXT | OTHERS, max_size=20)
PACES = st.none() | st.builds(
    Pace, tps=st.sampled_from([1.0, READING, 25.0, 75.0]), max_hold_s=st.sampled_from([0.05, 0.3])
)
GATES = st.none() | st.integers(0, 120)
Timed = list[tuple[float, Delta]]


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(d.text for d in deltas)


def places(deltas: Iterable[Delta]) -> list[tuple[int, DeltaKind]]:
    """Where what is not text stands."""
    at, found = 0, []
    for delta in deltas:
        at += len(delta.text)
        if delta.kind is not DeltaKind.TEXT:
            found.append((at, delta.kind))
    return found


def timeline(deltas: Timed) -> list[tuple[float, int]]:
    return [(at, delta.tokens) for at, delta in deltas]


def drain(playback: Playback, now: float) -> Timed:
    """All that leaves by itself, and when."""
    out = [(now, delta) for delta in playback.release(now)]
    while playback.next_at is not None:
        now = max(now, playback.next_at)
        out += [(now, delta) for delta in playback.release(now)]
    return out


def play(arrivals: Timed, pace: Pace = PACE, *, banking: bool = False, reserve_s: float = 0.0) -> Timed:
    """Drive a buffer as a session does: at every arrival and whenever it asks to be woken."""
    playback = Playback(pace)
    playback.banking = banking
    if reserve_s:
        playback.keep_reserve(reserve_s)
    out: Timed = []
    for now, delta in arrivals:
        while playback.next_at is not None and playback.next_at < now:
            wake = playback.next_at
            out += [(wake, d) for d in playback.release(wake)]
        playback.push(now, delta)
        out += [(now, d) for d in playback.release(now)]
    out += drain(playback, out[-1][0] if out else 0.0)
    assert playback.banked_tokens == 0
    assert playback.released_chars == playback.pushed_chars
    return out


def banked(arrivals: Timed, *, released: bool = True, tempo: float | None = None) -> Playback:
    """One that banks, or has a tempo, with all that has arrived."""
    playback = Playback(PACE)
    playback.banking, playback.tempo = tempo is None, tempo
    for at, delta in arrivals:
        playback.push(at, delta)
        if released:
            playback.release(at)
    return playback


@settings(max_examples=200)
@given(DELTAS, PACES, st.lists(st.tuples(st.floats(0, 2), st.booleans(), GATES, st.floats(0, 3)), min_size=1))
def test_text_in_is_text_out_in_order_and_nothing_passes_the_gate_for_any_schedule(deltas, pace, steps):
    """Whatever gates are set, moved to and fro and lifted while the answer is written, banked and read."""
    playback, now, pushed, released = Playback(pace), 0.0, [], []
    for step, delta in enumerate(deltas):
        gap, playback.banking, gate, wait = steps[step % len(steps)]
        playback.gate = gate
        assert playback.gate == gate
        now += gap
        playback.push(now, delta)
        pushed.append(delta)
        now += wait
        shown, new = len(text_of(released)), playback.release(now)
        released += new
        if gate is not None:
            assert len(text_of(released)) <= max(gate, shown)
            assert all(at < gate for at, _ in places(released)[len(places(released)) - len(places(new)) :])
        assert text_of(pushed).startswith(text_of(released))
        assert (playback.pushed_chars, playback.released_chars) == (
            len(text_of(pushed)),
            len(text_of(released)),
        )
    gate, shown = playback.gate, len(text_of(released))
    playback.end(now)
    released += playback.release(now)
    if gate is None or shown < gate:  # at the end, what is before the gate leaves at once, and no more
        assert text_of(released) == text_of(pushed)[:gate]
        assert places(released) == [place for place in places(pushed) if gate is None or place[0] < gate]
        assert playback.next_at is None
    with pytest.raises(ValueError, match="after end"):
        playback.push(now, Delta("x"))
    playback.gate = None
    released += [delta for _, delta in drain(playback, now)]
    assert text_of(released) == text_of(pushed)
    assert places(released) == places(pushed)  # others keep their place in the text
    assert sum(d.tokens for d in released) == sum(d.tokens for d in pushed)
    assert playback.banked_tokens == pytest.approx(0.0, abs=1e-9)
    whole = {id(d) for d in pushed}
    assert all(id(d) in whole or (d.raw is None and d.text) for d in released)


@given(DELTAS, PACES, GATES, st.integers(0, 60), st.none() | st.floats(0, 2))
def test_what_is_taken_back_and_what_is_shown_make_up_the_whole(deltas, pace, gate, beyond, late):
    """Also without a gate, while text is banked."""
    playback = Playback(pace)
    playback.gate, playback.banking = gate, gate is None
    for delta in deltas:
        playback.push(0.0, delta)
    shown = [] if late is None else playback.release(late)
    position, text = playback.released_chars + beyond, text_of(deltas)
    if playback.released_chars:
        with pytest.raises(ValueError, match=f"{playback.released_chars} characters are released"):
            playback.retract(playback.released_chars - 1)
    taken = playback.retract(position)
    assert text_of(taken) == text[position:]
    assert playback.pushed_chars == min(position, len(text))
    playback.push(2.0, Delta("|"))
    playback.gate = None
    playback.end(3.0)
    kept = [*shown, *playback.release(4.0)]
    assert text_of(kept) == text[:position] + "|"
    assert sum(d.tokens for d in [*kept, *taken]) == sum(d.tokens for d in deltas) + 1
    others = [d for d in deltas if d.kind is not DeltaKind.TEXT]
    assert [d for d in [*kept, *taken] if d.kind is not DeltaKind.TEXT] == others


@given(
    DELTAS,
    st.lists(st.floats(0, 2), min_size=20),
    st.sampled_from([READING, 25.0, 75.0]),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_pacing_makes_no_token_late_does_no_harm_and_holds_nothing_longer_than_the_bound(
    deltas, gaps, tps, banking, reserve_s
):
    times = [sum(gaps[: i + 1]) for i in range(len(deltas))]
    pushed_at = [at for at, delta in zip(times, deltas, strict=True) for _ in delta.text]
    released, shown = play(list(zip(times, deltas, strict=True)), Pace(tps, max_hold_s=0.3)), 0
    assert [at for at, _ in released[:1]] == times[:1]
    for at, delta in released:
        for _ in delta.text:
            assert at - pushed_at[shown] <= 0.3 + 1e-9
            shown += 1
    # One token a word, so that weights and tokens agree.
    counted = [Delta(" w" * len(d.text), tokens=len(d.text)) for d in deltas]
    arrivals = [(at, d) for at, d in zip(times, counted, strict=True) if 0 < len(d.text) <= 64]
    released = play(arrivals, Pace(tps), banking=banking, reserve_s=reserve_s)
    assert late_tokens(timeline(released), tps) <= late_tokens(timeline(arrivals), tps)
    if arrivals:
        how = {"submitted_at": arrivals[0][0] - 0.5, "prompt_tokens": 100}
        assert qoe(timeline(released), tps, **how) >= qoe(timeline(arrivals), tps, **how) - 1e-9


@given(st.sampled_from([READING, 12.0]), st.none() | st.floats(1.0, 40.0), st.integers(5, 60), st.booleans())
def test_a_tempo_and_banking_space_text_exactly(tps, tempo, count, banking):
    """A tempo: between the preset's pace and what a screen shows; whatever came how fast."""
    playback = Playback(Pace(tps))
    playback.tempo = tempo
    playback.banking = banking or tempo is None
    for _ in range(count):
        playback.push(0.0, Delta(" word."))
    expected = [0.0]
    for i in range(1, count):
        deadline = i / tps - LEAD_S  # the reader's, which comes first only where the tempo is hardly faster
        expected.append(min(expected[-1] + 1 / max(tps, tempo or 0.0), deadline))
    assert [at for at, _ in drain(playback, 0.0)] == pytest.approx(expected)


def test_a_reserve_hides_the_pauses_of_a_writer_that_is_hardly_faster_than_the_pace():
    def longest_gap(reserve_s: float) -> float:
        """After a hand-over with 10 words in hand, to a writer that pauses for 0.3 s after every tenth word."""
        playback, shown_at = Playback(Pace(10.0)), []
        playback.tempo = 10.0
        for _ in range(30):
            playback.push(0.0, Delta(" word."))
        for word in range(100):
            now = 2.0 + word / 20 + word // 10 * 0.3
            while playback.next_at is not None and playback.next_at < now:
                wake = playback.next_at
                shown_at += [wake for _ in playback.release(wake)]
            if word == 0:
                if reserve_s:
                    playback.keep_reserve(reserve_s)
                playback.tempo = None
            playback.push(now, Delta(" word."))
        return max(after - at for at, after in pairwise(shown_at))

    assert longest_gap(0.0) > 0.25
    assert longest_gap(0.8) < 0.11


@pytest.mark.parametrize("tps", [9.0, 14.0, 60.0])
def test_with_a_reserve_the_text_in_hand_comes_near_it_from_both_sides(tps):
    for at_first in (1, 40):
        playback, now = Playback(Pace(10.0)), 0.0
        playback.keep_reserve(0.8)
        for _ in range(at_first):
            playback.push(now, Delta(" word."))
        for _ in range(int(20 * tps)):
            now += 1 / tps
            playback.release(now)
            playback.push(now, Delta(" word."))
        assert playback.banked_tokens == pytest.approx(8.0 if tps > 10 else 1.0, abs=2.0)


def drip(text: Iterable[str], tps: float) -> Timed:
    return [(i / tps, Delta(piece)) for i, piece in enumerate(text)]


def test_drips_leave_in_whole_words_and_a_joined_emoji_is_shown_in_one():
    text = "the quick brown fox jumps over the lazy dog again and again "
    seen = ""
    for _, deltas in groupby(play(drip(text, 200)), key=lambda one: one[0]):
        seen += text_of(d for _, d in deltas)
        assert seen in ("t", text) or seen.endswith(" ") or text[len(seen)] == " "
    assert seen == text
    shown, seen = "", []
    pieces = ["Hi", " ", "👨", "\u200d", "👩", "\u200d", "👧", " and"]
    for _, deltas in groupby(play([*drip(pieces, 100), (0.5, Delta(" more"))]), key=lambda one: one[0]):
        shown += text_of(d for _, d in deltas)
        seen.append(shown.rpartition(" ")[2])
    assert {FAMILY} <= set(seen) <= {"Hi", "", FAMILY, "and", "more"}


def test_a_split_delta_shares_out_tokens_and_its_first_part_keeps_raw():
    more = {"ids": (1, 2, 3, 4, 5, 6, 7), "raw": object(), "logprobs": {"content": []}}
    playback = banked([(0.0, Delta("zero")), (0.0, Delta(" one two three four", tokens=7, **more))])
    parts = [delta for _, delta in drain(playback, 0.0)]
    assert [d.text for d in parts] == [" one", " two", " three", " four"]
    assert sum(d.tokens for d in parts) == 7
    assert [d.ids for d in parts] == [None, None, None, more["ids"]]
    assert [d.logprobs for d in parts] == [more["logprobs"], None, None, None]
    assert [d.raw for d in parts] == [more["raw"], None, None, None]


def test_late_calls_catch_up_without_drift_and_slack_is_the_time_until_the_reader_needs_the_next_token():
    # A server that does not count tokens is counted by length.
    assert banked([(0.0, Delta("word " * 80, tokens=1))]).slack_s(0.0) == pytest.approx(100 / READING)
    assert banked(drip([" word"] * 49, 48.0)).slack_s(1.0) == pytest.approx(49 / READING - 1.0)
    playback = banked(drip([" word"] * 100, 50.0), released=False)
    assert len(playback.release(5.0)) == math.floor(5.0 * READING) + 1  # a reader that blocked for 5 s
    assert playback.next_at == pytest.approx(25 / READING - LEAD_S)
    assert len(playback.release(25 / READING + 0.01)) == 1
    assert playback.next_at == pytest.approx(26 / READING - LEAD_S)  # not a step later


def test_a_long_single_token_takes_no_longer_to_read_than_another():
    """Such as a word, a rule of dashes or an indent; several words are counted by length, in any script."""
    for text in (" disproportionately", "-" * 32, "\n" + " " * 31):
        assert banked([(0.0, Delta(text, tokens=1))]).slack_s(0.0) == pytest.approx(1 / READING)
    for text in (" one two three four five", "日" * 24):
        assert banked([(0.0, Delta(text, tokens=1))]).slack_s(0.0) == pytest.approx(6 / READING)


def test_a_contradictory_pace_tempo_or_reserve_is_refused():
    for pace in ({"tps": 0.0}, {"tps": math.inf}, {"tps": 1.0, "max_hold_s": 0.0}):
        with pytest.raises(ValueError, match="must"):
            Pace(**pace)
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tempo must"):
            banked([], tempo=value)
        with pytest.raises(ValueError, match="reserve must"):
            banked([]).keep_reserve(value)
