"""A stretch played at once leaves the same as one played packet by packet, to the last bit."""

from math import inf

from hypothesis import event, given, settings
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import prose
from disco.events import Delta, DeltaKind
from disco.playback import Pace, Playback
from disco.replay.simulator.paced_stretch import Asking, Pieces, play_stretch

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
    """What a session and its driver do with a playback, packet by packet."""

    def __init__(self, pace):
        self.playback = Playback(pace)
        self.released = []
        self.wake_at = inf

    def release(self, now):
        self.released += [(now, id(delta)) for delta in self.playback.release(now)]
        at = self.playback.next_at
        self.wake_at = inf if at is None else at

    def switch(self, banking):
        self.playback.banking = banking
        at = self.playback.next_at
        self.wake_at = inf if at is None else at

    def wake(self, until):
        while self.wake_at < until:
            self.release(self.wake_at)

    def push(self, now, delta, asked=None):
        self.wake(now)
        self.playback.push(now, delta)
        if asked is not None:
            self.playback.banking = asked
        self.release(now)

    def stretch(self, which, first, times, asking=None):
        played = play_stretch(self.playback, PIECES[which], first, times, asking)
        if played is None:
            return 0
        left = [*played.queued, *TEXTS[which][first:]]
        self.released += [(at, id(delta)) for at, delta in zip(played.released_at, left, strict=False)]
        self.wake_at = played.next_at
        return played.taken


@settings(max_examples=400, deadline=None)
@given(
    paces,
    gaps,
    switches,
    st.sampled_from([0, 0, 1]),
    st.integers(0, 300),
    st.lists(st.integers(0, 90), max_size=4),
    st.booleans(),
    st.data(),
)
def test_a_stretch_is_its_packets(pace, gaps, switches, which, first, ends, asks, data):
    """Drawn times, texts, paces, switches of banking and ends; the stretch ends at each switch and each drawn end."""
    text = TEXTS[which]
    first = min(first, len(text) - len(gaps) - 1)
    times, now = [], 3.0
    for gap in gaps:
        now += gap
        times.append(now)
    banking_from = dict(switches)
    cuts = sorted({*banking_from, *ends, len(times)})
    every_s = data.draw(st.sampled_from([0.0, 0.01, 0.1])) if asks else 0.0
    refused = data.draw(st.integers(0, len(times))) if asks else None

    plain, fast = Reader(pace), Reader(pace)
    plain_asked, fast_asked = [], []
    ask_at = 0.0
    for number, at in enumerate(times):
        if number in banking_from:
            plain.switch(banking_from[number])
        asked = None
        plain.wake(at)
        if asks and at >= ask_at:
            ask_at = at + every_s
            asked = plain.playback.banking
        plain.push(at, text[first + number], asked)
        if asked is not None:
            plain_asked.append((number, plain.playback.slack_s(at)))

    number, asking = 0, None
    begun = [0]

    def may_go_on(taken, slack_s):
        at = begun[0] + taken - 1
        if at == refused and refused not in stopped:
            stopped.add(refused)
            return False
        fast_asked.append((at, slack_s))
        return True

    stopped = set()
    if asks:
        asking = Asking(may_go_on, every_s, 0.0)
    taken_fast = 0
    for cut in cuts:
        while number < min(cut, len(times)):
            begun[0] = number
            taken = fast.stretch(which, first + number, times[number:cut], asking)
            taken_fast += taken
            number += taken
            if not taken:  # it does not serve here: packet by packet
                at = times[number]
                asked = None
                fast.wake(at)
                if asks and at >= asking.next_at:
                    asking.next_at = at + every_s
                    asked = fast.playback.banking
                fast.push(at, text[first + number], asked)
                if asked is not None:
                    fast_asked.append((number, fast.playback.slack_s(at)))
                number += 1
        if cut in banking_from and cut < len(times):
            fast.switch(banking_from[cut])
    event("most at once" if taken_fast > len(times) // 2 else "most one by one")
    assert fast.released == plain.released
    assert fast_asked == plain_asked
    plain.wake(now + 0.1)
    fast.wake(now + 0.1)
    assert state(fast.playback) == state(plain.playback)
    for reader in (plain, fast):
        reader.playback.end(now + 0.1)
        reader.release(now + 0.1)
        reader.wake(inf)
    assert fast.released == plain.released


def test_what_does_not_serve_is_left_alone():
    pieces = PIECES[0]
    unpaced, fresh, over = Playback(None), Playback(Pace(5.0)), Playback(Pace(5.0))
    over.push(0.0, PROSE[0])
    over.release(0.0)
    over.end(0.1)
    for playback in (unpaced, fresh, over):
        before = state(playback)
        assert play_stretch(playback, pieces, 1, [1.0, 2.0]) is None
        assert state(playback) == before


def test_a_text_with_parts_of_words_or_other_things_has_no_pieces():
    assert Pieces.of([Delta(" two words")]) is None
    assert Pieces.of([Delta(" a"), Delta("", kind=DeltaKind.TOOL)]) is None
