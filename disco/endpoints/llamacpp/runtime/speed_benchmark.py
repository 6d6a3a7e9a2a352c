"""Measures how fast this machine runs the model: the numbers that a device profile is fitted on."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.runtime.energy_counter import EnergyCounter
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready

__all__ = ["DecodeRate", "Measurement", "MeasurementJob", "PrefillTime", "joules", "joules_since"]


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The time, `seconds_s`, from `tokens` of prompt to the first token's logits, with nothing in the cache.

    `energy_j` is what the machine's processors took meanwhile, J; None where the platform does not count it.
    """

    tokens: int
    seconds_s: float
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class DecodeRate:
    """The decode rate, `tps` tokens per second, behind `depth_tokens` tokens of context.

    `j_per_token` is what the machine's processors took for each token, J; None where the platform does not count it.
    """

    depth_tokens: int
    tps: float
    j_per_token: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of a measurement, and its settings.

    Attributes:
        load_s: time to load the model; whether the system's cache held the file is not controlled.
        prefill, decode: one entry per length and repetition, in the order they were measured.
        context_tokens: the model's context.
        threads: number of threads of llama.cpp.
        batch_tokens: prompt tokens computed in one go.
    """

    load_s: float
    prefill: tuple[PrefillTime, ...]
    decode: tuple[DecodeRate, ...]
    context_tokens: int
    threads: int
    batch_tokens: int


class MeasurementJob(Stepwise):
    """Prefill and decode made-up tokens. Reports `(done, total)` after each step, then a `Measurement`.

    Lengths that do not fit the context are left out. It begins when no other answer is computed, and while it runs,
    others wait: beside them it would measure them.
    """

    alone = True

    def __init__(
        self,
        mail: Outbox,
        *,
        prompt_tokens: Sequence[int],
        depths: Sequence[int],
        decode_tokens: int,
        repeats: int,
    ) -> None:
        super().__init__(mail)
        self._prompt_tokens = tuple(prompt_tokens)
        self._depths = tuple(depths)
        self._decode_tokens = decode_tokens
        self._repeats = repeats

    def steps(self, model: AnswerModel) -> Generator[None]:
        lengths = [n for n in self._prompt_tokens if 0 < n <= model.context_tokens]
        depths = [n for n in self._depths if 0 < n <= model.context_tokens - self._decode_tokens]
        total = (len(lengths) + len(depths)) * self._repeats
        # The time does not depend on which tokens these are; they are still the same each time.
        ids = np.random.default_rng(0).integers(0, model.vocabulary_tokens, model.context_tokens).tolist()
        prefill: list[PrefillTime] = []
        decode: list[DecodeRate] = []
        counter = EnergyCounter.find()
        for _ in range(self._repeats):
            for length in lengths:
                before_j = joules(counter)
                took_s = yield from self._prefill(model, ids[:length])
                prefill.append(PrefillTime(length, took_s, joules_since(counter, before_j)))
                self.mail.put((len(prefill) + len(decode), total))
            for depth in depths:
                yield from self._prefill(model, ids[:depth])
                before_j = joules(counter)
                tps = yield from self._decode(model, ids[depth:])
                took_j = joules_since(counter, before_j)
                each_j = None if took_j is None else took_j / self._decode_tokens
                decode.append(DecodeRate(depth, tps, each_j))
                self.mail.put((len(prefill) + len(decode), total))
        model.keep(0)
        self.mail.put(
            Measurement(
                load_s=model.load_s,
                prefill=tuple(prefill),
                decode=tuple(decode),
                context_tokens=model.context_tokens,
                threads=model.threads,
                batch_tokens=model.batch_tokens,
            )
        )

    def _prefill(self, model: AnswerModel, ids: list[int]) -> Generator[None, None, float]:
        model.prepare(ids)
        yield from when_ready(model)
        model.keep(0)
        began_at = time.perf_counter()
        for at in range(0, len(ids), model.batch_tokens):
            self.check()
            model.decode(ids[at : at + model.batch_tokens])
            yield from when_ready(model)
        model.logits()
        return time.perf_counter() - began_at

    def _decode(self, model: AnswerModel, ids: list[int]) -> Generator[None, None, float]:
        began_at = time.perf_counter()
        for token in ids[: self._decode_tokens]:
            self.check()
            model.decode((token,))
            yield from when_ready(model)
            model.logits()
        return self._decode_tokens / (time.perf_counter() - began_at)


def joules(counter: EnergyCounter | None) -> float | None:
    """Return the energy counted so far, J; None where it cannot be read."""
    try:
        return None if counter is None else counter.joules()
    except (OSError, ValueError):  # the counter is gone, or may not be read any more
        return None


def joules_since(counter: EnergyCounter | None, before_j: float | None) -> float | None:
    """Return the energy since `before_j`, J; None where either cannot be read."""
    now_j = joules(counter)
    return None if now_j is None or before_j is None else now_j - before_j
