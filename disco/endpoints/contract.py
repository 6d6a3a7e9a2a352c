"""The contract every endpoint keeps: open an attempt, stream its events, stop it promptly.

The conformance suite (`tests/endpoints/test_conformance.py`) is this page as code; it runs on the
simulated endpoint, on llama.cpp and on a real HTTP server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from disco.events import Delta, Ended, Parked, SeamReport, Started, Traffic, Usage
from disco.plan import Place, Reach
from disco.request import Prefix, Request

__all__ = ["Attempt", "Capabilities", "Endpoint", "Event", "Progress"]

Event = list[Delta] | Started | Parked | Ended
"""What an attempt yields: batches of deltas, and what becomes of its work."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt's prefill has come.

    Attributes:
        tokens_done: prompt and prefix tokens that are read, cached ones included.
        tokens_total: how many there are.
        prefill_tps: how fast they were read so far, tokens/s; 0 before any was.
    """

    tokens_done: int
    tokens_total: int
    prefill_tps: float


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an endpoint can do, as far as is *known*: detected or configured, never assumed.

    Attributes:
        continues: it can continue a half-written answer (see `endpoints/continuation`).
        context_tokens: prompt and answer together; None when unknown (no limit is then enforced).
        features: request features it serves: "tools", "json_schema", "images", "audio", "logprobs",
            "n", "reasoning", "logit_bias". Plain text needs none. None means everything is passed on
            and the server decides.
        vocabulary: fingerprint of its tokenizer, or None when unknown.
        ready: it can start now; False while a model still has to be loaded.
        parks: an attempt can finish its prefill and keep it without writing (`Attempt.park`).
        follows: a parked attempt can be told more text and stay parked (`Attempt.follow`).
        announces: attempts say when their work begins (`events.Started`); until then they wait for their turn.
        waiting: requests that would be served before a new one; None where it does not say.
        logp: attempts can be asked for log probabilities for disco's own use ("logp" among their wants).
    """

    continues: bool = False
    context_tokens: int | None = None
    features: frozenset[str] | None = frozenset()
    vocabulary: str | None = None
    ready: bool = True
    parks: bool = False
    follows: bool = False
    announces: bool = False
    waiting: int | None = None
    logp: bool = False


class Attempt(ABC):
    """One endpoint's try at (the rest of) one answer. An async iterator of events, the last of them `Ended`.

    Iterating starts the work. `Started` comes first where the endpoint says when an attempt's turn has come
    (`Capabilities.announces`). A batch is a non-empty list of deltas, in order, that arrived together.
    After `Ended`, a failure or `aclose()` the iterator stops (StopAsyncIteration).
    Failure raises `EndpointFailure`; cancelling the iterating task, or
    `aclose()`, stops the work promptly: connection closed, decoding stopped within one token, prefill
    within 100 ms. `aclose()` is idempotent and returns only when nothing of the attempt is running.
    """

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Event: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """What has been processed so far: the best known figure, exact after `Ended` with usage.

        This is what a cancelled attempt is charged for, so it counts prompt tokens from the moment
        they are (or, for a server, must be assumed to be) processed.
        """

    def park(self) -> bool:
        """Ask to finish the prompt's prefill, keep it, and end with `Ended("parked")` without writing.

        Returns False where that makes no sense (a server); the caller then cancels instead.
        """
        return False

    def follow(self) -> bool:
        """Ask to finish the prompt's prefill and stay as a warm follower: it never writes.

        `Parked` comes each time all that it was given is read; then it waits for `extend`, or for its end
        (`aclose`). Returns False where the endpoint cannot (`Capabilities.follows`); nothing has changed then.
        """
        return False

    def extend(self, prefix: Prefix) -> bool:
        """Tell a follower that the answer so far is now `prefix`: it reads what is new and stays parked.

        Returns False where it is no follower, or is over; the caller then does without.
        """
        del prefix
        return False

    @property
    def progress(self) -> Progress | None:
        """How far its prefill is; None where the endpoint does not know."""
        return None

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received for it so far."""
        return Traffic()

    @property
    def seam(self) -> SeamReport | None:
        """What became of the place where it went on with an answer; None for one from the beginning."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Endpoint(ABC):
    """Something that generates: a device model or a server model.

    Attributes:
        name: unique within one client; what plans, ledger and records call it.
        place: "device" when the prompt does not leave this machine, else "server".
    """

    name: str
    place: Place

    @property
    def reach(self) -> Reach:
        """How far the prompt travels; an endpoint on another machine of the user's says "own" here."""
        return "device" if self.place == "device" else "any"

    @abstractmethod
    def capabilities(self, model: str | None = None) -> Capabilities:
        """What is known now; `model` is the request's (a server may hold several)."""

    @abstractmethod
    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        """Make an attempt; nothing happens until it is iterated.

        `wants` names what disco asks for besides the text: "logp" fills `Delta.logp` where the endpoint can
        (`Capabilities.logp`), and changes nothing that the application sees.

        A non-empty `prefix` is only passed to endpoints whose capabilities say that they continue. The
        attempt's first text then follows `prefix.text` exactly: `prefix.withheld` and any echo have been
        swallowed, or `EndpointFailure(SEAM)` was raised.
        """

    @property
    def has_route(self) -> bool:
        """Whether anything on this machine leads there; False only where that is certain.

        Asked before every plan: microseconds, and nothing is sent.
        """
        return True

    async def warm_up(self) -> None:  # noqa: B027 - optional hook
        """Do what the first request would otherwise wait for: load, connect, probe."""

    async def aclose(self) -> None:  # noqa: B027 - optional hook
        """Stop all attempts and free everything. Idempotent."""
