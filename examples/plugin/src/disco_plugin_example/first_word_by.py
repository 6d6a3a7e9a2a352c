"""The policy "first_word_by": the first word comes within a target time, and the server is asked only where it must be.

The device starts every answer. Where its own first word would come later than the target, the server is asked as well,
and as late as still meets the target with probability `sure`. Where it would come in time, the server is asked only
once the target has passed without a word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disco.dispatch import Candidate, Delays, Features, Start
from disco.profiles import Empirical, Lengths

__all__ = ["FirstWordBy"]


class FirstWordBy:
    """The first word within `target_s`. Mutable: `_rescue_s`, when the server starts to rescue the target, s."""

    name = "first_word_by"

    def __init__(
        self, *, ttft: Empirical, device: Candidate, target_s: float = 1.0, sure: float = 0.9
    ) -> None:
        """Make the policy.

        Args:
            ttft: the server's time to first token, s. disco gives it, and `device`, because they are named here.
            device: the device as it is known now.
            target_s: by when the first word has to come, s, above 0. An option of the user's.
            sure: how probably a server that is asked as late as possible is in time, in (0, 1). Another option.

        Raises:
            ValueError: an option is out of range.
        """
        if not 0.0 < target_s < float("inf"):
            raise ValueError(f"target_s is a time above 0, in seconds, not {target_s}")
        if not 0.0 < sure < 1.0:
            raise ValueError(f"sure is a probability above 0 and below 1, not {sure}")
        self._target_s, self._sure, self._device = target_s, sure, device
        self._rescue_s = 0.0
        self._plan(ttft)

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Plan again with what disco has measured since; called only because it exists."""
        del lengths
        self._plan(ttft)

    def _plan(self, ttft: Empirical) -> None:
        self._rescue_s = max(0.0, self._target_s - float(ttft.quantile(self._sure)))

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        """Return who starts when, for one request."""
        if device is None or server is None:
            only = device or server
            if only is None:
                raise ValueError("a policy needs a device or a server")
            return (Start(only.name),)
        in_time = device.time_to_first_token_s(features.prompt_tokens) <= self._target_s
        return Start(device.name), Start(server.name, self._target_s if in_time else self._rescue_s)

    def delays(self, prompt_tokens: NDArray[np.int64]) -> Delays:
        """Return the same for many requests at once: optional, and makes a replay of millions of requests quick."""
        device = self._device
        ready_s = device.queue_s + device.load_s + device.overhead_s
        in_time = ready_s + prompt_tokens / device.prefill_tps <= self._target_s
        return Delays(np.zeros(prompt_tokens.size), np.where(in_time, self._target_s, self._rescue_s))
