"""The engine in this process as what verifies the rounds of an answer: no HTTP, no JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.endpoints.llamacpp.batching.round_refusals import AnswerLost, RoundRefused
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Traffic
from disco.speculate.messages import Opening, Round, Verdict

__all__ = ["EngineVerifier"]


class EngineVerifier:
    """Answers the rounds of one answer; see `Verifier`.

    Args:
        engine: computes.
        opening: returns the answer's opening with the ids so far, for an engine that has lost the answer.
        passed: returns the bytes that passed for all answers so far. Answers at the same time count each other's.
    """

    def __init__(
        self, engine: RoundEngine, opening: Callable[[], Opening], passed: Callable[[], Traffic]
    ) -> None:
        self._engine, self._opening, self._passed = engine, opening, passed
        self._before = passed()

    @property
    def traffic(self) -> Traffic:
        """Return the bytes sent and received since the answer began."""
        now = self._passed()
        return Traffic(now.bytes_up - self._before.bytes_up, now.bytes_down - self._before.bytes_down)

    async def round(self, round_: Round) -> Verdict:
        """Answer a round.

        Raises:
            EndpointFailure: the engine refuses it, or fails; with CONNECTION, the round may be asked again.
        """
        async with aclosing(self.alone(round_)) as verdicts:
            async for verdict in verdicts:
                return verdict
        raise _lost("said nothing of a round")

    async def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        """Answer a round after whose draft the model goes on alone.

        Raises:
            EndpointFailure: as from `round`.
        """
        begun = False
        try:
            try:
                async with aclosing(self._engine.round(round_)) as verdicts:
                    async for verdict in verdicts:
                        begun = True
                        yield verdict
            except AnswerLost:
                if begun or round_.opening is not None:
                    raise
                async with aclosing(self._engine.round(replace(round_, opening=self._opening()))) as verdicts:
                    async for verdict in verdicts:
                        yield verdict
        except RoundRefused as error:
            raise _lost(f"refused a round ({type(error).__name__})") from error

    async def release(self, key: str) -> None:
        """Tell the engine that nobody will ask for an answer again."""
        self._engine.release(key)

    async def aclose(self) -> None:
        """Do nothing: there is no connection of its own."""


def _lost(what: str) -> EndpointFailure:
    return EndpointFailure(FailureKind.CONNECTION, IncompleteAnswerError(f"A split model {what}."))
