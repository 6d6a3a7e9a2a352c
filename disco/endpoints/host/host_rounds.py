"""The engine in a host as what answers the rounds of a verify server, which are sent on to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from disco.speculate.messages import BadMessageError, Round, Verdict, VerifierFacts

if TYPE_CHECKING:
    from disco.endpoints.host.host_endpoint import HostEndpoint

__all__ = ["HostRounds"]


class HostRounds:
    """See `RoundEngine`. A crash of llama.cpp ends the host and not the verify server.

    Mutable: `_open`, how many rounds are worked on.

    Args:
        host: has the model.
    """

    def __init__(self, host: HostEndpoint) -> None:
        self._host = host
        self._open = 0

    async def round(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        """See `RoundEngine.round`."""
        await self._host.introduce()
        self._open += 1
        try:
            if not round_.alone:
                yield _verdict(await self._host.ask("/rounds", round_.to_json()))
                return
            async with aclosing(self._host.events("/rounds", round_.to_json())) as events:
                async for event in events:
                    yield _verdict(event)
        finally:
            self._open -= 1

    def release(self, key: str) -> None:
        """See `RoundEngine.release`."""
        self._host.tell(f"/rounds/{key}", {"do": "release"})

    def facts(self) -> VerifierFacts:
        """Return what the host said when it was loaded, the rounds of now, and the slots of a moment ago."""
        known = self._host.facts.get("verifier")
        if known is None:
            return VerifierFacts(
                self._host.profile_name, None, self._host.capabilities().context_tokens or 0, 1
            )
        self._host.look_again()
        return replace(VerifierFacts.from_json(known), waiting=self._open)

    async def warm_up(self) -> None:
        """See `RoundEngine.warm_up`."""
        await self._host.warm_up()

    async def aclose(self) -> None:
        """See `RoundEngine.aclose`."""
        await self._host.aclose()


def _verdict(content: object) -> Verdict:
    try:
        return Verdict.from_json(content)
    except BadMessageError as error:  # of the engine's own making
        raise AssertionError(f"The host's verdict breaks the protocol: {error}.") from None
