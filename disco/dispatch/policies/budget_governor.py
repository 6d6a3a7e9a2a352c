"""Keeps a policy's budget in every window of requests, whatever comes: the share used is at most `b` plus one prompt.

A plan keeps its budget on average, for the distributions it was made for. This rule keeps it for any prompts in any
order, any times of the server, and any plans, also while they change. It refuses the limited endpoint to a request
only if what could come next would make a window of `W` requests exceed the budget. So nothing is overspent first and
saved later, and no rule that keeps the promise refuses less.

**The rule.** Let a request of `l` tokens count `x = l·(u − b)`, where `u` is 1 if the limited endpoint was started on
it, else 0. A request may use the limited endpoint if, for each number `k <= W` of the newest requests, itself included
and counted as used,

    sum of their x  <=  the longest of them  +  b · (W − k) · least,

where `least` is a number of tokens that no prompt is shorter than.

**Proof.** Take any `W` successive requests. Let the last of them that used the endpoint be the `k`-th. When it was
admitted, the sum of x over the first `k` was within the rule's limit, with requests whose outcome was still open
counted as used; so the sum of what they did use is, too. Each of the `W − k` requests after it used nothing, and counts
`−b·l <= −b·least`. So the sum over all `W` is at most the longest of the first `k`: the tokens used are at most `b` of
all tokens of the window plus its longest prompt. **Nothing less is enough:** if the sum of some `k` exceeds the limit,
`W − k` prompts of `least` tokens complete a window that breaks the promise, even if none of them uses the endpoint.

**Tightening.** A refusal hits whichever request comes when there is no room, as likely the one that needs the endpoint
most. So plans follow the room before that: with little room left, a policy plans with less than its budget, with much
room, with more (`level_at`). Then few requests are refused, and what one request was refused is not lost to the next.

The promise covers what a policy starts, and what starts because an endpoint is silent. An endpoint that takes over
after a failure, writes while a model is loaded, or starts because the device has other answers to write first, is
counted, and never refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["WINDOW_REQUESTS", "BudgetGovernor", "Room", "level_at"]

WINDOW_REQUESTS: Final = 200
_ROUNDING: Final = 1e-9  # of the longest prompt
_USUAL_SHARE: Final = 0.65  # of the room, while requests use just their budget
# Few levels: a policy makes a plan for each.
_LEVELS: Final = (0.5, 0.75, 1.0, 1.25)


class Room(NamedTuple):
    """What the budget leaves for a request.

    Attributes:
        admits: whether the request may use the limited endpoint.
        share: how much room there is in the tightest window, in its longest prompts: 0 none, 1 a prompt.
    """

    admits: bool
    share: float


def level_at(share: float) -> float:
    """Return the multiple of its budget that a policy plans with where there is this much room (`Room.share`)."""
    wanted = 1.0 + share - _USUAL_SHARE
    return min(_LEVELS, key=lambda level: abs(level - wanted))


class BudgetGovernor:
    """The newest requests of one policy, and what room they leave for the next one.

    Requests may run at the same time: one whose outcome is open counts as used until `settle`.

    Mutable: `_tokens`, `_net` (of each request, the newest at `_at`, older ones behind it), `_at`, `_ticket`.
    """

    __slots__ = ("_at", "_budget", "_net", "_slack", "_ticket", "_tokens", "_window")

    def __init__(self, budget: float, *, window: int = WINDOW_REQUESTS, least_tokens: int = 1) -> None:
        """Begin without requests.

        Args:
            budget: share b in [0, 1] of the prompt tokens of any window that the limited endpoint may process.
            window: W, in requests.
            least_tokens: no prompt has fewer tokens; the longer prompts are at least, the less is refused.

        Raises:
            ValueError: a number out of range.
        """
        if not 0.0 <= budget <= 1.0 or window < 1 or least_tokens < 1:
            raise ValueError(
                f"a budget is a share, and window and least_tokens at least 1, not {budget}, {window}, {least_tokens}"
            )
        self._budget = budget
        self._window = window
        self._slack: NDArray[np.float64] = budget * least_tokens * np.arange(window - 1, -1, -1.0)
        # Requests are written from the end of the arrays towards their beginning, then moved to the end again.
        self._tokens: NDArray[np.float64] = np.zeros(8 * window)
        self._net: NDArray[np.float64] = np.zeros(8 * window)
        self._at = 8 * window
        self._ticket = 0

    def room_for(self, tokens: int) -> Room:
        """Return the room for a request of `tokens` prompt tokens (at least `least_tokens`) that comes now."""
        self._make_room()
        at = self._at - 1
        self._tokens[at] = tokens
        self._net[at] = -self._budget * tokens
        rows = slice(at, min(at + self._window, self._tokens.size))
        longest = np.maximum.accumulate(self._tokens[rows])
        left = longest - self._net[rows].cumsum()
        left += self._slack[: left.size]
        admits = float(left.min()) >= tokens - _ROUNDING * float(longest[-1])
        left /= longest
        return Room(admits, float(left.min()))

    def add(self, tokens: int, *, used: bool) -> int:
        """Count a request; return its ticket.

        Args:
            tokens: of its prompt, at least `least_tokens`.
            used: whether the limited endpoint is started on it, or may be.
        """
        self._make_room()
        self._at -= 1
        self._tokens[self._at] = tokens
        self._net[self._at] = tokens * (used - self._budget)
        self._ticket += 1
        return self._ticket

    def settle(self, ticket: int, *, used: bool) -> None:
        """Say whether the limited endpoint was started on a request in the end; ignored when it left the window."""
        row = self._at + self._ticket - ticket
        if self._at <= row < self._tokens.size:
            self._net[row] = self._tokens[row] * (used - self._budget)

    def counts(self, ticket: int) -> bool:
        """Whether a request is still among the newest `window` ones."""
        return self._ticket - ticket < self._window

    def _make_room(self) -> None:
        if self._at == 0:
            kept = self._window
            self._tokens[-kept:], self._net[-kept:] = self._tokens[:kept], self._net[:kept]
            self._at = self._tokens.size - kept
