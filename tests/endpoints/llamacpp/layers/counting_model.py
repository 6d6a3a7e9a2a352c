"""A model without arithmetic for the layer server's scheduler: what comes out shows what its caches really hold."""

from __future__ import annotations

import numpy as np

from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve
from disco.endpoints.llamacpp.layers.chunk import Chunk, Refused
from disco.endpoints.llamacpp.layers.row_scheduler import LayerLimits, RowScheduler

FLAT = VerifyCurve([(1, 1.0), (64, 1.1)], 64)  # rows are nearly free
STEEP = VerifyCurve([(1, 1.0), (64, 64.0)], 64)  # rows cost as much as passes


def behind(values) -> tuple[float, float]:
    """What comes out for the last of these rows, given by their first numbers."""
    return float(sum(value * (place % 7 + 1) for place, value in enumerate(values))), float(len(values))


class CountingModel:
    """Has the interface of `StateModel`. A row whose first number is negative comes out as NaN, and harms its cache."""

    hidden = 2

    def __init__(self, slots=4, context_tokens=40, most_rows=8, pass_s=1.0):
        self.slots, self.context_tokens, self.most_rows = slots, context_tokens, most_rows
        self.pass_s = pass_s
        self.caches = [[] for _ in range(slots)]
        self.harmed = set()
        self.passes = []
        self.now = 0.0
        self.fails = None

    def timer(self):
        return self.now

    def cut(self, slot, length):
        assert length <= len(self.caches[slot])
        del self.caches[slot][length:]

    def forget(self):
        self.caches = [[] for _ in range(self.slots)]
        self.harmed.clear()

    def compute(self, parts):
        if self.fails is not None:
            raise self.fails
        assert len({part.slot for part in parts}) == len(parts)
        if len(parts) > 1:  # one pass is a rectangle of neighbours
            assert len({len(part.states) for part in parts}) == 1
            assert [part.slot for part in parts] == list(range(parts[0].slot, parts[0].slot + len(parts)))
        assert sum(len(part.states) for part in parts) <= self.most_rows
        self.now += self.pass_s
        self.passes.append([(part.slot, part.at, len(part.states)) for part in parts])
        return [self._part(part) for part in parts]

    def _part(self, part):
        assert part.slot not in self.harmed, "what a mask hides is NaN, too"
        cache = self.caches[part.slot]
        assert part.at == len(cache), "rows must follow what the cache holds"
        out = []
        for row in part.states:
            cache.append(float(row[0]))
            bad = min(cache) < 0
            out.append((np.nan, np.nan) if bad else behind(cache))
            if bad:
                self.harmed.add(part.slot)
        assert len(cache) <= self.context_tokens
        return np.array(out[part.wanted_from :], np.float32).reshape(-1, 2)


class Box:
    """Takes outcomes."""

    def __init__(self):
        self.items, self.closed = [], False

    def put(self, item):
        assert not self.closed
        self.items.append(item)

    def close(self):
        self.closed = True

    def take(self):
        taken, self.items = self.items, []
        return taken


def scheduler(model, curve=FLAT, **limits):
    return RowScheduler(model, curve, LayerLimits(**{"sequences": 3, **limits}), timer=model.timer)


def rows(*values):
    return np.array([(value, 0.0) for value in values], np.float32)


def chunk(at, *values, sequence=0, wanted=1, **more):
    return Chunk(sequence, at, rows(*values), wanted, **more)


class Device:
    """One session at a scheduler."""

    def __init__(self, served, key="a", now=0.0):
        self.served, self.key, self.box = served, key, Box()
        served.connect(key, self.box, now)

    def ask(self, at, *values, now=0.0, **more):
        one = chunk(at, *values, **more)
        self.served.ask(self.key, self.box, one, now)
        return one

    def release(self, sequence=0):
        self.served.release(self.key, self.box, sequence)

    def leave(self, now=0.0):
        self.served.leave(self.key, self.box, now)

    def again(self, now=0.0):
        self.box = Box()
        self.served.connect(self.key, self.box, now)

    def only(self):
        (one,) = self.box.take()
        return one

    def codes(self):
        return [one.code if isinstance(one, Refused) else None for one in self.box.take()]


def run(served, model, now=None):
    while served.step(model.now if now is None else now):
        pass
