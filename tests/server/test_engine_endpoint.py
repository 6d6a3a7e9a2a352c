"""Chats of a verify server: its engine is the model on this machine."""

from __future__ import annotations

import json

import anyio
import pytest
from asgi import ask, asking
from fake_engine import FakeEngine, token
from serving import HELLO
from watched import virtually

from disco import AsyncDisco
from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp.batching.engine_endpoint import EngineEndpoint
from disco.errors import ContextLengthError, EndpointFailure, FailureKind, LocalModelError
from disco.events import Delta, DeltaKind, Ended, ToolCallDelta
from disco.request import Prefix, Request
from disco.server import make_app
from disco.speculate.messages import Verdict

CHATS = "/v1/chat/completions"
CHAT = {"model": "m", "messages": HELLO, "max_tokens": 3, "seed": 5, "disco": {"pace_tps": "off"}}


def client(engine: FakeEngine) -> AsyncDisco:
    return AsyncDisco(local=EngineEndpoint(engine, name="fake"), preset="private")


def test_a_chat_is_a_round_that_goes_on_alone_to_its_end():
    engine = FakeEngine()
    with asking(client(engine), verifier=engine) as asked:
        answer = asked(CHATS, CHAT).json
        assert answer["choices"][0]["message"]["content"] == "Größe €" * 3
        assert answer["choices"][0]["finish_reason"] == "length"
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (12, 3)
        streamed = asked(CHATS, {**CHAT, "stream": True}).body.decode().split("\n\n")
        assert streamed[-2:] == ["data: [DONE]", ""]
        parts = [json.loads(part.removeprefix("data: ")) for part in streamed[:-2]]
        said = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)
        assert said == "Größe €" * 3
        assert asked("/v1/models").json["data"][0]["id"] == "local/fake"
    first, second = engine.rounds
    assert first.key != second.key, "else the second caller would be sent the first one's answer"
    assert first.opening.messages == HELLO
    assert (first.opening.seed, first.opening.params["max_tokens"]) == (5, 3)
    assert (first.alone, first.opening.prefix, first.opening.ids) == (2048, {}, ())
    assert engine.working == 0


NOTHING = Prefix()


async def events(endpoint: Endpoint, prefix: Prefix = NOTHING, **params: object) -> list[object]:
    async with endpoint.open(Request(HELLO, "m", params), prefix) as attempt:
        found = [event async for event in attempt]
        assert isinstance(found[-1], Ended)
        assert attempt.usage == found[-1].usage
    return found


def test_what_the_engine_is_told_and_what_its_verdicts_become(monkeypatch):
    engine = FakeEngine()
    call = {"index": 0, "arguments": "{", "id": "c", "name": "f"}
    said = [
        {"text": "", "kind": "tool", "tokens": 2, "tool_calls": [call]},
        {"text": "x", "tokens": 1, "ids": [3], "logprobs": {"content": []}, "logp": [-0.5]},
    ]
    verdict = Verdict(0, 0, (1, 2, 3), tuple(said), "tool_calls")
    monkeypatch.setattr(engine, "_verdict", lambda *_: verdict)

    async def main():
        endpoint = EngineEndpoint(engine, name="fake")
        assert not endpoint.capabilities().ready
        await endpoint.warm_up()
        can = endpoint.capabilities()
        assert (can.ready, can.context_tokens, can.vocabulary, can.waiting) == (True, 2048, "words", 2)
        prefix = Prefix(text="Once upon", tokens=2, ids=(8, 9), vocabulary="words", withheld=" upon")
        (deltas, ended) = await events(endpoint, prefix, seed=-1)
        assert ended.finish_reason == "tool_calls"
        assert deltas == [
            Delta("", 2, DeltaKind.TOOL, tool_calls=(ToolCallDelta(0, "{", "c", "f"),)),
            Delta("x", 1, ids=(3,), logprobs={"content": []}, logp=(-0.5,)),
        ]
        (round_,) = engine.rounds
        told = {"text": "Once upon", "tokens": 2, "ids": (8, 9), "vocabulary": "words", "withheld": " upon"}
        assert round_.opening.prefix == told
        assert round_.opening.seed == 2**64 - 1
        await events(endpoint)
        await events(endpoint)
        assert engine.rounds[1].opening.seed != engine.rounds[2].opening.seed

    anyio.run(main)


def test_an_engine_that_stops_without_a_reason_has_filled_its_context():
    async def main():
        engine = FakeEngine()
        endpoint = EngineEndpoint(engine, name="fake")
        await endpoint.warm_up()
        found = await events(endpoint, max_tokens=5000)
        assert found[-1].finish_reason == "length"
        assert found[0] == [Delta("Größe €", ids=(token(0),))]

    anyio.run(main)


@pytest.mark.parametrize(
    ("fails", "status", "code"),
    [
        (
            EndpointFailure(FailureKind.CONTEXT_LENGTH, ContextLengthError("long")),
            400,
            "context_length_exceeded",
        ),
        (EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError("busy")), 429, "rate_limit_exceeded"),
        (EndpointFailure(FailureKind.CRASHED, LocalModelError("it crashed")), 502, "local_model_failed"),
    ],
    ids=str,
)
def test_a_failure_is_that_of_a_local_model(fails, status, code):
    engine = FakeEngine(fails=fails)
    with asking(client(engine), verifier=engine) as asked:
        answer = asked(CHATS, CHAT)
        assert (answer.status, answer.error["code"]) == (status, code)


def test_an_attempt_that_another_task_closes_stops_the_engine():
    async def main():
        engine = FakeEngine(gap_s=1.0)
        endpoint = EngineEndpoint(engine, name="fake")
        found = []

        async def read():
            found.extend([event async for event in attempt])

        async with endpoint.open(Request(HELLO, "m")) as attempt, anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.sleep(2.5)
            await attempt.aclose()
            assert (engine.working, engine.left) == (0, 1)
            await attempt.aclose()
        assert len(found) == 2

    virtually(main)


def test_a_chat_whose_client_leaves_stops_the_engine():
    async def main():
        engine = FakeEngine(gap_s=1.0)
        async with client(engine) as made:
            app = make_app(made, verifier=engine)
            with anyio.move_on_after(2.5):
                await ask(app, CHATS, {**CHAT, "max_tokens": 50, "stream": True})
        assert (engine.working, engine.left) == (0, 1)

    virtually(main)
