"""What the preset "assist" leaves as it is, and other ways to its answers, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from faults.dividing import (
    ANSWER,
    DEVICE,
    PIECES,
    SERVER,
    assist,
    device,
    dividing,
    question,
    responds,
    whole,
    writes,
)
from faults.in_memory import MemoryServer, Reply
from faults.lab import get
from server.asgi import ask

from disco import AsyncDisco, Disco
from disco.cli import main
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault as DeviceFault
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import FailureKind
from disco.profiles import DeviceProfile
from disco.server import make_app

pytestmark = pytest.mark.anyio

LONG = question(3000)  # longer than most prompts, so that "balanced" asks the server
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
QUICK = DeviceProfile(name="quick reader", source="test", prefill_tps=600.0, decode_tps=25.0)
SCHEMA = {"name": "s", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
ALONE: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL]},
    "a JSON object": {"response_format": {"type": "json_object"}},
    "a JSON schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "reasoning": {"reasoning_effort": "low"},
    "several choices": {"n": 2},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "no pace": {"extra_body": {"disco": {"pace_tps": "off"}}},
    "not streamed": {"stream": False},
    "no migration": {"extra_body": {"disco": {"migrate": False}}},
    "background": {"extra_body": {"disco": {"budget_class": "background"}}},
    "a short prompt": {"messages": question(5)},
    "this device only": {"extra_body": {"disco": {"local_only": True}}},
}


class Recorder(MemoryServer):
    """Keeps the bytes of every request. Mutable: `sent`."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self.sent: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(await request.aread())
        return await super().handle_async_request(request)


def document(body: Any) -> Reply:
    """A whole answer, as a stream or not, with as many choices as are asked for."""
    if body.get("stream"):
        return writes()(body)
    message = {"role": "assistant", "content": ANSWER}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(body.get("n", 1))]
    made = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    return Reply([json.dumps(made).encode()], headers={"content-type": "application/json"})


@pytest.mark.parametrize("asked", ALONE)
async def test_what_is_not_divided_is_sent_as_under_the_preset_balanced(asked):
    sent, routes = [], []
    for preset in ("assist", "balanced"):
        server = Recorder(document)
        able = frozenset({"tools", "json_schema", "logprobs", "n", "reasoning"})
        given: dict[str, Any] = {"policy": preset, "on_route": routes.append}
        async with dividing(server, device(features=able), **given) as client:
            params: dict[str, Any] = {"model": "m", "messages": LONG, "stream": True, **ALONE[asked]}
            got = await client.chat.completions.create(**params)
            if params["stream"]:
                async with got:
                    async for _ in got:
                        pass
        sent.append(server.sent)
    assert sent[0] == sent[1]
    assert bool(sent[0]) == (asked not in ("this device only", "a short prompt", "background"))
    assert all(a.assist is None or a.assist.outcome == "undivided" for a in routes)


async def test_a_request_that_is_divided_differs_in_its_limit_only():
    bodies = []
    for preset in ("assist", "balanced"):
        server = MemoryServer(document)
        async with dividing(server, device(prefill_tps=600.0), policy=preset, device_profile=QUICK) as client:
            await get(client, messages=LONG, temperature=0.5)
        bodies.append(server.requests[0])
    assert bodies[0].pop("max_tokens") > 0
    assert bodies[0] == bodies[1]


async def test_a_limit_of_the_application_is_lowered_under_its_own_name():
    server = MemoryServer(document)
    async with dividing(server) as client:
        got = await get(client, messages=question(), max_completion_tokens=80)
    assert ANSWER.startswith(got.text)
    assert (got.route.answer_tokens, got.route.finish_reason) == (80, "length")
    assert server.requests[0]["max_completion_tokens"] == got.route.assist.tokens < 80
    assert "max_tokens" not in server.requests[0]


@pytest.mark.parametrize(("what", "amount"), [("server_tokens", 12_000), ("device_tokens", 12_000)])
async def test_a_budget_holds_and_what_it_does_not_cover_is_not_divided(what, amount):
    server, local, limited = MemoryServer(document), device(), what.removesuffix("_tokens")
    async with dividing(server, local, budget={what: amount, "window_s": 86_400}) as client:
        answers = [await get(client, messages=question(about=f"sea {n}"), max_tokens=90) for n in range(12)]
    spent = 0
    for got in answers:
        assert got.error is None
        assert ANSWER.startswith(got.text)
        assert got.route.answer_tokens == 90
        spent += sum(
            a.prompt_tokens + a.completion_tokens for a in got.route.attempts if a.endpoint == limited
        )
    assert answers[0].route.assist.outcome == "handed_over"
    assert answers[-1].route.assist.why == "budget"
    assert (server.open, local.busy) == (0, 0)
    assert spent <= amount


@pytest.mark.parametrize("given", ["a device only", "a server only"])
async def test_with_one_endpoint_the_preset_serves_all_the_same(given):
    if given == "a device only":
        client = dividing(None, base_url=None, api_key=None)
    else:
        server = MemoryServer(document)
        http = httpx2.AsyncClient(transport=server)
        client = AsyncDisco(base_url=server.base_url, api_key="k", http_client=http, policy="assist")
    async with client:
        got = await get(client, messages=question())
    whole(got)
    assert got.route.assist is None or got.route.assist.why == "endpoints"


async def test_a_copy_of_a_client_divides_its_answers():
    server, local = MemoryServer(document), device()
    async with dividing(server, local, policy="balanced") as client:
        copy = client.with_options(default_options={"preset": "assist"}, max_retries=1)
        answers = [
            await get(one, messages=question(about=f"sea {n}")) for n, one in enumerate((copy, client))
        ]
    for got in answers:
        whole(got)
    divided, plain = (got.route.assist for got in answers)
    assert (divided.outcome, plain) == ("handed_over", None)


@pytest.mark.parametrize("limit", [None, 90])
async def test_a_servers_own_responses_are_divided_as_well(limit):
    """The end "incomplete" of the server's part is not shown."""
    server, routes = MemoryServer(responds(50, "incomplete")), []
    async with dividing(server, on_route=routes.append) as client:
        asked: dict[str, Any] = {"model": "m", "input": question(), "stream": True}
        asked |= {} if limit is None else {"max_output_tokens": limit}
        stream = await client.responses.create(**asked)
        events = [event async for event in stream]
    shown = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    sent = server.requests[0]
    assert 16 <= sent["max_output_tokens"] <= routes[0].assist.tokens
    assert routes[0].assist.outcome == "handed_over"
    assert shown == events[-1].response.output_text == ANSWER[: len(shown)]
    assert limit is not None or shown == ANSWER
    assert limit is None or routes[0].answer_tokens == limit
    assert events[-1].type == ("response.completed" if limit is None else "response.incomplete")
    assert not any(event.type == "response.incomplete" for event in events[:-1])


@pytest.mark.parametrize("status", [400, 422])
async def test_responses_that_refuse_the_limit_are_asked_without_it(status):
    error = b'{"error": {"message": "Invalid \'max_output_tokens\': integer below minimum value."}}'
    refusal = Reply([error], status, {"content-type": "application/json"})
    server, routes = MemoryServer(refusal, responds(len(PIECES), "completed")), []
    async with dividing(server, on_route=routes.append) as client:
        asked: dict[str, Any] = {"model": "m", "input": question(), "stream": True}
        stream = await client.responses.create(**asked)
        events = [event async for event in stream]
    assert ["max_output_tokens" in body for body in server.requests] == [True, False]
    assert events[-1].response.output_text == ANSWER
    assert routes[0].assist.outcome == "handed_over"


async def test_the_local_server_divides_the_answers_of_its_clients():
    server, local = MemoryServer(document), device()
    async with dividing(server, local, max_retries=1) as client:
        app = make_app(client)
        body = {
            "model": "m",
            "messages": question(),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        got = await ask(app, "/v1/chat/completions", body)
    events = [json.loads(line[6:]) for line in got.body.decode().split("\n\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == ANSWER
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]
    (counted,) = [event["usage"] for event in events if event.get("usage")]
    assert counted["completion_tokens"] < 2 * len(PIECES)
    assert "max_tokens" in server.requests[0]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_server_that_is_not_known_to_continue_may_begin(dies):
    """If the device then dies, the text that came stays, with the error."""
    broken = DeviceFault(0, kind=FailureKind.CRASHED, silence_s=2.0, at_once=True)
    server, local = MemoryServer(writes()), device(fault=broken if dies else None)
    async with dividing(server, local, continuation="none") as client:
        got = await get(client, messages=question())
    assert (server.open, local.busy) == (0, 0)
    if not dies:
        whole(got)
        return
    assert got.error is not None
    assert ANSWER.startswith(got.text)
    assert len(got.text.split()) >= got.route.assist.tokens - 2


def test_the_synchronous_client_divides_as_well():
    """On the machine's clock, where the plan holds the device for much slower than it is."""
    beginning = SimulatedEndpoint("server", SimulatedProfile(answer=ANSWER, decode_tps=500.0))
    local = device(prefill_tps=2000.0, decode_tps=500.0)
    given: dict[str, Any] = {"policy": "assist", "device_profile": DEVICE, "server_profile": SERVER}
    with Disco(local=local, tiers=[beginning], **given) as client:
        with client.chat.completions.create(model="m", messages=question(), stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == ANSWER
        assert stream.route.assist.outcome == "handed_over"


def test_a_chat_shows_a_divided_answer(monkeypatch, capsys):
    """And names both writers."""
    beginning = SimulatedEndpoint("server", SimulatedProfile(answer=ANSWER, decode_tps=500.0))
    local = device(prefill_tps=2000.0, decode_tps=500.0)

    def client(**given: Any) -> AsyncDisco:
        own = {"local": local, "device_profile": DEVICE, "server_profile": SERVER}
        return AsyncDisco(tiers=[beginning], preset=given["preset"], on_route=given["on_route"], **own)

    said = iter([question()[0]["content"], "/quit"])
    monkeypatch.setattr("disco.cli.chat.chat_setup.AsyncDisco", client)
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    assert main(["chat", "--preset", "assist"]) == 0
    shown = capsys.readouterr().out
    assert "".join(shown.split()).count("".join(ANSWER.split())) == 1
    assert "[server → device; first word after" in shown


def text_about(number: int) -> str:
    """Prose of 25 sentences, and a question."""
    about = "".join(f"The {number}th river has stone {n} on its bank, and a mill by it. " for n in range(25))
    return f"{about}\n\nWhat lies by stone {number}?"


@pytest.mark.parametrize("refine", ["off", "lexical"])
async def test_what_the_device_has_read_of_a_conversation_it_does_not_read_again(refine):
    """Turn by turn, also where the text it read was the server's, or was refined."""
    server, local, had = MemoryServer(writes()), device(), 0
    messages: list[dict[str, str]] = []
    outcomes, shares = [], []
    async with dividing(server, local, policy=assist(refine=refine)) as client:
        for number in range(4):
            messages.append({"role": "user", "content": text_about(number)})
            got = await get(client, messages=messages)
            whole(got)
            ours = [a for a in got.route.attempts if a.place == "device"]
            assert ours[0].cached_tokens >= had
            outcomes.append(got.route.assist.outcome)
            shares.append(got.route.assist.tokens or 0)
            had = ours[-1].prompt_tokens + ours[-1].completion_tokens - 2
            messages.append({"role": "assistant", "content": got.text})
    assert ours[0].cached_tokens > ours[0].prompt_tokens / 2
    assert outcomes.count("handed_over") >= 2
    assert max(shares) < shares[0] + 3  # the server's share grows with what is new, not with the conversation


async def test_where_the_server_alone_is_cheapest_it_answers_alone():
    """The policy "balanced" might let the reader wait for the device."""
    async with dividing(MemoryServer(writes())) as client:
        got = await get(client, messages=question(), max_tokens=12)
    assert (got.route.assist.outcome, got.route.assist.why) == ("undivided", "not_cheaper")
    assert [a.endpoint for a in got.route.attempts] == ["server"]
    assert got.route.attempts[0].started_s < 0.1


async def test_the_share_follows_the_devices_own_count_of_the_prompt():
    """Words of a letter and words of six are one token each to this device; by their characters they are not."""
    shares = []
    for word in ("a", "stones"):
        messages = [{"role": "user", "content": " ".join([word] * 800)}]
        async with dividing(MemoryServer(writes())) as client:
            got = await get(client, messages=messages)
        whole(got)
        shares.append(got.route.assist.tokens)
    assert shares[0] == shares[1]


@pytest.mark.parametrize(
    ("beta", "outcome", "last"), [(0.999, "kept", "server"), (0.001, "handed_over", "device")]
)
async def test_an_answer_that_the_device_agrees_with_too_little_stays_at_the_server(beta, outcome, last):
    """The first score has no other to be compared with: nearly all of such answers stay, or nearly none."""
    server, local = MemoryServer(writes()), device(mean_logp=-2.0)
    async with dividing(server, local, policy=assist(beta=beta)) as client:
        got = await get(client, messages=question())
    whole(got)
    (verdict,) = got.route.judgements
    assert (got.route.assist.outcome, got.route.segments[-1].endpoint) == (outcome, last)
    assert (verdict.kind, verdict.score) == ("agreement", got.route.assist.agreement)
    assert verdict.outcome == ("handed_up" if outcome == "kept" else "kept")
    assert len(server.requests) == (2 if outcome == "kept" else 1)
    assert "max_tokens" not in server.requests[-1] or outcome != "kept"
