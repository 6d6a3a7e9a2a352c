"""What a check knows of the endpoint that it is run on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from disco.endpoints.contract import Endpoint
from disco.testing.stopwatch import CPU_S, WITHIN_S, cpu_s

__all__ = ["Check", "Subject"]


@dataclass(frozen=True)
class Subject:
    """What is known of an endpoint under test.

    Attributes:
        context_tokens: its context, prompt and answer together, tokens.
        exact: the text is the same whatever was asked before: no floating-point arithmetic is involved.
        prompt_s: how much work a cancelled attempt may still make, s of processor time.
        within_s: how long it may go on, s, with room for a busy machine.
        work_s: returns the processor time used so far, s; that of other processes counts where it adds theirs.
        long_tokens: length of a prompt that takes long enough to be cancelled before the first word, tokens.
        slots: how many attempts it serves at once.
        limits: what the server behind the endpoint gets wrong, or does not have: "max_completion_tokens" (it ignores
            that name), "context" (a prompt too long for it is an empty stream), "no context" (no prompt is too long).
    """

    context_tokens: int = 2048
    exact: bool = False
    prompt_s: float = CPU_S
    within_s: float = WITHIN_S
    work_s: Callable[[], float] = cpu_s
    long_tokens: int = 1400
    slots: int = 1
    limits: frozenset[str] = frozenset()


class Check(Protocol):
    """One part of the contract: an async function that raises AssertionError where it is not kept."""

    __name__: str

    def __call__(self, subject: Subject, endpoint: Endpoint) -> Awaitable[None]:
        """Check an endpoint that is idle."""
        ...
