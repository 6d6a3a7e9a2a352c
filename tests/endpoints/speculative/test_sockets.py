"""Rounds over real connections: what passes, what is kept, and what comes of every fault."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import anyio
import httpx2
import openai
import pytest
from endpoints.speculative.made_pair import FACTS, REQUEST, TARGET, SlowDrafter
from endpoints.speculative.verify_server import SPOKEN, VerifyServer, verify_server
from scripted_server import chunk, sse

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.endpoints.speculative.verifier_client import VerifierClient
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended
from disco.request import Request
from disco.speculate.messages import Opening, Round

pytestmark = [pytest.mark.anyio, pytest.mark.real]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # of the server


def client_of(served: VerifyServer, **more: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="secret-key", base_url=served.base_url, max_retries=0, **more)


async def answer_of(served: VerifyServer, sdk: openai.AsyncOpenAI, **settings: Any) -> Any:
    pairing = Pairing(SlowDrafter(token_s=0.001, read_s=0.01))
    server = OpenAIEndpoint(client=sdk)
    await pairing.ask(sdk)
    settings = {"window": 4, "parallel": 2, "always": True, **settings}
    text, end = "", None
    try:
        async with SpeculativeEndpoint(server, pairing, **settings).open(REQUEST) as attempt:
            async for event in attempt:
                if isinstance(event, Ended):
                    end = event
                else:
                    text += "".join(delta.text for delta in event)
        return text, end, attempt
    finally:
        await pairing.aclose()


@pytest.mark.parametrize("parallel", [1, 2])
async def test_an_answer_takes_two_connections_and_gives_them_back(parallel):
    async with verify_server() as served, client_of(served) as sdk:
        text, end, attempt = await answer_of(served, sdk, parallel=parallel)
        assert (text, end.finish_reason) == (SPOKEN, "stop")
        assert attempt.speculation.distributed_tokens > 20
        assert attempt.speculation.rounds == len(served.rounds)
        # A stream, and `Rounds.in_flight`; at once: on a busy machine a pause outlasts an idle connection.
        assert served.most_connected <= 1 + 2 * parallel
        pool = sdk._client._transport._pool
        assert all(one.is_idle() for one in pool.connections)
        # A connection that was kept is one that the SDK can use again.
        before = served.connections
        await sdk.get("/disco/verifier", cast_to=object)
        assert served.connections == before


async def test_every_byte_is_counted():
    async with verify_server() as served, client_of(served) as sdk:
        made = VerifierClient(sdk, name="server", request=REQUEST, opening=lambda: Opening([]))
        sent = [Round("0" * 32, 0, 0, opening=Opening(REQUEST.messages))]
        sent += [Round("0" * 32, n, n, (TARGET[n],)) for n in range(1, 4)]
        for round_ in sent:
            await made.round(round_)
        await made.aclose()
        up = sum(len(head) for head in served.heads) + sum(
            len(json.dumps(body, separators=(",", ":"))) for body in served.bodies
        )
        assert made.traffic.bytes_up == up
        assert made.traffic.bytes_down > 4 * 60


async def test_later_rounds_have_the_same_key_and_headers_but_not_the_sdks_statistics():
    request = Request(REQUEST.messages, "m", {}, extra_headers={"x-team": "a"}, extra_query={"v": "2"})
    async with verify_server() as served, client_of(served) as sdk:
        made = VerifierClient(sdk, name="server", request=request, opening=lambda: Opening([]))
        await made.round(Round("0" * 32, 0, 0, opening=Opening(REQUEST.messages)))
        await made.round(Round("0" * 32, 1, 1))
        await made.aclose()
        first, second = (head.lower() for head in served.heads)
        for line in (b"authorization: bearer secret-key", b"x-team: a", b"?v=2 "):
            assert line in first
            assert line in second
        assert b"x-stainless" in first
        assert b"x-stainless" not in second
        assert "secret-key" not in repr(made) + repr(made._lines)


@pytest.mark.parametrize("hooks", [True, False])
async def test_a_client_with_hooks_sees_every_request(hooks):
    seen: list[httpx2.Request] = []

    async def hook(request: httpx2.Request) -> None:
        seen.append(request)

    http = httpx2.AsyncClient(event_hooks={"request": [hook]} if hooks else {})
    async with verify_server() as served, client_of(served, http_client=http) as sdk:
        text, *_ = await answer_of(served, sdk)
        assert text == SPOKEN
        assert (len(seen) == len(served.paths)) == hooks


async def test_a_lost_answer_is_opened_again_with_its_ids():
    async with verify_server(forgets_after=20) as served, client_of(served) as sdk:
        text, end, _ = await answer_of(served, sdk)
        assert (text, end.finish_reason) == (SPOKEN, "stop")
        first, again = (one for one in served.rounds if one.opening is not None)
        assert first.opening.ids == ()
        assert again.opening.ids == TARGET[: len(again.opening.ids)]
        assert len(again.opening.ids) >= 15
        assert first.opening.messages == again.opening.messages


OTHER = replace(FACTS, model="another", vocabulary="other", fingerprint="f2")


async def test_a_model_that_was_replaced_in_mid_answer_does_not_go_on_with_it():
    """Another vocabulary's ids would be read, and another writer's text would follow."""
    async with verify_server(forgets_after=20, next_facts=OTHER) as served, client_of(served) as sdk:
        pairing, text = Pairing(SlowDrafter(token_s=0.001, read_s=0.01)), ""
        await pairing.ask(sdk)

        async def read() -> None:
            nonlocal text
            made = SpeculativeEndpoint(OpenAIEndpoint(client=sdk), pairing, window=4, always=True)
            async with made.open(REQUEST) as one:
                async for event in one:
                    text += "".join(delta.text for delta in event)

        with pytest.raises(EndpointFailure) as failure:
            await read()
        assert failure.value.kind is FailureKind.SERVER
        assert SPOKEN.startswith(text)
        assert text
        assert pairing.is_due, "it must be asked what it is now"
        assert (await pairing.ask(sdk)).fingerprint == "f2"
        await pairing.aclose()


@pytest.mark.parametrize("verifies", [True, False])
async def test_a_model_that_was_replaced_before_the_answer_is_found_out(verifies):
    chat = sse(chunk("Hello"), chunk(finish="stop"))
    async with verify_server(chat=chat) as served, client_of(served) as sdk:
        pairing, text = Pairing(SlowDrafter(token_s=0.001, read_s=0.01)), ""
        await pairing.ask(sdk)
        served.facts = OTHER if verifies else None  # another model, or a server of another kind
        async with SpeculativeEndpoint(OpenAIEndpoint(client=sdk), pairing, always=True).open(REQUEST) as one:
            async for event in one:
                text += "".join(delta.text for delta in event) if isinstance(event, list) else ""
        assert text == (SPOKEN if verifies else "Hello")
        assert one.usage.completion_tokens > 0
        if verifies:
            assert one.speculation.drafted == 0, "its tokens mean something else to the drafter"
            assert pairing.facts == OTHER
            *_, last = [round_.opening for round_ in served.rounds if round_.opening]
            assert last.fingerprint == "f2"
        await pairing.aclose()


async def test_closing_while_the_server_is_asked_what_it_is_begins_nothing(monkeypatch):
    async with verify_server() as served, client_of(served) as sdk:  # it has no chat, so it is asked
        pairing, asked, goes_on = Pairing(None), anyio.Event(), anyio.Event()
        real = pairing.ask

        async def ask(client: openai.AsyncOpenAI) -> Any:
            asked.set()
            await goes_on.wait()
            return await real(client)

        monkeypatch.setattr(pairing, "ask", ask)
        attempt = SpeculativeEndpoint(OpenAIEndpoint(client=sdk), pairing).open(REQUEST)

        async def read() -> None:
            async for _ in attempt:
                pytest.fail("it was closed")

        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                await asked.wait()
                await attempt.aclose()
                goes_on.set()
        assert served.paths[-1] == "/v1/disco/verifier"
        assert not served.rounds
        await pairing.aclose()


@pytest.mark.parametrize("dies_after", [0, 1, 5, 20])
async def test_a_server_that_is_gone_is_a_connection_failure(dies_after):
    async with verify_server(dies_after=dies_after) as served, client_of(served) as sdk:
        with pytest.raises(EndpointFailure) as failure, anyio.fail_after(5):
            await answer_of(served, sdk)
        assert failure.value.kind is FailureKind.CONNECTION
        assert isinstance(failure.value.error, openai.APIConnectionError)


async def test_cancelling_closes_the_connections():
    async with verify_server() as served, client_of(served) as sdk:
        pairing = Pairing(SlowDrafter(token_s=0.001, read_s=0.01))
        await pairing.ask(sdk)
        for after_s in (0.005, 0.03, 0.08):
            attempt = SpeculativeEndpoint(OpenAIEndpoint(client=sdk), pairing, always=True).open(REQUEST)
            with anyio.move_on_after(after_s):
                async for _ in attempt:
                    pass
            await attempt.aclose()
            pool = sdk._client._transport._pool
            with anyio.fail_after(2):  # it notices within a token, and is then told
                while served.open or any(  # noqa: ASYNC110
                    one.is_closed() is one.is_idle() for one in pool.connections
                ):
                    await anyio.sleep(0.001)
        await pairing.aclose()
        await sdk.get("/disco/verifier", cast_to=object)


async def test_the_server_is_told_of_answers_that_nobody_wants_any_more():
    async with verify_server() as served, client_of(served) as sdk:
        pairing = Pairing(SlowDrafter(token_s=0.001, read_s=0.01))
        await pairing.ask(sdk)
        for _ in range(3):
            async with SpeculativeEndpoint(OpenAIEndpoint(client=sdk), pairing, always=True).open(
                REQUEST
            ) as one:
                await one.__anext__()
        await pairing.aclose()
        assert set(served.released) == {one.key for one in served.rounds}
        assert len(served.released) == 3
        await answer_of(served, sdk)
        assert len(served.released) == 3


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(429, "rate_limit_exceeded", FailureKind.RATE_LIMIT), (503, "verifier_failed", FailureKind.SERVER)],
)
async def test_a_refusal_is_the_sdks_error(status, code, kind, monkeypatch):
    async with verify_server() as served, client_of(served) as sdk:
        real = VerifyServer.round

        async def refuse(self: VerifyServer, writer: Any, round_: Round) -> None:
            if round_.number < 2:
                await real(self, writer, round_)
            else:
                await self.document(writer, status, {"error": {"message": "no", "code": code}})

        monkeypatch.setattr(VerifyServer, "round", refuse)
        with pytest.raises(EndpointFailure) as failure:
            await answer_of(served, sdk)
        assert failure.value.kind is kind
        assert failure.value.error.status_code == status


async def test_a_round_that_something_between_has_sent_twice_is_asked_for_again(monkeypatch):
    async with verify_server() as served, client_of(served) as sdk:
        real, refused = VerifyServer.round, []

        async def refuse(self: VerifyServer, writer: Any, round_: Round) -> None:
            if len(refused) == 2 or not self.verdicts or round_.number in refused:
                await real(self, writer, round_)
                return
            refused.append(round_.number)
            await self.document(writer, 409, {"error": {"message": "no", "code": "superseded"}})

        monkeypatch.setattr(VerifyServer, "round", refuse)
        text, end, _ = await answer_of(served, sdk)
        assert (text, end.finish_reason) == (SPOKEN, "stop")
        assert len(refused) == 2


async def test_the_probe_is_kept_and_a_page_is_no_verifier():
    async with verify_server() as served, client_of(served) as sdk:
        now = [0.0]
        pairing = Pairing(None, clock=lambda: now[0])
        assert pairing.is_due
        assert not pairing.is_refuted
        assert await pairing.ask(sdk) == FACTS
        assert await pairing.ask(sdk) == FACTS
        assert len(served.paths) == 1
        served.facts = None
        now[0] = 2000.0
        assert pairing.is_due
        assert await pairing.ask(sdk) is None
        assert pairing.is_refuted
    async with client_of(served) as sdk:
        now[0] = 4000.0
        assert await pairing.ask(sdk) is None  # nobody is there
        assert not pairing.is_due
        now[0] = 4031.0
        assert pairing.is_due
