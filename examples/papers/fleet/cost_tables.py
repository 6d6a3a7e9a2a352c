"""The measured tables: piecewise linear curves over rows and bytes, and a grid for attention."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = [
    "AttentionTable",
    "Curve",
    "ModelShape",
    "attention_table",
    "layer_curves",
    "model_shapes",
    "reduce_curves",
]

_DATA: Final = files("papers.fleet").joinpath("data")


@dataclass(frozen=True, slots=True)
class Curve:
    """A piecewise linear function through measured points; beyond the last two, the line through them goes on.

    Attributes:
        x: rising.
        y: of the same length, at least 1. Below the first point the curve is constant.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """Return the curve through points (x, y), in any order."""
        ordered = sorted(points)
        return cls(tuple(x for x, _ in ordered), tuple(y for _, y in ordered))

    def at(self, x: float) -> float:
        """Return the value at `x`; never below 0."""
        xs, ys = self.x, self.y
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        place = min(bisect_right(xs, x), len(xs) - 1)
        share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
        return max(0.0, ys[place - 1] + share * (ys[place] - ys[place - 1]))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model: `linear_bytes` are the fp16 weights of all layers, `head_bytes` those of the output head."""

    layers: int
    hidden: int
    q_heads: int
    linear_bytes: int
    kv_bytes_per_token: int
    head_bytes: int


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """Attention of one model, seconds of a layer.

    Attributes:
        decode: for each number of sequences, seconds over the tokens cached per sequence.
        prefill: for each size of chunk, seconds over the tokens cached before it.
    """

    decode: tuple[tuple[int, Curve], ...]
    prefill: tuple[tuple[int, Curve], ...]

    def decode_s(self, sequences: int, kv_tokens: float) -> float:
        """Return the time of one layer; `kv_tokens` is the mean per sequence."""
        return _between(self.decode, sequences, kv_tokens)

    def prefill_s(self, chunk: int, kv_tokens: float) -> float:
        """Return the time of one layer for one chunk of a prompt, behind `kv_tokens`."""
        return _between(self.prefill, chunk, kv_tokens)


def _between(curves: Sequence[tuple[int, Curve]], key: float, x: float) -> float:
    """Interpolate between the two curves next to `key`."""
    place = max(1, min(bisect_right([each for each, _ in curves], key), len(curves) - 1))
    return Curve.through((each, curve.at(x)) for each, curve in curves[place - 1 : place + 1]).at(key)


def _rows(name: str) -> Iterable[Mapping[str, str]]:
    text = _DATA.joinpath(name).read_text(encoding="utf-8")
    return csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))


@cache
def layer_curves() -> Mapping[tuple[str, str, int], Curve]:
    """Return seconds of all layers without attention over the rows of a batch, by (hardware, model, GPUs)."""
    points = defaultdict(list)
    for row in _rows("linear.csv"):
        ms = float(row["linear_ms"]) + float(row["other_ms"])
        points[row["hardware"], row["model"], int(row["tp"])].append((float(row["rows"]), ms / 1000))
    return {key: Curve.through(each) for key, each in points.items()}


@cache
def reduce_curves() -> Mapping[tuple[str, int], Curve]:
    """Return seconds of one all-reduce over its bytes, by (node, GPUs)."""
    points = defaultdict(list)
    for row in _rows("all_reduce.csv"):
        points[row["node"], int(row["gpus"])].append((float(row["bytes"]), float(row["median_ms"]) / 1000))
    return {key: Curve.through(each) for key, each in points.items()}


@cache
def model_shapes() -> Mapping[str, ModelShape]:
    """Return the shapes of the models, by the names of the tables."""
    names = ("layers", "hidden", "q_heads", "linear_bytes", "kv_bytes_per_token", "head_bytes")
    return {row["model"]: ModelShape(*(int(row[name]) for name in names)) for row in _rows("models.csv")}


@cache
def attention_table(hardware: str, model: str, gpus: int) -> AttentionTable | None:
    """Return the table of attention, or None where there is none."""
    phases: dict[str, dict[int, list[tuple[float, float]]]] = {
        "decode": defaultdict(list),
        "prefill": defaultdict(list),
    }
    for row in _rows("attention.csv"):
        if (row["hardware"], row["model"], int(row["tp"])) == (hardware, model, gpus):
            key = int(row["batch"] if row["phase"] == "decode" else row["chunk"])
            phases[row["phase"]][key].append((float(row["kv"]), float(row["layer_ms"]) / 1000))
    if not phases["decode"]:
        return None
    decode, prefill = (
        tuple((key, Curve.through(points)) for key, points in sorted(phases[phase].items()))
        for phase in ("decode", "prefill")
    )
    return AttentionTable(decode, prefill)
