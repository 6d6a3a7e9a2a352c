"""Measures a drafter and a verify server apart and together: what `disco speculate check` tells."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import openai

from disco.cli.speculation.check_report import Choice, Costs, Pace
from disco.endpoints.drafter import Drafter, DraftOrder
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.verifier_client import VerifierClient
from disco.events import Ended
from disco.request import Request
from disco.speculate.messages import Opening, Round, Verdict

__all__ = ["Drafts", "PairMeasurement", "Proof", "Written"]

SEED: Final = 7
_DRAFT: Final = 4  # tokens of a draft where no server waits for it
_WRONG: Final = (
    7,
    3,
)  # of every 7 drafted tokens, that at place 3 is made wrong, so that corrections are proved


@dataclass(frozen=True, slots=True)
class Written:
    """An answer of the server alone.

    Attributes:
        messages: the prompt.
        temperature: it was written with.
        prompt_ids, ids: tokens.
        compute_s: of each of its tokens but the first, at the server, s.
    """

    messages: Sequence[dict[str, Any]] = field(repr=False)
    temperature: float
    prompt_ids: tuple[int, ...] = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    compute_s: tuple[float, ...] = field(repr=False)


@dataclass(slots=True)
class Proof:
    """Answers that were written in windows of known tokens, and what these rounds cost. Mutable.

    Attributes:
        answers, windows: how many.
        differing: answers that differ from those of the server alone.
        rows_s: seconds of the server's batches by rows.
        wire_s, queue_s: of each round, s.
    """

    answers: int = 0
    windows: int = 0
    differing: int = 0
    rows_s: dict[int, list[float]] = field(default_factory=dict)
    wire_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)

    def learn(self, verdict: Verdict, drafted: int, took_s: float) -> None:
        """Take what one round cost."""
        self.windows += 1
        self.wire_s.append(max(0.0, took_s - verdict.queue_s - verdict.compute_s))
        self.queue_s.append(verdict.queue_s)
        if verdict.rows == drafted + 1:
            self.rows_s.setdefault(verdict.rows, []).append(verdict.compute_s)


@dataclass(slots=True)
class Drafts:
    """What was drafted for known answers. Mutable; see `check_report.Costs`."""

    tokens: int = 0
    seconds: float = 0.0
    accepted: int = 0
    compared: int = 0


class PairMeasurement:
    """The measurements of one drafter with one server, for answers of at most `tokens` tokens.

    Args:
        client: of the server.
        model: its name for requests.
        drafter: loaded.
        tokens: most tokens of an answer.
    """

    def __init__(self, client: openai.AsyncOpenAI, model: str, drafter: Drafter, tokens: int) -> None:
        self._client = client
        self._model = model
        self._drafter = drafter
        self._tokens = tokens

    async def alone(self, prompt: str, temperature: float = 0.0) -> Written:
        """Let the server write an answer alone.

        Raises:
            EndpointFailure: it cannot.
        """
        opening = self._opening(prompt, temperature)
        ids, compute_s, prompt_ids = list[int](), list[float](), None
        async with self._verifier(opening) as verifier:
            first = Round(_key(), 0, 0, alone=self._tokens, opening=opening, wants_prompt=True)
            async for verdict in verifier.alone(first):
                if ids and verdict.rows == 1:
                    compute_s.append(verdict.compute_s)
                ids += verdict.ids
                prompt_ids = prompt_ids or verdict.prompt_ids
        messages = list(map(dict, opening.messages))
        return Written(messages, temperature, prompt_ids or (), tuple(ids), tuple(compute_s))

    async def prove(self, written: Written, window: int, proof: Proof) -> None:
        """Write a known answer again in windows of its own tokens, some made wrong; stop where it differs.

        Raises:
            EndpointFailure: the server cannot answer.
        """
        opening = self._opening(str(written.messages[-1]["content"]), written.temperature)
        known, at, key = written.ids, 0, _key()
        proof.answers += 1
        async with self._verifier(opening) as verifier:
            number, draft = 0, tuple[int, ...]()  # the first round reads the prompt
            while True:
                began_at = time.perf_counter()
                verdict = await verifier.round(
                    Round(key, number, at, draft, opening=None if number else opening)
                )
                took_s = time.perf_counter() - began_at
                if number:
                    proof.learn(verdict, len(draft), took_s)
                ended = verdict.finish_reason is not None
                same = verdict.at == at and verdict.ids == known[at : at + len(verdict.ids)]
                at += len(verdict.ids)
                if not same or (ended and at < len(known)) or not (ended or verdict.ids):
                    proof.differing += 1
                    return
                if ended:  # an answer that is left before its end keeps its slot for a while
                    return
                number += 1
                draft = _misled(known, at, max(0, min(window, len(known) - at - 1)))

    async def draft(self, written: Written, drafts: Drafts) -> None:
        """Draft a known answer.

        Raises:
            EndpointFailure: the drafter cannot be used.
        """
        known, number, at = written.ids, 0, 0
        append: tuple[int, ...] = ()
        sampling = {"temperature": written.temperature}
        async with self._drafter.open(seed=SEED, sampling=sampling) as drafting:
            await drafting.read(written.prompt_ids)
            while at < len(known):
                order = DraftOrder(number, at - len(append), append, min(_DRAFT, len(known) - at))
                drafted = await drafting.draft(order)
                right = _common(drafted.ids, known[at:])
                drafts.accepted += right
                drafts.compared += right + (right < len(drafted.ids) or not drafted.ids)
                if number:  # the first draft may read what was displaced
                    drafts.tokens += len(drafted.ids)
                    drafts.seconds += drafted.took_s
                append = known[at + right : at + right + 1]
                at += right + 1
                number += 1

    @staticmethod
    def costs(alone: Sequence[Written], proof: Proof, drafts: Drafts) -> Costs:
        """Return the medians of what was measured."""
        singles = [one for written in alone for one in written.compute_s]
        rows_s = {1: singles} if singles else {}
        rows_s |= {rows: times for rows, times in proof.rows_s.items() if rows > 1 or not singles}
        return Costs(
            draft_s=drafts.seconds / drafts.tokens if drafts.tokens else 0.0,
            round_trip_s=median(proof.wire_s) if proof.wire_s else 0.0,
            queue_s=median(proof.queue_s) if proof.queue_s else 0.0,
            verify_s=tuple((rows, median(times)) for rows, times in sorted(rows_s.items())),
            accepted=drafts.accepted,
            compared=drafts.compared,
        )

    @asynccontextmanager
    async def pair(self, choice: Choice) -> AsyncIterator[SpeculativeEndpoint]:
        """Yield the drafter and the server as the endpoint that a client would use, with a window of this size."""
        pairing = Pairing(self._drafter)
        await pairing.ask(self._client)
        server = OpenAIEndpoint(client=self._client)
        endpoint = SpeculativeEndpoint(
            server, pairing, window=choice.window, parallel=choice.parallel, always=True
        )
        try:
            yield endpoint
        finally:
            await endpoint.aclose()
            await pairing.aclose()

    async def answer(self, pair: SpeculativeEndpoint, prompt: str, *, drafts: bool) -> tuple[str, Pace, int]:
        """Let the pair answer, with drafts or without; return the text, its pace, and tokens of the server alone.

        Raises:
            EndpointFailure: it cannot.
        """
        opening = self._opening(prompt, 0.0)
        request = Request(
            opening.messages, self._model, {**opening.params, "seed": SEED}, drafts=None if drafts else 0
        )
        text, first, first_at, last_at, tokens = "", 0, 0.0, 0.0, 0
        async with pair.open(request) as attempt:
            async for event in attempt:
                if isinstance(event, Ended):
                    tokens = (event.usage or attempt.usage).completion_tokens
                elif isinstance(event, list):
                    last_at = time.perf_counter()
                    if not first_at:
                        first_at, first = last_at, sum(delta.tokens for delta in event)
                    text += "".join(delta.text for delta in event)
            report = attempt.speculation
        alone = tokens if report is None else report.alone_tokens
        return text, Pace(max(0, tokens - first), last_at - first_at), alone

    def _opening(self, prompt: str, temperature: float) -> Opening:
        params = {"max_tokens": self._tokens, "temperature": temperature}
        return Opening([{"role": "user", "content": prompt}], params, SEED)

    @asynccontextmanager
    async def _verifier(self, opening: Opening) -> AsyncIterator[VerifierClient]:
        request = Request(opening.messages, self._model, opening.params)
        verifier = VerifierClient(self._client, name="server", request=request, opening=lambda: opening)
        try:
            yield verifier
        finally:
            await verifier.aclose()


def _key() -> str:
    return secrets.token_hex(16)


def _misled(known: Sequence[int], at: int, count: int) -> tuple[int, ...]:
    """Return the next known tokens as a draft, some of them replaced by others."""
    every, place = _WRONG
    draft = list(known[at : at + count])
    for one in range(len(draft)):
        if (at + one) % every == place:
            draft[one] = draft[one] - 1 if draft[one] else 1
    return tuple(draft)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with."""
    count = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        count += 1
    return count
