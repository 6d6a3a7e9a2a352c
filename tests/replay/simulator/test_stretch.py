"""A stretch played at once leaves the same as one played packet by packet, to the last bit."""

from dataclasses import replace
from math import inf
from unittest import mock

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from made_stations import columns, trace

from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import prose
from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback
from disco.profiles import DeviceProfile, Empirical
from disco.replay.simulator import virtual_driver
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.simulator.paced_stretch import Asking, Pieces, play_stretch
from disco.replay.workload.scenario import Arm, Scenario, resolve

PROSE = [delta for packet in prose(512) for delta in packet]
OWN = [
    Delta(t, tokens=n)
    for t, n in ((" one", 1), (" two", 3), (",", 1), ("-", 1), ("x", 2), ("\n", 1), ("模", 2))
] * 40
TEXTS = [PROSE, OWN]
PIECES = [Pieces.of(text) for text in TEXTS]

paces = st.builds(
    Pace,
    tps=st.sampled_from([0.7, 4.8, 12.0, 25.0, 60.0]),
    max_hold_s=st.sampled_from([0.05, 0.3, 1.0, 5.0]),
)
# Steady sources, jittery ones, bursts, stalls.
gaps = st.one_of(
    st.floats(0.001, 0.6).flatmap(lambda gap: st.lists(st.just(gap), min_size=1, max_size=120)),
    st.lists(st.floats(0.0, 0.7), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, 0.0, 0.001, 1 / 60, 0.04, 0.3, 2.5]), min_size=1, max_size=80),
)
switches = st.lists(st.tuples(st.integers(0, 80), st.booleans()), max_size=3)


def state(playback):
    """All that there is to a playback."""
    fields = {name: getattr(playback, name) for name in Playback.__slots__ if name != "_queue"}
    items = [[getattr(item, name) for name in item.__slots__] for item in playback._queue]
    return fields, items


class Reader:
    """What a session and its driver do with a playback; asks, if at all, whether to go on."""

    def __init__(self, pace, which, every_s, refused):
        self.playback = Playback(pace)
        self.which = which
        self.released = []
        self.asked = []
        self.asking = None if every_s is None else Asking(self.may_go_on, every_s, 0.0)
        self.refused = refused
        self.begun = 0
        self.wake_at = inf

    def may_go_on(self, taken, slack_s):
        number = self.begun + taken - 1
        if number == self.refused:
            self.refused = None
            return False
        self.asked.append((number, slack_s))
        return True

    def note_wake(self):
        at = self.playback.next_at
        self.wake_at = inf if at is None else at

    def release(self, now):
        self.released += [(now, id(delta)) for delta in self.playback.release(now)]
        self.note_wake()

    def switch(self, banking):
        self.playback.banking = banking
        self.note_wake()

    def wake(self, until):
        while self.wake_at < until:
            self.release(self.wake_at)

    def packet(self, number, first, now):
        self.wake(now)
        asks = self.asking is not None and now >= self.asking.next_at
        banking = self.playback.banking
        self.playback.push(now, TEXTS[self.which][first + number])
        if asks:
            self.asking.next_at = now + self.asking.every_s
            self.playback.banking = banking
        self.release(now)
        if asks:
            self.asked.append((number, self.playback.slack_s(now)))

    def stretch(self, number, first, times):
        """Take as many of these as can be taken at once: how many."""
        self.begun, first = number, first + number
        played = play_stretch(self.playback, PIECES[self.which], first, times, self.asking)
        if played is None:
            return 0
        left = [*played.queued, *TEXTS[self.which][first:]]
        self.released += [(at, id(delta)) for at, delta in zip(played.released_at, left, strict=False)]
        self.wake_at = played.next_at
        return played.taken

    def finish(self, now):
        self.playback.end(now)
        self.release(now)
        self.wake(inf)


@settings(max_examples=250, deadline=None)
@given(
    pace=paces,
    gaps=gaps,
    switches=switches,
    which=st.sampled_from([0, 0, 1]),
    first=st.integers(0, 300),
    ends=st.lists(st.integers(0, 90), max_size=4),
    every_s=st.none() | st.sampled_from([0.0, 0.01, 0.1]),
    refused=st.integers(0, 120),
)
def test_a_stretch_is_its_packets(pace, gaps, switches, which, first, ends, every_s, refused):
    """Drawn times, texts, paces, switches of banking and ends; the stretch ends at each switch and each drawn end."""
    first = min(first, len(TEXTS[which]) - len(gaps) - 1)
    times = np.cumsum([3.0, *gaps])[1:].tolist()
    banking_from = dict(switches)
    plain, fast = (Reader(pace, which, every_s, refused) for _ in range(2))
    for number, at in enumerate(times):
        if number in banking_from:
            plain.switch(banking_from[number])
        plain.packet(number, first, at)

    number = taken_at_once = 0
    for cut in sorted({*banking_from, *ends, len(times)}):
        while number < min(cut, len(times)):
            taken = fast.stretch(number, first, times[number:cut])
            taken_at_once += taken
            number += taken
            if not taken:  # it does not serve here: packet by packet
                fast.packet(number, first, times[number])
                number += 1
        if cut in banking_from and cut < len(times):
            fast.switch(banking_from[cut])
    event("most at once" if taken_at_once > len(times) // 2 else "most one by one")
    end = times[-1] + 0.1
    assert fast.released == plain.released
    assert fast.asked == plain.asked
    for reader in (plain, fast):
        reader.wake(end)
    assert state(fast.playback) == state(plain.playback)
    for reader in (plain, fast):
        reader.finish(end)
    assert fast.released == plain.released


def test_what_does_not_serve_is_left_alone():
    unpaced, fresh, over = Playback(None), Playback(Pace(5.0)), Playback(Pace(5.0))
    over.push(0.0, PROSE[0])
    over.release(0.0)
    over.end(0.1)
    for playback in (unpaced, fresh, over):
        before = state(playback)
        assert play_stretch(playback, PIECES[0], 1, [1.0, 2.0]) is None
        assert state(playback) == before
    for text in ([Delta(" two words")], [Delta(" a"), Delta("", kind=DeltaKind.TOOL)]):
        assert Pieces.of(text) is None


# ---------------------------------------------------------------------- whole answers

SCENARIO = Scenario(
    name="stretches",
    device=DeviceProfile(name="phone", source="made up", prefill_tps=300.0, decode_tps=25.0, c_s=0.1),
    device_rates=Rates(1e-8, 1e-7, cached_share=0.0),
    server_rates=Rates(1e-6, 1e-5),
    ttft=Empirical.from_samples([0.2, 0.3, 0.5, 0.9]),
    max_tokens=256,
)


@pytest.mark.parametrize(
    ("pace_tps", "order", "policy", "slots"),
    [
        (2.0, "make_before_break", "race", None),
        (4.8, "break_before_make", "server_only", None),
        (30.0, "make_before_break", "server_only", None),
        (30.0, "break_before_make", "race", 1),
    ],
)
def test_stretches_change_nothing(pace_tps, order, policy, slots):
    scenario = replace(SCENARIO, pace_tps=pace_tps, device_slots=slots)
    load = resolve(trace(12, gap_s=1.0, longest=300), scenario, seed=1)
    arm = Arm(policy, migrate=True, order=order)
    with mock.patch.object(virtual_driver, "take_stretch", wraps=virtual_driver.take_stretch) as taken:
        at_once = simulate(load, scenario, arm, seed=1)
    with mock.patch.object(virtual_driver, "take_stretch", return_value=0):
        one_by_one = simulate(load, scenario, arm, seed=1)
    assert taken.called or slots  # on a shared heap packets come one by one anyway
    for left, right in ((at_once, one_by_one), (at_once.reading, one_by_one.reading)):
        for name, values in columns(left).items():
            np.testing.assert_array_equal(values, getattr(right, name), err_msg=name)
    assert at_once.cost_by == one_by_one.cost_by
    if slots is None and pace_tps < 30.0:
        assert at_once.reading.moved.any(), "moves are what is hard"
