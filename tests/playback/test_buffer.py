"""The buffer loses nothing, invents nothing, holds nothing too long and banks what it is told to."""

import math
from collections.abc import Iterable
from itertools import groupby, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playback.streams import DELTAS, FAMILY, LEAD_S, PACES, READING, places, text_of

from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback
from disco.playback.reader_metrics import Timeline, late_tokens, qoe, tbt_s

Arrivals = list[tuple[float, Delta]]


def play(
    arrivals: Arrivals, pace: Pace | None, *, banking: bool = False, end_at: float | None = None
) -> list[tuple[float, Delta]]:
    """Drive a buffer as a session does: at every arrival and whenever it asks to be woken."""
    playback = Playback(pace)
    playback.banking = banking
    out: list[tuple[float, Delta]] = []
    waiting = list(arrivals)
    now = -math.inf
    for _ in range(1_000_000):
        wake = playback.next_at
        arrive = waiting[0][0] if waiting else math.inf
        ending = end_at if not waiting and end_at is not None else math.inf
        at = min(math.inf if wake is None else wake, arrive, ending)
        if at == math.inf:
            break
        now = max(now, at)
        if arrive <= now:
            playback.push(now, waiting.pop(0)[1])
        elif ending <= now:
            playback.end(now)
            end_at = None
        out += [(now, delta) for delta in playback.release(now)]
    assert playback.banked_tokens == 0
    assert playback.released_chars == playback.pushed_chars
    return out


def smooth(words: int, tps: float, word: str = " word") -> Arrivals:
    return [(i / tps, Delta(word)) for i in range(words)]


def timeline(deltas: Iterable[tuple[float, Delta]]) -> Timeline:
    return [(at, delta.tokens) for at, delta in deltas]


STREAMS = st.lists(st.tuples(st.floats(0, 2), DELTAS), max_size=25)


@settings(max_examples=300)
@given(STREAMS, PACES, st.lists(st.floats(0, 3), max_size=30), st.lists(st.booleans(), min_size=1))
def test_text_in_is_text_out_in_order_for_any_schedule(
    stream: Arrivals, pace: Pace | None, calls: list[float], banking: list[bool]
) -> None:
    playback = Playback(pace)
    now, pushed, released = 0.0, [], []
    for step, (gap, delta) in enumerate(stream):
        now += gap
        playback.banking = banking[step % len(banking)]
        playback.push(now, delta)
        pushed.append(delta)
        if step < len(calls):
            now += calls[step]
            released += playback.release(now)
        shown = text_of(released)
        # Nothing is released before it was pushed, and nothing out of order.
        assert text_of(pushed).startswith(shown)
        assert playback.released_chars == len(shown)
        assert abs(playback.banked_tokens) < 1e-6 or playback.next_at is not None
    playback.end(now)
    for _ in range(10_000):
        if playback.next_at is None:
            break
        now = max(now, playback.next_at)
        released += playback.release(now)
    assert text_of(released) == text_of(pushed)
    assert sum(d.tokens for d in released) == sum(d.tokens for d in pushed)
    assert places(released) == places(pushed)  # others keep their place in the text
    whole = {id(d) for d in pushed}
    assert all(id(d) in whole or (d.raw is None and d.text) for d in released)


@settings(max_examples=150)
@given(STREAMS, st.sampled_from([READING, 25.0, 75.0]), st.booleans())
def test_pacing_makes_no_token_late_and_does_no_harm(stream: Arrivals, tps: float, banking: bool) -> None:
    now, arrivals = 0.0, []
    for gap, delta in stream:
        now += gap
        # One token a word, so that weights and tokens agree.
        arrivals.append((now, Delta(" w" * len(delta.text), tokens=len(delta.text))))
    arrivals = [(at, d) for at, d in arrivals if d.tokens and len(d.text) <= 64]
    released = play(arrivals, Pace(tps), banking=banking)
    assert late_tokens(timeline(released), tps) <= late_tokens(timeline(arrivals), tps)
    if arrivals:
        how = {"submitted_at": arrivals[0][0] - 0.5, "prompt_tokens": 100}
        assert qoe(timeline(released), tps, **how) >= qoe(timeline(arrivals), tps, **how) - 1e-9


@settings(max_examples=100)
@given(STREAMS, st.sampled_from([READING, 25.0]))
def test_nothing_is_held_longer_than_the_bound(stream: Arrivals, tps: float) -> None:
    now, arrivals, pushed_at = 0.0, [], []
    for gap, delta in stream:
        now += gap
        arrivals.append((now, delta))
        pushed_at += [now] * len(delta.text)
    shown = 0
    for at, delta in play(arrivals, Pace(tps, max_hold_s=0.3)):
        if delta.text:
            assert at - pushed_at[shown] <= 0.3 + 1e-9
            shown += len(delta.text)


def test_a_slow_smooth_stream_passes_untouched() -> None:
    arrivals = smooth(100, 4.0)
    released = play(arrivals, Pace(READING))
    assert [at for at, _ in released] == [at for at, _ in arrivals]
    assert all(out is into for (_, out), (_, into) in zip(released, arrivals, strict=True))


def test_a_fast_smooth_stream_stays_whole_and_close() -> None:
    arrivals = smooth(300, 50.0)
    released = play(arrivals, Pace(READING))
    assert all(out is into for (_, out), (_, into) in zip(released, arrivals, strict=True))
    # A word waits for the next one to show that it is complete: one token's time, and little more.
    held = [out - into for (out, _), (into, _) in zip(released, arrivals, strict=True)]
    assert held[0] == 0
    assert max(held[:-1]) <= 0.1
    assert max(held[50:-1]) <= 0.03
    assert max(tbt_s(timeline(released))[5:-1]) <= 0.04


@pytest.mark.parametrize("one_delta", [True, False])
def test_a_ten_thousand_character_dump_is_shown_within_the_hold(one_delta: bool) -> None:
    words = " lorem ipsum" * 834
    dump = [Delta(words)] if one_delta else [Delta(f" {w}") for w in words.split()]
    released = play([(0.0, Delta("So")), *((0.5, d) for d in dump)], Pace(READING))
    assert text_of(d for _, d in released) == "So" + words
    assert released[-1][0] <= 0.8 + 1e-9
    times = sorted({at for at, _ in released if at >= 0.5})
    assert len(times) >= 15  # it flows, some sixty frames a second
    assert max(b - a for a, b in pairwise(times)) < 0.03
    per_time = [sum(len(d.text) for at, d in released if at == t) for t in times]
    assert max(per_time) < len(words) / 8


def test_a_one_character_drip_leaves_in_whole_words() -> None:
    text = "the quick brown fox jumps over the lazy dog again and again "
    released = play([(i / 200, Delta(c)) for i, c in enumerate(text)], Pace(READING))
    assert text_of(d for _, d in released) == text
    seen = ""
    for _, deltas in groupby(released, key=lambda one: one[0]):
        seen += text_of(d for _, d in deltas)
        assert seen in ("t", text) or seen.endswith(" ") or text[len(seen)] == " "


@pytest.mark.parametrize(
    ("arrivals", "within_s"),
    [
        # Without spaces.
        ([(0.1 + i / 100, Delta("QUJD")) for i in range(500)], 0.35),
        ([(0.1 + i / 100, Delta("你好世界")) for i in range(100)], 0.35),
        # A dump as the very first delta starts at once.
        ([(1.0, Delta("word " * 2000, tokens=2000))], 0.3),
        # A clock that jumps forward.
        ([(at, Delta(" word")) for at in (0.0, 0.02, 0.04, 3600.0, 3600.02)], 0.3),
    ],
    ids=["base64", "Chinese", "dump", "jump"],
)
def test_odd_streams_start_at_once_and_are_held_no_longer_than_the_bound(arrivals, within_s):
    released = play(arrivals, Pace(READING))
    assert text_of(d for _, d in released) == text_of(d for _, d in arrivals)
    assert sum(d.tokens for _, d in released) == sum(d.tokens for _, d in arrivals)
    assert released[0][0] == arrivals[0][0]
    assert released[-1][0] <= arrivals[-1][0] + 0.3 + 1e-9
    if len(arrivals) > 10:
        assert max(tbt_s(timeline(released))) <= within_s


def test_bursts_are_smoothed() -> None:
    arrivals = [(0.2 * i, Delta(" word" * 10, tokens=10)) for i in range(30)]
    raw, paced = (tbt_s(timeline(s)) for s in (arrivals, play(arrivals, Pace(READING))))
    assert max(raw) == pytest.approx(0.2)
    assert sorted(paced)[int(0.98 * len(paced))] < 0.06


def test_a_joined_emoji_in_pieces_is_shown_in_one() -> None:
    pieces = ["Hi", " ", "👨", "\u200d", "👩", "\u200d", "👧", " and"]
    arrivals = [(i / 100, Delta(piece)) for i, piece in enumerate(pieces)]
    released = play([*arrivals, (0.5, Delta(" more"))], Pace(READING))
    shown, at_time = "", {}
    for at, delta in released:
        shown += delta.text
        at_time[at] = shown
    assert any(FAMILY in s for s in at_time.values())
    for s in at_time.values():
        cut = s.rpartition(" ")[2]
        assert cut in {"Hi", "", FAMILY, "and", "more"}


def test_without_a_pace_every_delta_is_passed_on_itself_at_once() -> None:
    playback = Playback(None)
    assert playback.next_at is None
    for i in range(3):
        delta = Delta("some text that is long" * 10, raw=object())
        playback.push(i, delta)
        assert playback.next_at is not None
        (out,) = playback.release(i)
        assert out is delta
    assert playback.release(9) == []
    assert playback.slack_s(9) == 0.0


def test_a_split_delta_shares_out_tokens_and_drops_raw() -> None:
    delta = Delta(
        " one two three four", tokens=7, ids=(1, 2, 3, 4, 5, 6, 7), raw=object(), logprobs={"content": []}
    )
    playback = Playback(Pace(READING))
    playback.banking = True
    playback.push(0.0, Delta("zero"))
    playback.push(0.0, delta)
    parts = [d for at in range(20) for d in playback.release(at * 0.2)][1:]
    assert [d.text for d in parts] == [" one", " two", " three", " four"]
    assert sum(d.tokens for d in parts) == 7
    assert [d.ids for d in parts] == [None, None, None, delta.ids]
    assert [d.logprobs for d in parts] == [delta.logprobs, None, None, None]
    assert all(d.raw is None for d in parts)


def test_banking_releases_at_exactly_the_reading_pace() -> None:
    released = play(smooth(100, 50.0), Pace(READING), banking=True)
    for i, (at, _) in enumerate(released):
        assert at == pytest.approx(max(0.0, i / READING - LEAD_S), abs=1e-9)
    assert late_tokens(timeline(released), READING) == 0


def test_late_calls_catch_up_without_drift() -> None:
    playback = Playback(Pace(READING))
    playback.banking = True
    for at, delta in smooth(100, 50.0):
        playback.push(at, delta)
    assert len(playback.release(5.0)) == math.floor(5.0 * READING) + 1  # a reader that blocked for 5 s
    assert playback.next_at == pytest.approx(25 / READING - LEAD_S)
    assert len(playback.release(25 / READING + 0.01)) == 1
    assert playback.next_at == pytest.approx(26 / READING - LEAD_S)  # not a step later


def test_what_was_banked_for_nothing_drains_smoothly() -> None:
    playback = Playback(Pace(READING))
    playback.banking = True
    for at, delta in smooth(100, 50.0):
        playback.push(at, delta)
        playback.release(at)
    banked = playback.banked_tokens
    playback.banking = False
    now, sizes = 2.0, []
    while playback.next_at is not None and playback.next_at < 2.29:
        now = max(now, playback.next_at)
        sizes.append(len(playback.release(now)))
    assert banked > 80
    assert len(sizes) >= 8
    assert max(sizes) < banked / 4
    playback.release(2.3)
    assert playback.banked_tokens == 0


def test_the_end_flushes() -> None:
    playback = Playback(Pace(READING))
    playback.banking = True
    for at, delta in smooth(50, 50.0):
        playback.push(at, delta)
    playback.release(1.0)
    playback.push(1.0, Delta("", kind=DeltaKind.TOOL))
    playback.end(1.0)
    out = playback.release(1.0)
    assert out[-1].kind is DeltaKind.TOOL
    assert playback.next_at is None
    assert playback.banked_tokens == 0
    with pytest.raises(ValueError, match="after end"):
        playback.push(2.0, Delta("x"))


def test_what_the_reader_has_cannot_be_taken_back_and_a_contradictory_pace_is_refused() -> None:
    playback = Playback(Pace(READING))
    playback.push(0.0, Delta("hello"))
    playback.release(0.0)
    with pytest.raises(ValueError, match="5 characters are released"):
        playback.retract(4)
    assert playback.retract(5) == []
    for wrong in ({"tps": 0.0}, {"tps": math.inf}, {"tps": 1.0, "max_hold_s": 0.0}):
        with pytest.raises(ValueError, match="must"):
            Pace(**wrong)


def test_slack_is_the_time_until_the_reader_needs_the_next_token() -> None:
    playback = Playback(Pace(READING))
    playback.banking = True
    assert playback.slack_s(0.0) == 0.0
    for at, delta in smooth(49, 48.0):
        playback.push(at, delta)
        playback.release(at)
    assert playback.slack_s(1.0) == pytest.approx(49 / READING - 1.0)
    taken = playback.retract(48 * 5)
    assert [d.text for d in taken] == [" word"]
    assert playback.slack_s(1.0) == pytest.approx(48 / READING - 1.0)
    assert playback.slack_s(20.0) < 0
    # A server that does not count tokens is counted by length.
    playback = Playback(Pace(READING))
    playback.push(0.0, Delta("word " * 80, tokens=1))
    assert playback.slack_s(0.0) == pytest.approx(100 / READING)
