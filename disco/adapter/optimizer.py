"""The optimizers of the training: Adam, and Muon for the matrices.

Source of Muon: K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024: the momentum's
singular values are all made about 1 by five Newton-Schulz steps before it is applied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Muon", "make_optimizers"]

_MOMENTUM = 0.95
_STEPS = 5


class Muon(torch.optim.Optimizer):  # type: ignore[misc] # torch is not read
    """Muon with Nesterov momentum, for parameters with two axes."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        """Apply the gradients."""
        del closure
        with torch.no_grad():
            for group in self.param_groups:
                for one in group["params"]:
                    momentum = self.state[one].setdefault("momentum", torch.zeros_like(one))
                    momentum.lerp_(one.grad, 1 - _MOMENTUM)
                    update = _orthogonal(one.grad.lerp(momentum, _MOMENTUM))
                    # The scale at which an update is as large as Adam's.
                    one.add_(update, alpha=-group["lr"] * 0.2 * max(one.shape) ** 0.5)


def _orthogonal(matrix: Tensor) -> Tensor:
    a, b, c = 3.4445, -4.7750, 2.0315
    made = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    made = made / (made.norm() + 1e-7)
    for _ in range(_STEPS):
        square = made @ made.T
        made = a * made + (b * square + c * square @ square) @ made
    return made.T if matrix.shape[0] > matrix.shape[1] else made


def make_optimizers(layer: nn.Module, rate: float, matrix_rate: float | None) -> list[torch.optim.Optimizer]:
    """Return Adam for all parameters, or for all but the matrices, which then have Muon."""
    parameters = list(layer.parameters())
    matrices = [one for one in parameters if one.ndim == 2 and matrix_rate is not None]
    others = [one for one in parameters if not any(one is other for other in matrices)]
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    if matrices and matrix_rate is not None:
        made.append(Muon(matrices, matrix_rate))
    return made
