"""One answer by a pair of drafter and verify server, or by the server as any other."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import openai

from disco.endpoints.contract import Attempt, Event, seam_behind
from disco.endpoints.drafter import Drafter
from disco.endpoints.event_coding import prefix_fields
from disco.endpoints.openai_api.http_transport import estimated_tokens
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.rounds_run import RoundsRun, Verifier
from disco.endpoints.speculative.verifier_client import MODEL_CHANGED, NO_VERIFIER
from disco.errors import EndpointFailure
from disco.events import Ended, Progress, SeamReport, SpeculationReport, Traffic, Usage
from disco.request import Prefix, Request
from disco.speculate.accounts import report_of, usage_of
from disco.speculate.coupled import SEEDS
from disco.speculate.messages import Opening, VerifierFacts
from disco.speculate.rounds import Rounds
from disco.speculate.windows.contract import Window

__all__ = ["SpeculativeAttempt", "VerifierOf"]

VerifierOf = Callable[[Request, Callable[[], Opening]], Verifier]
"""Makes the connection to a verify server; the function returns the answer's opening with the ids so far."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_LOWEST_SEED: Final = -(2**63)


class SpeculativeAttempt(Attempt):
    """See `Attempt`. Made by `SpeculativeEndpoint.open`.

    While it is not known whether the server verifies, the server is asked as any other. Where it turns out to have no
    chat at all, it is asked what it is, and the answer goes on by rounds. It is asked again, too, where it is no longer
    what it said: no verify server, or one with another model. In mid-answer that is a failure: the rest would be by
    another writer.

    Args:
        name: the endpoint's.
        request, prefix: the request to answer, and the beginning of the answer.
        pairing: what is known about the server.
        ask: asks the server what it is.
        drafter: None where nothing is to be drafted.
        window: makes the window of the answer.
        always: whether to draft whatever is predicted.
        parallel: windows in flight.
        verifier: makes the connection to the verify server.
        plain: opens the server's own attempt.
        may_ask_rounds: whether rounds serve the request.
        on_close: called once when the attempt has ended.
        prepare: awaited before anything else; loads what the server needs. Raises `EndpointFailure`.
    """

    # Mutable: everything below the blank line.
    __slots__ = (
        "_always",
        "_ask",
        "_closed",
        "_drafter",
        "_may_ask_rounds",
        "_name",
        "_on_close",
        "_open_plain",
        "_pairing",
        "_parallel",
        "_plain",
        "_prefix",
        "_prepare",
        "_request",
        "_run",
        "_spoke",
        "_stopped",
        "_text_chars",
        "_verifier_of",
        "_verifiers",
        "_window",
    )

    def __init__(
        self,
        *,
        name: str,
        request: Request,
        prefix: Prefix,
        pairing: Pairing,
        ask: Callable[[], Awaitable[VerifierFacts | None]],
        drafter: Drafter | None,
        window: Callable[[], Window],
        always: bool,
        parallel: int,
        verifier: VerifierOf,
        plain: Callable[[], Attempt],
        may_ask_rounds: bool,
        on_close: Callable[[SpeculativeAttempt], object],
        prepare: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._name = name
        self._request = request
        self._prefix = prefix
        self._pairing = pairing
        self._ask = ask
        self._drafter = drafter
        self._window = window
        self._always = always
        self._parallel = parallel
        self._verifier_of = verifier
        self._open_plain = plain
        self._may_ask_rounds = may_ask_rounds
        self._on_close: Callable[[SpeculativeAttempt], object] | None = on_close
        self._prepare = prepare

        self._plain: Attempt | None = None
        self._run: RoundsRun | None = None
        self._verifiers: list[Verifier] = []  # a second one where the server's model has changed
        self._spoke = False
        self._text_chars = 0  # of the rounds
        self._stopped = False
        self._closed = False

    async def __anext__(self) -> Event:
        if self._stopped or self._closed:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except BaseException:
            self._stopped = True
            if self._run is not None:
                self._run.cancel()
            if self._closed:
                raise StopAsyncIteration from None
            raise
        self._spoke = True
        self._stopped = type(event) is Ended
        return event

    async def aclose(self) -> None:
        self._closed = True
        if self._run is not None:
            self._run.cancel()
            await self._run.stopped()
        if self._plain is not None:
            await self._plain.aclose()
        if self._on_close is not None:
            self._on_close(self)
            self._on_close = None
            tasks = self._pairing.tasks
            if self._run is not None and self._run.is_left and tasks.is_open:
                tasks.start_soon(self._run.release)

    @property
    def usage(self) -> Usage:
        run = self._run
        if run is None:
            return Usage() if self._plain is None else self._plain.usage
        work, drafter, guessed = run.work, self._drafter, run.drafter_usage
        prompt = work.prompt_tokens or estimated_tokens(self._request, self._prefix)
        written = max(work.completion_tokens, sum(run.rounds.tally.tokens.values()))
        server = Usage(prompt, written, min(work.cached_tokens, prompt))
        name = None if drafter is None else drafter.name
        return usage_of(self._name, server, work.rejected_tokens, name, guessed)

    @property
    def traffic(self) -> Traffic:
        passed = [verifier.traffic for verifier in self._verifiers]
        if self._plain is not None:
            passed.append(self._plain.traffic)
        return Traffic(sum(one.bytes_up for one in passed), sum(one.bytes_down for one in passed))

    @property
    def progress(self) -> Progress | None:
        return None if self._plain is None else self._plain.progress

    @property
    def seam(self) -> SeamReport | None:
        """Return that of the server's own attempt. In rounds the server reads the prefix as its own tokens."""
        if self._run is not None:
            return seam_behind(self._prefix, self._text_chars)
        return None if self._plain is None else self._plain.seam

    @property
    def speculation(self) -> SpeculationReport | None:
        run = self._run
        return None if run is None else report_of(run.rounds.tally, run.work.rejected_tokens)

    async def _next(self) -> Event:
        if self._run is None and self._plain is None:
            if self._prepare is not None:
                await self._prepare()
            facts = self._pairing.facts if self._may_ask_rounds else None
            if facts is None:
                self._plain = self._open_plain()
            else:
                await self._begin(facts, self._drafter)
        if self._plain is not None:
            try:
                event = await self._plain.__anext__()
            except EndpointFailure as failure:
                facts = await self._verifier_behind(failure)
                if facts is None:
                    raise
                await self._plain.aclose()
                self._plain = None
                # The answer was planned and its budgets were reserved without a drafter.
                await self._begin(facts, None)
            else:
                self._pairing.has_chat = True
                return event
        assert self._run is not None
        try:
            deltas = await self._run.next()
        except EndpointFailure as failure:
            if _status(failure) not in NO_VERIFIER and _code(failure) != MODEL_CHANGED:
                raise
            self._pairing.forget()
            if self._run.has_answered or len(self._verifiers) > 1:
                raise
            await self._begin_anew()
            return await self._next()
        if deltas is not None:
            self._text_chars += sum(len(delta.text) for delta in deltas)
            return deltas
        if self._run.finish_reason is None:
            raise StopAsyncIteration
        return Ended(self._run.finish_reason, self.usage)

    async def _verifier_behind(self, failure: EndpointFailure) -> VerifierFacts | None:
        """Return what a server without chat says of itself; None where it is no verify server."""
        if self._spoke or not self._may_ask_rounds or _status(failure) not in NO_VERIFIER:
            return None
        facts = await self._ask()
        if facts is not None:
            self._pairing.has_chat = False
        return facts

    async def _begin_anew(self) -> None:
        """Ask a server that is another one by now what it is; nothing of the answer is there yet."""
        assert self._run is not None
        await self._run.stopped()
        facts = await self._ask()
        if self._closed:
            raise StopAsyncIteration
        if facts is not None:
            await self._begin(facts, self._drafter)
        else:
            self._run, self._plain = None, self._open_plain()

    async def _begin(self, facts: VerifierFacts, drafter: Drafter | None) -> None:
        """Start the rounds in the background."""
        if self._closed:  # by another task, while the server was asked what it is
            raise StopAsyncIteration
        request, prefix = self._request, self._prefix
        may_draft = drafter is not None and request.drafts != 0
        if not may_draft or not (self._always or self._pairing.tries(self._window())):
            drafter = None
        limit = request.max_tokens
        params = dict(request.params)
        if limit is not None and not any(params.get(name) is not None for name in _LIMITS):
            params["max_tokens"] = limit
        seed = params.get("seed")
        if type(seed) is not int or not _LOWEST_SEED <= seed < SEEDS:
            seed = secrets.randbits(63)
        # Ids are for a server that has the same vocabulary.
        known = prefix.vocabulary is not None and prefix.vocabulary == facts.vocabulary
        opening = Opening(
            request.messages,
            params,
            seed,
            prefix_fields(prefix if known else replace(prefix, ids=None, vocabulary=None)),
            fingerprint=facts.fingerprint,
        )
        rounds = Rounds(
            self._window(),
            parallel=self._parallel,
            estimates=self._pairing.estimates,
            has_drafter=drafter is not None,
            # Text that has to be written again does not count towards the limit.
            limit=None if limit is None or prefix.withheld else max(1, limit - prefix.tokens),
        )
        verifier = self._verifier_of(request, lambda: replace(opening, ids=rounds.ids))
        self._verifiers.append(verifier)
        self._run = RoundsRun(
            rounds=rounds,
            verifier=verifier,
            key=secrets.token_hex(16),
            opening=opening,
            drafter=drafter,
            vocabulary=facts.vocabulary,
            drafts=request.drafts,
            name=self._name,
        )
        try:
            await self._pairing.tasks.start(self._run.run)
        except BaseException:
            self._run.never_ran()
            raise


def _status(failure: EndpointFailure) -> int | None:
    error = failure.error
    return error.status_code if isinstance(error, openai.APIStatusError) else None


def _code(failure: EndpointFailure) -> str | None:
    return getattr(failure.error, "code", None)
