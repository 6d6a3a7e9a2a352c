"""Trains the network: L1 loss and AdamW as in the paper, gradients by hand, NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from disco.speculate import INPUTS, Block, Network

__all__ = ["Parameters", "gradients", "initial", "network_from", "train"]

_Array: TypeAlias = npt.NDArray[np.float64]
Parameters: TypeAlias = dict[str, _Array]
"""Weights by name: "w_in", "b_in", "w1.0", "b1.0", "w2.0", "b2.0", "w1.1", ..., "w_out", "b_out" of shape (1,)."""

_BLOCKS: Final = 2
_DECAY: Final = 1e-4
_BETAS: Final = (0.9, 0.999)


def initial(width: int, seed: int, mean_label: float) -> Parameters:
    """Return random weights; the output begins near the mean of the labels."""
    rng = np.random.default_rng(seed)

    def drawn(rows: int, columns: int, scale: float = 1.0) -> _Array:
        return rng.normal(0, scale / np.sqrt(columns), (rows, columns))

    weights = {"w_in": drawn(width, len(INPUTS)), "b_in": np.zeros(width)}
    for block in range(_BLOCKS):
        weights |= {f"w1.{block}": drawn(width, width), f"b1.{block}": np.zeros(width)}
        weights |= {f"w2.{block}": drawn(width, width, 0.5), f"b2.{block}": np.zeros(width)}
    return weights | {"w_out": drawn(1, width)[0], "b_out": np.array([mean_label])}


def gradients(weights: Parameters, inputs: _Array, labels: _Array) -> tuple[float, Parameters]:
    """Return the mean absolute error, and its gradient by every weight.

    Args:
        weights: see `Parameters`.
        inputs: scaled, shape (n, 5).
        labels: shape (n,).
    """
    before_in = inputs @ weights["w_in"].T + weights["b_in"]
    hidden, slope_in = _silu(before_in)
    kept = []
    for block in range(_BLOCKS):
        inner, slope = _silu(hidden @ weights[f"w1.{block}"].T + weights[f"b1.{block}"])
        kept.append((hidden, inner, slope))
        hidden = hidden + inner @ weights[f"w2.{block}"].T + weights[f"b2.{block}"]
    error = hidden @ weights["w_out"] + weights["b_out"][0] - labels
    by_output = np.sign(error) / len(labels)
    found = {"w_out": by_output @ hidden, "b_out": np.array([by_output.sum()])}
    by_hidden = np.outer(by_output, weights["w_out"])
    for block in reversed(range(_BLOCKS)):
        entered, inner, slope = kept[block]
        found |= {f"w2.{block}": by_hidden.T @ inner, f"b2.{block}": by_hidden.sum(0)}
        by_inner = by_hidden @ weights[f"w2.{block}"] * slope
        found |= {f"w1.{block}": by_inner.T @ entered, f"b1.{block}": by_inner.sum(0)}
        by_hidden = by_hidden + by_inner @ weights[f"w1.{block}"]
    by_hidden = by_hidden * slope_in
    found |= {"w_in": by_hidden.T @ inputs, "b_in": by_hidden.sum(0)}
    return float(np.abs(error).mean()), found


def _silu(values: _Array) -> tuple[_Array, _Array]:
    """Return silu, and its derivative."""
    gate = 0.5 * (1.0 + np.tanh(0.5 * values))
    return values * gate, gate * (1.0 + values * (1.0 - gate))


def train(
    inputs: _Array,
    labels: _Array,
    *,
    width: int,
    epochs: int = 100,
    seed: int = 0,
    rate: float = 3e-3,
    batch: int = 512,
    progress: Callable[[int, int], None] | None = None,
) -> Network:
    """Return a trained network.

    The rate falls to zero along a cosine. No row is held out here: whoever judges the network keeps whole fleets back.

    Args:
        inputs: not scaled, shape (n, 5).
        labels: shape (n,).
        width: of the hidden layers.
        epochs: passes over all rows.
        seed: of the weights and the order of rows.
        rate: of AdamW at the beginning.
        batch: rows of a step.
        progress: called after each epoch.
    """
    mean, scale = inputs.mean(0), np.maximum(inputs.std(0), 1e-6)
    scaled = (inputs - mean) / scale
    weights = initial(width, seed, float(labels.mean()))
    first = {name: np.zeros_like(values) for name, values in weights.items()}
    second = {name: np.zeros_like(values) for name, values in weights.items()}
    rng = np.random.default_rng(seed + 1)
    steps = epochs * -(-len(labels) // batch)
    step = 0
    for epoch in range(epochs):
        order = rng.permutation(len(labels))
        for begin in range(0, len(order), batch):
            chosen = order[begin : begin + batch]
            _, slopes = gradients(weights, scaled[chosen], labels[chosen])
            now = rate * 0.5 * (1 + np.cos(np.pi * step / steps))
            step += 1
            for name, slope in slopes.items():
                first[name] += (1 - _BETAS[0]) * (slope - first[name])
                second[name] += (1 - _BETAS[1]) * (slope**2 - second[name])
                move = first[name] / (1 - _BETAS[0] ** step)
                size = np.sqrt(second[name] / (1 - _BETAS[1] ** step)) + 1e-8
                decay = _DECAY * weights[name] if name.startswith("w") else 0.0
                weights[name] -= now * (move / size + decay)
        if progress is not None:
            progress(epoch + 1, epochs)
    return network_from(weights, mean, scale)


def network_from(weights: Parameters, mean: _Array, scale: _Array, decimals: int = 4) -> Network:
    """Return the network of weights, rounded: more digits change no window, and the file is small."""

    def rounded(values: Any) -> _Array:
        found: _Array = np.round(values, decimals)
        return found

    blocks = (
        Block(**{part: rounded(weights[f"{part}.{block}"]) for part in ("w1", "b1", "w2", "b2")})
        for block in range(_BLOCKS)
    )
    return Network(
        mean=rounded(mean),
        scale=rounded(scale),
        w_in=rounded(weights["w_in"]),
        b_in=rounded(weights["b_in"]),
        blocks=tuple(blocks),
        w_out=rounded(weights["w_out"]),
        b_out=float(rounded(weights["b_out"])[0]),
    )
