"""An engine of rounds without a model: its token at position p is always `token(p)`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import anyio

from disco.endpoints.llamacpp.batching.round_refusals import AnswerLost
from disco.speculate.messages import Round, Verdict, VerifierFacts

ROUNDS, VERIFIER = "/v1/disco/rounds", "/v1/disco/verifier"
KEY = "0123456789abcdef" * 2
OPENING = {"messages": [{"role": "user", "content": "Tell me about the sea."}]}
FIRST = {"key": KEY, "number": 0, "at": 0, "opening": OPENING}


def token(position: int) -> int:
    return 100 + position * 7 % 31


@dataclass
class FakeEngine:
    """Takes `gap_s` for each verdict. `fails`: raised by every round, after `good` verdicts.

    Mutable: all fields. `working` counts the rounds in progress, `left` those that were cancelled.
    """

    gap_s: float = 0.0
    fails: Exception | None = None
    good: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    working: int = 0
    left: int = 0

    async def round(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        self.rounds.append(round_)
        if round_.key not in self.answers:
            if round_.opening is None:
                raise AnswerLost
            self.answers[round_.key] = len(round_.opening.ids)
        self.working += 1
        ended = False
        try:
            for number in range(max(1, min(round_.alone, 1000))):
                if self.fails is not None and number >= self.good:
                    raise self.fails
                await anyio.sleep(self.gap_s)
                verdict = self._verdict(round_, number)
                yield verdict
                if verdict.finish_reason is not None:
                    break
            ended = True
        finally:
            self.working -= 1
            self.left += not ended

    def _verdict(self, round_: Round, number: int) -> Verdict:
        have = self.answers[round_.key]
        at = round_.at + number
        if at > have:
            return Verdict(number=round_.number, at=have)
        accepted = 0
        while accepted < len(round_.draft) and round_.draft[accepted] == token(at + accepted):
            accepted += 1
        judged = min(len(round_.draft), accepted + 1)
        ids = tuple(token(at + n) for n in range(accepted + 1))
        self.answers[round_.key] = max(have, at + len(ids))
        most = 2048 if round_.opening is None else round_.opening.params.get("max_tokens", 2048)
        return Verdict(
            number=round_.number,
            at=at,
            ids=ids,
            judged=judged,
            accepted=accepted,
            rows=len(round_.draft) + 1,
            queue_s=0.002,
            compute_s=0.03,
            deltas=({"delta": {"content": "Größe €" * len(ids)}, "tokens": len(ids), "ids": list(ids)},),
            finish_reason="length" if at + len(ids) >= most else None,
            prompt_tokens=12,
            cached_tokens=5,
            completion_tokens=at + len(ids),
            prompt_ids=(1, 2, 3) if round_.wants_prompt else None,
        )

    def release(self, key: str) -> None:
        self.released.append(key)
        self.answers.pop(key, None)

    def facts(self) -> VerifierFacts:
        curve = ((1, 0.01), (9, 0.03))
        return VerifierFacts("fake-model", "words", 2048, 8, curve, waiting=2, busy=self.working)

    async def warm_up(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


def a_round(number: int, at: int, *draft: int, **more: Any) -> dict[str, Any]:
    return {"key": KEY, "number": number, "at": at, "draft": list(draft), **more}


def lines(answer: Any) -> list[Any]:
    """The objects of a reply in lines."""
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.body.endswith(b"\n")
    return [json.loads(line) for line in answer.body.splitlines()]
