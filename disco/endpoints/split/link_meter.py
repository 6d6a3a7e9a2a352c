"""How fast the way to a layer server is: measured when it is opened, and by every prompt after that."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from disco.speculate.chunks import CloudMonitor, PassTimes, SplitPath
from disco.speculate.estimates import Smoothed
from disco.speculate.layer_facts import LayerFacts

__all__ = ["Answered", "LinkMeter", "device_curve"]

_OLD_SHARE: Final = 0.8  # the paper's alpha
_TRIES: Final = 3
_PROBE_BYTES: Final = 65_536
_SLOW_S: Final = 0.2
_FEWEST_ROWS: Final = 8
_FASTEST_BPS: Final = 1e9  # beyond this, what is measured is the two programs
_DEVICE_TRIES: Final = 3
_FEW_ROWS: Final = 16
_CURVE_ROWS: Final = (1, 4, 16, 32, 63, 64, 128, 256)  # with 64 rows llama.cpp takes other kernels


@dataclass(frozen=True, slots=True)
class Answered:
    """A frame with its reply.

    Attributes:
        took_s: from the sending to the reply, s.
        server_s: of it, in the server: waiting and computing, s.
    """

    took_s: float
    server_s: float

    @property
    def way_s(self) -> float:
        """The time on the way, there and back."""
        return max(self.took_s - self.server_s, 1e-6)


class Probe(Protocol):
    """Sends so many rows, of which so many are wanted, and returns how long that took."""

    def __call__(self, rows: int, wanted: int, /) -> Answered: ...


class LinkMeter:
    """Rates and round trip of one link, and the cloud behind it. Mutable: all attributes.

    Args:
        facts: what the layer server says: its own curve is the first guess, which what is seen corrects.

    Attributes:
        rtt_s: without payload, s.
        up_bps, down_bps: bytes/s.
        monitor: of the cloud's load.
    """

    def __init__(self, facts: LayerFacts) -> None:
        self.rtt_s = 0.0
        self.up_bps = self.down_bps = _FASTEST_BPS
        self._said = PassTimes(facts.compute_s or ((1, 0.0),), pass_rows=facts.most_rows)
        self._ratio = Smoothed()  # of measured times to said ones
        self.monitor = CloudMonitor()
        if facts.load:
            self.monitor.batch(max(1, round(facts.load)), 0.0)

    def measure(self, probe: Probe, state_bytes: int, most_rows: int) -> None:
        """Measure an idle link: the quickest of small frames is the round trip, of large ones each way its rate."""
        self.rtt_s = min(probe(1, 0).way_s for _ in range(_TRIES))
        rows = min(max(_PROBE_BYTES // state_bytes, _FEWEST_ROWS), most_rows)
        up_s, both_s = (self._quickest(probe, rows, wanted) for wanted in (0, rows))
        size = rows * state_bytes
        self.up_bps = _rate(size, up_s - self.rtt_s)
        self.down_bps = _rate(size, both_s - up_s)

    def _quickest(self, probe: Probe, rows: int, wanted: int) -> float:
        """Return the time on the way: of several frames, unless the first shows that the link is slow."""
        ways = [probe(rows, wanted).way_s]
        while len(ways) < _TRIES and sum(ways) < _SLOW_S:
            ways.append(probe(rows, wanted).way_s)
        return min(ways)

    def flowed_up(self, size: int, seconds: float) -> None:
        """Learn that so many bytes went up one behind the other in so many seconds."""
        self.up_bps = _OLD_SHARE * self.up_bps + (1 - _OLD_SHARE) * _rate(size, seconds)

    def computed(self, rows: int, pass_rows: int, seconds: float) -> None:
        """Learn what the cloud says of a frame: its rows, those of its pass with other devices', and the time, s."""
        if pass_rows >= rows >= 1:
            if (said_s := self._said.s(pass_rows)) > 0:
                self._ratio.add(seconds / said_s)
            self.monitor.batch(pass_rows, seconds, load=pass_rows - rows)

    def path(self, device: PassTimes, state_bytes: int) -> SplitPath:
        """Return what is known now, for the choice of a chunk."""
        ratio = self._ratio.value
        scale = 1.0 if ratio is None else ratio
        cloud = PassTimes(self._said.points, scale, pass_rows=self._said.pass_rows)
        return SplitPath(
            self.up_bps, self.down_bps, self.rtt_s, state_bytes, device, cloud, self.monitor.load
        )


def device_curve(
    compute: Callable[[int], object], most_rows: int, *, clock: Callable[[], float] = time.perf_counter
) -> PassTimes:
    """Measure how long the device's layers take, by rows."""
    points: list[tuple[int, float]] = []
    sizes: Sequence[int] = [rows for rows in _CURVE_ROWS if rows <= most_rows]
    compute(1)  # the first pass allocates
    for rows in sizes:
        shortest = float("inf")  # nothing makes a pass shorter than it is
        for _ in range(_DEVICE_TRIES if rows <= _FEW_ROWS else 1):
            began_at = clock()
            compute(rows)
            shortest = min(shortest, clock() - began_at)
        points.append((rows, shortest))
    return PassTimes(points)


def _rate(size: int, seconds: float) -> float:
    return min(size / max(seconds, 1e-9), _FASTEST_BPS)
