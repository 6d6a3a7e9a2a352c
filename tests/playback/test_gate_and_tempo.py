"""Nothing passes the gate, nothing is lost behind it, and a tempo spaces text as it says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback

READING = 4.8
LEAD_S = 0.01  # text leaves so long before the reader needs it: a timer rings late
PACES = st.none() | st.builds(
    Pace, tps=st.sampled_from([1.0, READING, 75.0]), max_hold_s=st.sampled_from([0.05, 0.3])
)
TEXT = st.builds(
    Delta,
    st.sampled_from(
        ["a", " word", "word ", " two words", " a longer piece of text,\nwith lines", "", "你好", "x" * 70]
    ),
    tokens=st.integers(1, 4),
)
OTHER = st.sampled_from([DeltaKind.TOOL, DeltaKind.ROLE, DeltaKind.REASONING]).map(
    lambda kind: Delta("", kind=kind)
)
DELTAS = st.lists(TEXT | OTHER, max_size=20)
GATES = st.none() | st.integers(0, 120)


def text_of(deltas: list[Delta]) -> str:
    return "".join(d.text for d in deltas)


def places(deltas: list[Delta]) -> list[tuple[int, DeltaKind]]:
    """Where what is not text stands."""
    at, found = 0, []
    for delta in deltas:
        at += len(delta.text)
        if delta.kind is not DeltaKind.TEXT:
            found.append((at, delta.kind))
    return found


def drain(playback: Playback, now: float) -> list[Delta]:
    """All that leaves by itself."""
    out = playback.release(now)
    while playback.next_at is not None:
        now = max(now, playback.next_at)
        out += playback.release(now)
    return out


def allowed(deltas: list[Delta], gate: int) -> tuple[str, list[tuple[int, DeltaKind]]]:
    return text_of(deltas)[:gate], [place for place in places(deltas) if place[0] < gate]


@settings(max_examples=200)
@given(DELTAS, PACES, st.lists(st.tuples(st.floats(0, 1), GATES, st.floats(0, 1)), min_size=1))
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
    playback.gate = None
    playback.end(now)
    released += drain(playback, now)
    assert text_of(released) == text_of(pushed)
    assert places(released) == places(pushed)
    assert sum(d.tokens for d in released) == sum(d.tokens for d in pushed)
    assert playback.banked_tokens == pytest.approx(0.0, abs=1e-9)


@given(DELTAS, PACES, st.integers(0, 120))
def test_what_is_before_the_gate_leaves_at_the_end_and_the_rest_when_it_is_lifted(deltas, pace, gate):
    playback = Playback(pace)
    playback.gate = gate
    for delta in deltas:
        playback.push(0.0, delta)
    playback.end(1.0)
    before = drain(playback, 1.0)
    assert (text_of(before), places(before)) == allowed(deltas, gate)
    assert playback.next_at is None
    with pytest.raises(ValueError, match="after end"):
        playback.push(2.0, Delta("x"))
    playback.gate = None
    rest = playback.release(3.0)
    assert text_of([*before, *rest]) == text_of(deltas)
    assert places([*before, *rest]) == places(deltas)


@given(DELTAS, PACES, st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_what_is_taken_back_behind_a_gate_and_what_is_shown_make_up_the_whole(
    deltas, pace, gate, beyond, late
):
    playback = Playback(pace)
    playback.gate = gate
    for delta in deltas:
        playback.push(0.0, delta)
    shown = playback.release(1.0) if late else []
    position = playback.released_chars + beyond
    taken = playback.retract(position)
    text = text_of(deltas)
    assert text_of(taken) == text[position:]
    assert playback.pushed_chars == min(position, len(text))
    playback.push(1.0, Delta("|"))
    playback.gate = None
    playback.end(2.0)
    kept = [*shown, *drain(playback, 2.0)]
    assert text_of(kept) == text[:position] + "|"
    assert sum(d.tokens for d in [*kept, *taken]) == sum(d.tokens for d in deltas) + 1


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


def test_a_tempo_without_a_pace_changes_nothing():
    playback = Playback(None)
    playback.tempo = 5.0
    playback.push(0.0, Delta("word"))
    playback.push(0.0, Delta("word"))
    assert len(playback.release(0.0)) == 2


@pytest.mark.parametrize("tempo", [0.0, -1.0, math.inf, math.nan])
def test_a_tempo_that_is_none_is_refused(tempo):
    with pytest.raises(ValueError, match="tempo must"):
        Playback(Pace(READING)).tempo = tempo
