"""A model without arithmetic, for the scheduler: its next token depends on what its caches really hold."""

from __future__ import annotations

import zlib

import numpy as np

from disco.endpoints.llamacpp.batching.answer import Asked, Order
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.round_refusals import AnswerLost
from disco.endpoints.llamacpp.batching.scheduler import Scheduler
from disco.endpoints.llamacpp.batching.verify_curve import VerifyCurve
from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.events import Delta, Ended, Usage
from disco.speculate.messages import Opening, Round

WORDS = 50
END = 0


def behind(ids) -> int:
    """The token that the fake model writes behind others; now and then the end."""
    number = zlib.crc32(bytes(ids))
    return END if number % 97 == 0 else 1 + number % (WORDS - 1)


def whole_answer(prompt, limit):
    """The answer alone, and how it ends."""
    ids = []
    while len(ids) < limit:
        token = behind([*prompt, *ids])
        if token == END:
            return ids, "stop"
        ids.append(token)
    return ids, "length"


class FakeModel:
    """Has the interface of `SequenceModel` that the scheduler and the answers use. Notes each pass."""

    vocabulary, vocabulary_tokens = "fake", WORDS
    fills_up = cuts = True
    keeper = path = load_s = threads = parameters = None
    index = wants_bos = bos_token = piece = spell = tokenize = grammar_vocabulary = None

    def __init__(self, slots=2, batch_tokens=8, context_tokens=200, most_rows=32):
        self.slots, self.batch_tokens, self.context_tokens = slots, batch_tokens, context_tokens
        self.most_rows, self.room_tokens = most_rows, context_tokens
        self.batch_costs = BatchCosts(0)
        self.caches = [[] for _ in range(slots)]
        self.passes = []
        self._rows = []

    def ends_answer(self, token):
        return token == END

    def make_room(self, tokens):
        assert tokens <= self.context_tokens

    def cut(self, slot, length):
        assert length <= len(self.caches[slot])
        del self.caches[slot][length:]
        return True

    def compute(self, parts):
        assert len({part.slot for part in parts}) == len(parts)
        if len(parts) > 1:  # one pass is a rectangle of neighbours
            assert len({len(part.ids) for part in parts}) == 1
            assert [part.slot for part in parts] == list(range(parts[0].slot, parts[0].slot + len(parts)))
        assert sum(len(part.ids) for part in parts) <= self.most_rows
        places = []
        self._rows = []
        for part in parts:
            cache = self.caches[part.slot]
            assert part.at == len(cache), "rows must follow what the cache holds"
            places.append(len(self._rows))
            for place, token in enumerate(part.ids):
                cache.append(token)
                self._rows.append(behind(cache) if place >= part.logits_from else None)
            assert len(cache) <= self.context_tokens
        self.passes.append(parts)
        return places

    def synchronise(self):
        pass

    def reading_batch(self, prompt_tokens):
        return self.batch_tokens

    def logits(self, place):
        logits = np.zeros(WORDS, np.float32)
        logits[self._rows[place]] = 1
        return logits


class FakeJob:
    """Does with the model what a `Generation` does: its prompt, then a token at a time."""

    def __init__(self, answer, prompt, limit):
        self._answer, self._prompt, self._limit = answer, prompt, limit
        self._steps = None
        self.usage = Usage()
        self.closed = False

    def run(self, model):
        self._steps = self._steps or self._write(model)
        return next(self._steps, True) is True

    def close(self):
        self.closed = True

    def _write(self, model):
        model.prepare(self._prompt)
        while not model.ready:
            yield False
        done = cached = model.reuse(self._prompt)
        while done < len(self._prompt):
            end = min(len(self._prompt), (done // model.batch_tokens + 1) * model.batch_tokens)
            model.decode(self._prompt[done:end])
            while not model.ready:
                yield False
            done = end
        keyed, written = self._answer.keyed, 0
        while True:
            token = keyed.forced.popleft() if keyed.forced else int(np.argmax(model.logits()))
            keyed.chosen.append(token)
            if token == END:
                self._answer.put(Ended("stop"))
                return
            written += 1
            self.usage = Usage(len(self._prompt), written, cached)
            self._answer.put(Delta(f"{token} ", ids=(token,)))
            if written == self._limit:
                self._answer.put(Ended("length"))
                return
            model.decode((token,))
            while not model.ready:
                yield False


class Reply:
    """What came back for one round."""

    def __init__(self):
        self.items, self.closed = [], False

    def put(self, item):
        assert not self.closed
        self.items.append(item)

    def close(self):
        self.closed = True


class Bench:
    """A scheduler, a clock that stands still unless it is told, and keys by number."""

    def __init__(self, model=None, limits=None, curve=((1, 1.0), (17, 2.0)), timer=lambda: 0.0):
        self.model = model or FakeModel()
        self.now = 0.0
        self.scheduler = Scheduler(
            self.model,
            VerifyCurve(curve, self.model.most_rows),
            limits or Limits(),
            name="fake",
            timer=timer,
            fingerprint="mine",
        )

    def ask(self, key, number, at, draft=(), *, prompt=None, limit=30, ids=(), run=True, wants=None, **more):
        opening = None if prompt is None else Opening([], ids=tuple(ids))
        order = (
            None
            if prompt is None
            else Order(
                lambda answer: FakeJob(answer, list(prompt), limit) if limit else None, 0, tuple(ids), wants
            )
        )
        wanted = Round(f"{key:032x}", number, at, tuple(draft), opening=opening, **more)
        asked = Asked(wanted, Reply(), self.now)
        self.scheduler.ask(asked, order, self.now)
        if run:
            self.run()
        return asked

    def run(self, most=10_000):
        for _ in range(most):
            if not self.scheduler.step(self.now):
                return
        raise AssertionError("it does not come to rest")

    def wait(self, seconds):
        self.now += seconds
        self.run()

    def verdict(self, *args, **more):
        asked = self.ask(*args, **more)
        assert asked.reply.closed
        (verdict,) = asked.reply.items
        return verdict

    def lost(self, asked):
        return isinstance(asked.reply.items[-1], AnswerLost)
