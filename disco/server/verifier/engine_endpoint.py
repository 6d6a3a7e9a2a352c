"""The engine of a verify server as an endpoint: the server also writes answers of its own, in the same batches.

A verify server is then an ordinary server as well, with one copy of its model. For the same seed, an answer is the one
that devices get by rounds.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import fields
from typing import Any, Final, Literal

import anyio

from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event
from disco.events import Delta, DeltaKind, Ended, ToolCallDelta, Usage
from disco.request import Prefix, Request
from disco.server.verifier.round_engine import RoundEngine
from disco.speculate.messages import Opening, Round, Verdict

__all__ = ["EngineEndpoint"]

_FEATURES: Final = frozenset({"json_schema", "logit_bias", "logprobs", "tools"})
_CLOSE_S: Final = 5.0
_NO_PREFIX: Final = Prefix()


class EngineEndpoint(Endpoint):
    """The engine as the model on this machine. It has no queue of its own: the engine serves rounds and answers alike.

    Args:
        engine: writes the answers. The endpoint loads and closes it.
        name: the endpoint's name in records.
    """

    # Mutable: whether the engine is loaded.

    def __init__(self, engine: RoundEngine, *, name: str) -> None:
        self.name = name
        self.place: Literal["device", "server"] = "device"
        self._engine = engine
        self._ready = False

    def capabilities(self, model: str | None = None) -> Capabilities:
        del model  # there is one
        if not self._ready:
            return Capabilities(continues=True, features=_FEATURES, ready=False)
        facts = self._engine.facts()
        return Capabilities(
            continues=True,
            context_tokens=facts.context_tokens,
            features=_FEATURES,
            vocabulary=facts.vocabulary,
            waiting=facts.waiting,
        )

    def open(
        self,
        request: Request,
        prefix: Prefix = _NO_PREFIX,
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        del wants  # log probabilities for disco's own use are not in a verdict
        return _EngineAttempt(self._engine, request, prefix, self.capabilities().context_tokens)

    async def warm_up(self) -> None:
        await self._engine.warm_up()
        self._ready = True

    async def aclose(self) -> None:
        await self._engine.aclose()


class _EngineAttempt(Attempt):
    """One answer: a round that goes on alone to its end. Mutable: `_verdicts`, `_last`, `_usage`."""

    def __init__(
        self, engine: RoundEngine, request: Request, prefix: Prefix, context_tokens: int | None
    ) -> None:
        seed = request.params.get("seed")
        opening = Opening(
            messages=request.messages,
            params=request.params,
            seed=secrets.randbits(63) if seed is None else int(seed) % 2**64,
            prefix={
                one.name: getattr(prefix, one.name)
                for one in fields(prefix)
                if getattr(prefix, one.name) != getattr(_NO_PREFIX, one.name)
            },
        )
        key = secrets.token_hex(16)
        alone = context_tokens if context_tokens is not None else 2**20
        self._round = Round(key=key, number=0, at=0, alone=alone, opening=opening)
        self._engine = engine
        self._verdicts: AsyncGenerator[Verdict, None] | None = None
        self._last: Ended | None = None
        self._over = False
        self._usage = Usage()

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        if self._verdicts is None:
            self._verdicts = self._engine.round(self._round)
        try:
            while self._last is None:
                verdict = await anext(self._verdicts)
                self._usage = _usage(verdict)
                if verdict.finish_reason is not None:
                    self._last = Ended(verdict.finish_reason, self._usage)
                if verdict.deltas:
                    return [_delta(one) for one in verdict.deltas]
        except StopAsyncIteration:  # the context is full
            self._last = Ended("length", self._usage)
        except BaseException:
            self._over = True
            raise
        self._over = True
        return self._last

    async def aclose(self) -> None:
        self._over = True
        if self._verdicts is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                await self._verdicts.aclose()

    @property
    def usage(self) -> Usage:
        return self._usage


def _usage(verdict: Verdict) -> Usage:
    return Usage(verdict.prompt_tokens, verdict.completion_tokens, verdict.cached_tokens)


def _delta(given: Mapping[str, Any]) -> Delta:
    """Return the delta of a verdict's fields."""
    made = dict(given)
    if "kind" in made:
        made["kind"] = DeltaKind(made["kind"])
    for name in ("ids", "logp"):
        if made.get(name) is not None:
            made[name] = tuple(made[name])
    calls = made.get("tool_calls") or ()
    made["tool_calls"] = tuple(
        one if isinstance(one, ToolCallDelta) else ToolCallDelta(**one) for one in calls
    )
    return Delta(**made)
