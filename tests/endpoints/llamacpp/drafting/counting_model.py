"""A model that only counts, and the sampler that goes with it."""

from __future__ import annotations

from typing import ClassVar

from disco.endpoints.llamacpp.model.batch_costs import BatchCosts

VOCABULARY, CONTEXT, END = 50, 200, 0


def next_token(tokens):
    """What the model writes behind these tokens."""
    return hash(tuple(tokens)) % (VOCABULARY - 1) + 1


def written(tokens, count):
    tokens = list(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tuple(tokens[len(tokens) - count :])


class Model:
    """A cache as a job sees it; it computes at once. Mutable: `computed`, tokens of each call of `decode`."""

    batch_tokens, context_tokens, vocabulary_tokens = 8, CONTEXT, VOCABULARY
    ready, took_s = True, 0.0

    def __init__(self):
        self.batch_costs = BatchCosts(self.batch_tokens)
        self.cached, self.fresh, self.computed = [], False, []
        self.on_decode = lambda: None

    @property
    def length(self):
        return len(self.cached)

    def prepare(self, ids):
        pass

    def reuse(self, ids):
        shared = next((n for n, (a, b) in enumerate(zip(self.cached, ids, strict=False)) if a != b), None)
        shared = min(len(self.cached), len(ids)) if shared is None else shared
        if shared == len(ids) and not (self.fresh and len(self.cached) == shared):
            shared -= 1
        return self.keep(shared)

    def keep(self, length):
        self.fresh = self.fresh and length == len(self.cached)
        del self.cached[length:]
        return length

    def decode(self, ids):
        assert 0 < len(ids) <= self.batch_tokens
        assert len(self.cached) + len(ids) <= CONTEXT
        self.on_decode()
        self.cached += ids
        self.computed.append(len(ids))
        self.fresh = True

    def ends_answer(self, token):
        return token == END


class Sampler:
    """Chooses what `next_token` says, if the model has computed just what comes before."""

    open: ClassVar = set()  # those that were not closed

    def __init__(self, model, sampling, seed):
        self.model, self.settled, self.seed = model, None, seed
        Sampler.open.add(self)

    def settle(self, answer):
        self.settled = list(answer)

    def draft(self, position):
        assert self.model.fresh
        assert position == self.model.length
        return self.model.special.get(position, next_token(self.model.cached))

    def top_probability(self):
        return self.model.sure.get(self.model.length, 1.0)

    def close(self):
        Sampler.open.discard(self)


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
