"""Sampling with keyed noise: the chosen token depends on the seed, the position and the scores, and on nothing else.

Gumbel noise is added to each candidate's score, and the highest sum wins. That is a sample from the softmax of the
scores (the Gumbel-max trick). The noise of a candidate is a hash of (seed, position, token id), so it is the same in
every process: whether a token was drafted, in which window and after which round trip, the target chooses the same
one. A drafter with the same noise guesses right more often than one with noise of its own.

Source: Maddison, Tarlow, Minka, "A* Sampling", NeurIPS 2014, for the trick. The mixing function is that of SplitMix64
(Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["SEEDS", "choose", "gumbel_noise"]

SEEDS: Final = 2**64
"""Seeds are integers from 0 to one less than this; others are taken modulo this."""

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_ONE_ULP: Final = 2.0**-53


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def gumbel_noise(seed: int, position: int, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise for each token.

    Args:
        seed: of the answer; any integer.
        position: how many tokens precede the place in the model's context; not negative.
        tokens: token ids, shape (n,).

    Returns:
        Shape (n,), finite.
    """
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2**64
        start = _mixed(np.array([seed % SEEDS], np.uint64) + _STEP)
        place = _mixed(start + np.array([position % SEEDS], np.uint64) * _STEP)
        mixed = _mixed(place + (tokens.astype(np.uint64) + np.uint64(1)) * _STEP)
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * _ONE_ULP  # inside (0, 1)
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def choose(
    seed: int, position: int, tokens: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]
) -> int:
    """Return the token whose score and noise have the highest sum: a sample from the softmax of the scores.

    Args:
        seed: see `gumbel_noise`.
        position: see `gumbel_noise`.
        tokens: the candidates' ids, shape (n,), n at least 1.
        scores: their logits, divided by the temperature, shape (n,); minus infinity for one that is ruled out.
    """
    return int(tokens[int(np.argmax(scores + gumbel_noise(seed, position, tokens)))])
