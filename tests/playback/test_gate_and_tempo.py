"""Nothing passes the gate, nothing is lost behind it, and a tempo spaces text as it says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playback.streams import DELTAS, LEAD_S, PACES, READING, places, text_of

from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback

STREAMS = st.lists(DELTAS, max_size=20)
GATES = st.none() | st.integers(0, 120)


def drain(playback: Playback, now: float) -> list[Delta]:
    """All that leaves by itself."""
    out = playback.release(now)
    while playback.next_at is not None:
        now = max(now, playback.next_at)
        out += playback.release(now)
    return out


@settings(max_examples=200)
@given(STREAMS, PACES, st.lists(st.tuples(st.floats(0, 1), GATES, st.floats(0, 1)), min_size=1))
def test_nothing_passes_the_gate_and_all_comes_when_it_is_lifted(deltas, pace, steps):
    """Whatever gates are set, moved to and fro and lifted while the answer is written and read."""
    playback, now, pushed, released = Playback(pace), 0.0, [], []
    for step, delta in enumerate(deltas):
        gap, gate, wait = steps[step % len(steps)]
        playback.gate = gate
        assert playback.gate == gate
        now += gap
        playback.push(now, delta)
        pushed.append(delta)
        now += wait
        shown = len(text_of(released))
        new = playback.release(now)
        released += new
        if gate is not None:
            assert len(text_of(released)) <= max(gate, shown)
            assert all(at < gate for at, _ in places(released)[len(places(released)) - len(places(new)) :])
        assert text_of(pushed).startswith(text_of(released))
        assert playback.pushed_chars == len(text_of(pushed))
        assert playback.released_chars == len(text_of(released))
    gate, shown = playback.gate, len(text_of(released))
    playback.end(now)
    released += drain(playback, now)
    if gate is not None and shown < gate:  # at the end, what is before the gate leaves, and no more
        assert text_of(released) == text_of(pushed)[:gate]
        assert places(released) == [place for place in places(pushed) if place[0] < gate]
    with pytest.raises(ValueError, match="after end"):
        playback.push(now, Delta("x"))
    playback.gate = None
    released += drain(playback, now)
    assert text_of(released) == text_of(pushed)
    assert places(released) == places(pushed)
    assert sum(d.tokens for d in released) == sum(d.tokens for d in pushed)
    assert playback.banked_tokens == pytest.approx(0.0, abs=1e-9)


@given(STREAMS, PACES, GATES, st.integers(0, 60), st.none() | st.floats(0, 2))
def test_what_is_taken_back_and_what_is_shown_make_up_the_whole(deltas, pace, gate, beyond, late):
    """Also without a gate, while text is banked."""
    playback = Playback(pace)
    playback.gate, playback.banking = gate, gate is None
    for delta in deltas:
        playback.push(0.0, delta)
    shown = [] if late is None else playback.release(late)
    position, text = playback.released_chars + beyond, text_of(deltas)
    taken = playback.retract(position)
    assert text_of(taken) == text[position:]
    assert playback.pushed_chars == min(position, len(text))
    playback.push(2.0, Delta("|"))
    playback.gate = None
    playback.end(3.0)
    kept = [*shown, *drain(playback, 4.0)]
    assert text_of(kept) == text[:position] + "|"
    assert sum(d.tokens for d in [*kept, *taken]) == sum(d.tokens for d in deltas) + 1
    others = [d for d in deltas if d.kind is not DeltaKind.TEXT]
    assert [d for d in [*kept, *taken] if d.kind is not DeltaKind.TEXT] == others


def test_a_reader_begins_to_read_when_the_gate_lets_text_pass():
    """What waited is not late then: it leaves like what comes all at once."""
    playback = Playback(Pace(READING))
    playback.gate = 0
    for i in range(20):
        playback.push(i / 10, Delta(" word"))
    assert playback.release(5.0) == []
    assert playback.banked_tokens == 20
    assert playback.slack_s(5.0) == 0.0
    playback.push(5.0, Delta(" word"))
    playback.gate = None
    assert 1 <= len(playback.release(5.0)) < 15
    drain(playback, 5.0)
    assert playback.slack_s(5.0) == pytest.approx(21 / READING)


def test_a_gate_that_follows_the_text_lets_it_leave_as_it_would_without():
    """Moved on behind every token, it is never met."""
    gated, free = Playback(Pace(READING)), Playback(Pace(READING))
    out: list[list[list[Delta]]] = [[], []]
    for i in range(200):
        gated.gate = gated.pushed_chars + 5
        for playback, seen in zip((gated, free), out, strict=True):
            playback.push(i / 30, Delta(" word"))
            seen.append(playback.release(i / 30))
        assert gated.next_at == free.next_at
    assert out[0] == out[1]


@given(
    st.sampled_from([READING, 12.0]),
    st.floats(1.0, 40.0),
    st.integers(5, 60),
    st.booleans(),
)
def test_a_tempo_spaces_text_exactly(tps, tempo, words, banking):
    """Between the preset's pace and what a screen shows; whatever came how fast."""
    playback = Playback(Pace(tps))
    playback.tempo = tempo
    playback.banking = banking
    for _ in range(words):
        playback.push(0.0, Delta(" word."))
    times = [0.0] * len(playback.release(0.0))
    while playback.next_at is not None:
        at = playback.next_at
        times += [at] * len(playback.release(at))
    assert len(times) == words
    expected = [0.0]
    for i in range(1, words):
        deadline = i / tps - LEAD_S  # the reader's, which comes first only where the tempo is hardly faster
        expected.append(min(expected[-1] + 1 / max(tps, tempo), deadline))
    assert times == pytest.approx(expected)


def test_a_tempo_holds_longer_than_the_preset_and_what_is_held_drains_within_the_hold_after_it():
    playback = Playback(Pace(READING, max_hold_s=0.3))
    playback.tempo = 6.0
    for i in range(60):
        playback.push(i / 60, Delta(" word."))
        playback.release(i / 60)
    assert playback.banked_tokens > 50
    playback.tempo = None
    times = []
    while playback.next_at is not None:
        times.append(playback.next_at)
        playback.release(playback.next_at)
    assert times[-1] <= 1.0 + 0.3 + 1e-9
    assert len(times) > 5


def test_a_tempo_without_a_pace_changes_nothing_and_one_that_is_none_is_refused():
    playback = Playback(None)
    playback.tempo = 5.0
    for _ in range(2):
        playback.push(0.0, Delta("word"))
    assert len(playback.release(0.0)) == 2
    for tempo in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="tempo must"):
            Playback(Pace(READING)).tempo = tempo
