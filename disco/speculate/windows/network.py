"""The network of the paper's adaptive window control (AWC): five inputs, two residual blocks, one output.

The paper does not give its width. A block is `h + W2 silu(W1 h + b1) + b2`; before the blocks comes a linear layer
with SiLU, behind them a linear layer with one output. The inputs are scaled by means and deviations that are part of
the weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from disco.errors import ConfigurationError
from disco.speculate.seen import Seen

__all__ = ["INPUTS", "Block", "Network", "inputs_of"]

INPUTS: Final = ("utilisation", "acceptance", "round_trip_ms", "token_ms", "last_window")
"""The paper's features q, alpha_r, RTT_r, TPOT_r and gamma_prev, in this order."""

_Array: TypeAlias = npt.NDArray[np.float64]


def inputs_of(seen: Seen) -> tuple[float, float, float, float, float]:
    """Return the network's inputs for what was `seen`, unscaled, in the order of `INPUTS`."""
    window = float(seen.last_window)
    return seen.utilisation, seen.acceptance, 1e3 * seen.round_trip_s, 1e3 * seen.token_s, window


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of a residual block: `w1`, `w2` of shape (width, width), `b1`, `b2` of shape (width,)."""

    w1: _Array
    b1: _Array
    w2: _Array
    b2: _Array


@dataclass(frozen=True, slots=True)
class Network:
    """Weights, and the forward pass.

    Attributes:
        mean, scale: of the inputs, shape (5,); an input counts as (input - mean) / scale.
        w_in, b_in: shapes (width, 5), (width,).
        blocks: the residual blocks; the paper has two.
        w_out, b_out: shape (width,), and a number.
    """

    mean: _Array
    scale: _Array
    w_in: _Array
    b_in: _Array
    blocks: tuple[Block, ...]
    w_out: _Array
    b_out: float

    def __call__(self, inputs: Sequence[float] | _Array) -> _Array:
        """Return the window that the network asks for, not rounded and not clamped.

        Args:
            inputs: unscaled, shape (5,) or (n, 5).

        Returns:
            Shape () or (n,).
        """
        hidden = _silu((np.asarray(inputs, np.float64) - self.mean) / self.scale @ self.w_in.T + self.b_in)
        for block in self.blocks:
            hidden = hidden + _silu(hidden @ block.w1.T + block.b1) @ block.w2.T + block.b2
        output: _Array = hidden @ self.w_out + self.b_out
        return output

    def to_json(self) -> str:
        """Return the weights as a JSON text that `from_json` reads."""
        blocks = [
            {name: getattr(block, name).tolist() for name in ("w1", "b1", "w2", "b2")}
            for block in self.blocks
        ]
        content = {"inputs": list(INPUTS), "blocks": blocks, "b_out": float(self.b_out)}
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "scale", "w_in", "b_in", "w_out")}
        return json.dumps(content | arrays)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read weights from a JSON `text`; fields that are not known (how they were trained, say) are passed over.

        Raises:
            ConfigurationError: they are not weights of such a network.
        """
        try:
            return cls._read(json.loads(text))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"these are not weights of the adaptive window's network ({type(error).__name__}: {error})"
            ) from error

    @classmethod
    def _read(cls, content: Mapping[str, Any]) -> Self:
        if list(content["inputs"]) != list(INPUTS):
            raise ValueError(f"its inputs are {content['inputs']}, not {list(INPUTS)}")
        width = len(content["b_in"])
        network = cls(
            mean=_array(content["mean"], len(INPUTS)),
            scale=_array(content["scale"], len(INPUTS)),
            w_in=_array(content["w_in"], width, len(INPUTS)),
            b_in=_array(content["b_in"], width),
            blocks=tuple(
                Block(
                    w1=_array(block["w1"], width, width),
                    b1=_array(block["b1"], width),
                    w2=_array(block["w2"], width, width),
                    b2=_array(block["b2"], width),
                )
                for block in content["blocks"]
            ),
            w_out=_array(content["w_out"], width),
            b_out=float(_array([content["b_out"]], 1)[0]),
        )
        if not (network.scale > 0).all():
            raise ValueError("a scale is not positive")
        return network


def _array(values: Any, *shape: int) -> _Array:
    array = np.asarray(values, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"numbers of shape {array.shape} where finite ones of shape {shape} belong")
    return array


def _silu(values: _Array) -> _Array:
    # By tanh, which cannot overflow: x sigmoid(x) = x/2 (1 + tanh(x/2)).
    half = values * 0.5
    silu: _Array = half * (1.0 + np.tanh(half))
    return silu
