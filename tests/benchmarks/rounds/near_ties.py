"""How close two tokens came where an answer changed, and how much a window changes a model's numbers at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers.prompt_tokens import prompt_ids

from disco.endpoints.llamacpp.model.candidates import preselected
from disco.endpoints.llamacpp.model.sampler import Keyed, Sampler
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.request_params import read_params
from disco.request import Prefix, Request
from disco.speculate.coupled import gumbel_noise

__all__ = ["Difference", "Lab", "Noise"]

BATCH = 64  # as the verify server's
WINDOWS = (2, 5, 9)
Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Difference:
    """Where an answer first differs from the target's own, and what the target alone thinks there.

    Attributes:
        at: position in the answer.
        gap: between the two best keyed scores (at temperature 0: logits).
        between: what the token of the target alone has more than the other one; None where the sampler's chain (top-k,
            top-p, min-p) leaves one of the two out, or an answer ends there.
    """

    at: int
    gap: float
    between: float | None


@dataclass
class Noise:
    """By how much the distance between the two best logits changes when rows are computed otherwise."""

    changes: dict[str, list[float]]

    def summary(self) -> dict[str, dict[str, float]]:
        """Median, 99th percentile and maximum of the absolute changes, for each way."""
        out = {}
        for way, values in self.changes.items():
            sizes = np.abs(values)
            out[way] = {
                "positions": len(values),
                "median": float(np.median(sizes)),
                "p99": float(np.quantile(sizes, 0.99)),
                "max": float(sizes.max()),
            }
        return out

    @property
    def most(self) -> float:
        return max(abs(one) for values in self.changes.values() for one in values)


class Lab:
    """A target's model, computed alone here. Close it.

    Args:
        path: the model.
        slots: sequences.
        context: of each, tokens.
        batch: tokens of a prompt that are read at once, as the server reads them.
    """

    def __init__(self, path: Path, *, slots: int = 8, context: int = 512, batch: int = BATCH) -> None:
        self._batch = batch
        self.model = SequenceModel(
            path,
            slots=slots,
            context_tokens=context,
            threads=1,
            batch_tokens=batch,
            gpu_layers=0,
            keep_loading=lambda: True,
        )

    def close(self) -> None:
        self.model.close()

    def prompt(self, text: str) -> list[int]:
        return prompt_ids(self.model, [{"role": "user", "content": text}], "bench")

    def _read(self, slot: int, prompt: Sequence[int]) -> Floats:
        """Read a prompt as the server does; return the logits behind it."""
        model = self.model
        model.cut(slot, 0)
        place = 0
        for start in range(0, len(prompt), self._batch):
            part = list(prompt[start : start + self._batch])
            (place,) = model.compute([Rows(slot, start, part, len(part) - 1)])
            place += len(part) - 1
        return model.logits(place).copy()

    def difference(
        self, text: str, mine: Sequence[int], other: Sequence[int], *, temperature: float, seed: int
    ) -> Difference:
        """Compute the target-alone context up to the first token that differs, token by token, and look there."""
        at = next(
            (n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b),
            min(len(mine), len(other)),
        )
        prompt = self.prompt(text)
        logits = self._read(0, prompt)
        for place, token in enumerate(mine[:at]):
            (row,) = self.model.compute([Rows(0, len(prompt) + place, [token], 0)])
            logits = self.model.logits(row).copy()
        sampling = read_params(Request([], "", {"temperature": temperature}), Prefix(), endpoint="bench")
        with _Scores(self.model, sampling, (), keyed=Keyed(seed)) as sampler:
            ids, scores = sampler.scores(logits, seed, len(prompt) + at)
        best = np.sort(scores)[-2:]
        by_id = dict(zip(ids.tolist(), scores.tolist(), strict=True))
        pair = [by_id.get(one[at]) if at < len(one) else None for one in (mine, other)]
        gap = float(best[1] - best[0]) if len(best) > 1 else float("inf")
        return Difference(at, gap, None if None in pair else pair[0] - pair[1])

    def noise(self, answers: Sequence[tuple[str, Sequence[int]]]) -> Noise:
        """Compute answers one row at a time, then in windows, alone and beside each other; at most `slots` answers."""
        model = self.model
        answers = [(self.prompt(text), list(ids)) for text, ids in answers[: model.slots]]
        alone: list[list[tuple[int, int, float]]] = []  # the two best, and their distance
        for slot, (prompt, ids) in enumerate(answers):
            rows = [_best(self._read(slot, prompt))]
            for place, token in enumerate(ids[:-1]):
                (row,) = model.compute([Rows(slot, len(prompt) + place, [token], 0)])
                rows.append(_best(model.logits(row)))
            alone.append(rows)
        changes: dict[str, list[float]] = {}
        for size in WINDOWS:
            found = changes.setdefault(f"windows of {size} rows", [])
            for slot, (prompt, ids) in enumerate(answers):
                model.cut(slot, len(prompt))
                for start in range(0, len(ids) - 1, size):
                    part = ids[start : min(start + size, len(ids) - 1)]
                    (row,) = model.compute([Rows(slot, len(prompt) + start, part, 0)])
                    found += self._changes(row, start, part, alone[slot])
        shortest = min(len(ids) for _, ids in answers) - 1
        for size in (1, *WINDOWS):
            if size * len(answers) > 32:
                continue
            found = changes.setdefault(f"{len(answers)} answers, {size} rows each, in one pass", [])
            for slot, (prompt, _) in enumerate(answers):
                model.cut(slot, len(prompt))
            for start in range(0, shortest - size + 1, size):
                parts = [
                    Rows(slot, len(prompt) + start, ids[start : start + size], 0)
                    for slot, (prompt, ids) in enumerate(answers)
                ]
                for slot, row in enumerate(model.compute(parts)):
                    found += self._changes(row, start, parts[slot].ids, alone[slot])
        return Noise({way: values for way, values in changes.items() if values})

    def _changes(
        self, row: int, start: int, part: Sequence[int], alone: list[tuple[int, int, float]]
    ) -> list[float]:
        found = []
        for place in range(len(part)):
            logits = self.model.logits(row + place)
            first, second, distance = alone[start + place + 1]
            found.append(float(logits[first]) - float(logits[second]) - distance)
        return found


class _Scores(Sampler):
    """A sampler that says what it would choose from."""

    def scores(self, logits: Floats, seed: int, position: int) -> tuple[npt.NDArray[np.integer[Any]], Floats]:
        if self._greedy:
            return np.arange(len(logits)), logits.astype(np.float64)
        places = preselected(logits, None, self._highest) if self._highest else None
        ids = np.arange(len(logits)) if places is None else places
        left, scores, _ = self._candidates.apply(self._chain, ids, logits[ids])
        return left.copy(), scores.astype(np.float64) + gumbel_noise(seed, position, left)


def _best(logits: Floats) -> tuple[int, int, float]:
    two = np.argpartition(logits, -2)[-2:]
    second, first = sorted(two.tolist(), key=lambda token: float(logits[token]))
    return first, second, float(logits[first]) - float(logits[second])
