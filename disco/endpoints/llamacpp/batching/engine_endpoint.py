"""The engine of a verify server as an endpoint: the server also writes answers of its own, in the same batches.

A verify server is then an ordinary server as well, with one copy of its model. For the same seed, an answer is the one
that devices get by rounds.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import fields, replace
from typing import Final, Literal

import anyio
import httpx2
import openai

from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event, seam_behind
from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.endpoints.llamacpp.output.delta_fields import delta_of
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, SeamReport, Traffic, Usage
from disco.request import Prefix, Request
from disco.speculate.messages import Opening, Round, Verdict

__all__ = ["EngineEndpoint"]

_FEATURES: Final = frozenset({"json_schema", "logit_bias", "logprobs", "tools"})
_CLOSE_S: Final = 5.0
_ENDLESS: Final = 2**31  # tokens: to the answer's end, or the context's
_NO_PREFIX: Final = Prefix()


class EngineEndpoint(Endpoint):
    """The engine as the model on this machine. It has no queue of its own: the engine serves rounds and answers alike.

    Args:
        engine: writes the answers. The endpoint loads and closes it.
        name: the endpoint's name in records.
        passed: returns the bytes that passed for all answers so far, where the engine's model needs something that is
            elsewhere.
    """

    # Mutable: whether the engine is loaded.

    def __init__(self, engine: RoundEngine, *, name: str, passed: Callable[[], Traffic] = Traffic) -> None:
        self.name = name
        self.place: Literal["device", "server"] = "device"
        self._engine = engine
        self._passed = passed
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
        return _EngineAttempt(self._engine, request, prefix, self._passed, self._was_loaded)

    @property
    def fingerprint(self) -> str | None:
        """What tells the model from others; None before it is loaded."""
        return self._engine.facts().fingerprint if self._ready else None

    async def warm_up(self) -> None:
        await self._engine.warm_up()
        self._was_loaded()

    async def aclose(self) -> None:
        await self._engine.aclose()

    def _was_loaded(self) -> None:
        self._ready = True


class _EngineAttempt(Attempt):
    """One answer: a round that goes on alone to its end.

    Mutable: `_verdicts`, `_release` (the engine's, once it has the answer), `_last`, `_over`, `_text_chars`, `_usage`;
    `_waiting`, what the iterating task waits in; `_idle`, set while none does.
    """

    def __init__(
        self,
        engine: RoundEngine,
        request: Request,
        prefix: Prefix,
        passed: Callable[[], Traffic],
        on_answer: Callable[[], None],
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
        self._round = Round(key=secrets.token_hex(16), number=0, at=0, opening=opening)
        self._engine = engine
        self._on_answer = on_answer
        self._passed, self._passed_before = passed, passed()
        self._verdicts: AsyncGenerator[Verdict, None] | None = None
        self._release: Callable[[str], None] | None = None
        self._last: Ended | None = None
        self._over = False
        self._prefix = prefix
        self._text_chars = 0
        self._usage = Usage()
        self._waiting: anyio.CancelScope | None = None
        self._idle = anyio.Event()
        self._idle.set()

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        self._idle = anyio.Event()
        try:
            with anyio.CancelScope() as self._waiting:
                return await self._next()
            raise StopAsyncIteration  # closed by another task
        except BaseException:
            self._over = True
            raise
        finally:
            self._waiting = None
            self._idle.set()

    async def _next(self) -> Event:
        try:
            if self._verdicts is None:
                # The engine loads its model now where it has none, and what fails then has its kind.
                engine = self._engine
                alone = engine.facts().context_tokens or _ENDLESS
                self._verdicts = engine.round(replace(self._round, alone=alone))
                self._release = engine.release
            while self._last is None:
                verdict = await anext(self._verdicts)
                self._on_answer()
                self._usage = _usage(verdict)
                if verdict.finish_reason is not None:
                    self._last = Ended(verdict.finish_reason, self._usage)
                if verdict.deltas:
                    deltas = [delta_of(one) for one in verdict.deltas]
                    self._text_chars += sum(len(delta.text) for delta in deltas)
                    return deltas
        except StopAsyncIteration:  # the context is full
            self._last = Ended("length", self._usage)
        except EndpointFailure as failure:
            if failure.kind is FailureKind.RATE_LIMIT:
                raise EndpointFailure(failure.kind, _busy(), retry_after_s=failure.retry_after_s) from failure
            raise
        self._over = True
        return self._last

    async def aclose(self) -> None:
        self._over = True
        if self._waiting is not None:
            self._waiting.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
            await self._idle.wait()
            if self._verdicts is not None:
                await self._verdicts.aclose()
        if self._release is not None:
            self._release(self._round.key)

    @property
    def usage(self) -> Usage:
        return self._usage

    @property
    def traffic(self) -> Traffic:
        now, before = self._passed(), self._passed_before
        return Traffic(now.bytes_up - before.bytes_up, now.bytes_down - before.bytes_down)

    @property
    def seam(self) -> SeamReport | None:
        return seam_behind(self._prefix, self._text_chars)


def _busy() -> openai.RateLimitError:
    """Return the error of the API for "try again"."""
    message = "The model on this machine has as many answers as it can take. Try again in a second."
    body = {"message": message, "type": "requests", "code": "rate_limit_exceeded", "param": None}
    request = httpx2.Request("POST", "disco://local/chat/completions")  # there was none on the network
    response = httpx2.Response(429, request=request, json={"error": body}, headers={"retry-after": "1"})
    return openai.RateLimitError(message, response=response, body=body)


def _usage(verdict: Verdict) -> Usage:
    return Usage(verdict.prompt_tokens, verdict.completion_tokens, verdict.cached_tokens)
