"""What a client knows about one verify server and the drafter that it has for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import anyio
import httpx2
import openai

from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.drafter import Drafter
from disco.endpoints.speculative.verifier_client import verifier_facts
from disco.speculate.estimates import Estimates
from disco.speculate.messages import VerifierFacts
from disco.speculate.seen import VerifyCurve
from disco.speculate.trying import Trying
from disco.speculate.windows.contract import Window

__all__ = ["Pairing"]

_KEEP_S: Final = 600.0  # a server may be replaced by another one
_KEEP_UNREACHED_S: Final = 30.0


class Pairing:
    """Whether a server verifies, what it says of itself, and what the rounds with it have shown.

    Shared by all answers of one client at one server. Mutable: everything below the blank line in `__init__`.

    Attributes:
        drafter: the drafter; None: there is none.
        facts: what the server says of itself; None while that is not known, and where it is no verify server.
        estimates: of this drafter with this server.
        tasks: the parent of the attempts' tasks.
        has_chat: whether the server is known to answer chat requests, or known not to; None: not known.
    """

    def __init__(self, drafter: Drafter | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing known; `clock` returns seconds and never goes back."""
        self._clock = clock
        self.drafter = drafter
        self.tasks = BackgroundTasks()

        self.facts: VerifierFacts | None = None
        self.estimates = Estimates()
        self.has_chat: bool | None = None
        self._until = 0.0  # when what is known has to be asked again
        self._trying = Trying()
        self._asking: anyio.Event | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to ask the server."""
        return self._asking is None and self._clock() >= self._until

    @property
    def is_refuted(self) -> bool:
        """Whether the server has said that it is no verify server, or could not be asked a moment ago."""
        return self.facts is None and self._clock() < self._until

    async def ask(self, client: openai.AsyncOpenAI) -> VerifierFacts | None:
        """Ask the server what it is, unless that is known; return its facts. A fault of the server raises nothing."""
        while self._asking is not None:
            await self._asking.wait()
        if self._clock() < self._until:
            return self.facts
        self._asking = anyio.Event()
        try:
            facts = await verifier_facts(client)
        except (openai.OpenAIError, httpx2.HTTPError, OSError):
            # What was known stays in use: an answer will show whether it still holds.
            self._until = self._clock() + _KEEP_UNREACHED_S
        else:
            self.learn(facts)
        finally:
            self._asking.set()
            self._asking = None
        return self.facts

    def forget(self) -> None:
        """Ask the server again before the next answer: it did not answer as a verify server."""
        self.facts, self._until = None, 0.0

    async def aclose(self) -> None:
        """End all attempts. Idempotent."""
        await self.tasks.aclose()

    def drafts(self) -> Drafter | None:
        """Return the drafter if its tokens mean the same to the server, as far as is known now."""
        return self.drafter if self.drafter is not None and self._speaks_alike(self.drafter) else None

    def tries(self, window: Window) -> bool:
        """Return whether to let the drafter read the next answer's prompt, which costs the device as much as drafting.

        Yes while a window is predicted to pay, by what was measured so far or because nothing was. Otherwise only now
        and then, to find out whether that has changed: after 1 answer without, 2, 4, and so on to 16.

        Args:
            window: a new one, as for the answer. It must choose 0 where drafting does not pay.
        """
        return self._trying.tries(self.estimates, window)

    def _speaks_alike(self, drafter: Drafter) -> bool:
        if self.facts is None:
            return False
        if drafter.vocabulary is None:
            return True  # any vocabulary will do, or its model is not loaded yet
        return drafter.vocabulary == self.facts.vocabulary

    def learn(self, facts: VerifierFacts | None) -> None:
        """Take what the server says of itself; None: it does not verify."""
        known = self.facts
        if facts is not None and (known is None or known.model != facts.model):
            self.estimates = Estimates(VerifyCurve(facts.verify_s) if facts.verify_s else None)
        self.facts = facts
        self._until = self._clock() + _KEEP_S
