"""Whether a full batch is read sooner than a few tokens: measured, because it depends on the model and the machine."""

from __future__ import annotations

__all__ = ["BatchCosts"]

_NEW_WEIGHT = 0.3
_FEWEST = 8  # of fewer tokens, the time says more about the overhead of a batch


class BatchCosts:
    """How long one model's batches take on this machine. Mutable: both tables.

    llama.cpp computes fewer tokens than its fast kernels take at once with slower ones: on a processor with flash
    attention, fewer than 64. At a depth of 1,500 tokens, 40 tokens of SmolLM2-135M take five times as long as 64; of a
    model with billions of weights they take less. Times are kept by the powers of two of batch and depth.

    Args:
        batch_tokens: of a full batch.
    """

    def __init__(self, batch_tokens: int) -> None:
        self._batch_tokens = batch_tokens
        self._full_s: dict[int, float] = {}
        self._token_s: dict[tuple[int, int], float] = {}

    def took(self, tokens: int, depth: int, seconds: float) -> None:
        """Store how long a batch took behind `depth` tokens."""
        if tokens == self._batch_tokens:
            known = self._full_s.get(depth.bit_length(), seconds)
            self._full_s[depth.bit_length()] = known + _NEW_WEIGHT * (seconds - known)
        elif tokens < self._batch_tokens:
            key, each_s = (tokens.bit_length(), depth.bit_length()), seconds / tokens
            known = self._token_s.get(key, each_s)
            self._token_s[key] = known + _NEW_WEIGHT * (each_s - known)

    def fills_up(self, tokens: int, depth: int) -> bool:
        """Return whether `tokens` behind `depth` are read sooner as a part of a full batch. False where not known.

        Where no batch of a size was measured there, those at a smaller depth, and with fewer tokens, stand for it.
        """
        depths = range(depth.bit_length(), -1, -1)
        sizes = range(tokens.bit_length(), _FEWEST.bit_length() - 1, -1)
        full = (self._full_s[at] for at in depths if at in self._full_s)
        each = (self._token_s[size, at] for at in depths for size in sizes if (size, at) in self._token_s)
        full_s, each_s = next(full, None), next(each, None)
        return full_s is not None and each_s is not None and tokens * each_s > full_s
