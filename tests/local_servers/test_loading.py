"""A server that has still to load its model: the load has a clock of its own, and outlives those who wait for it.

The servers are fakes on real sockets. Their load ends when a test says so, and the clock is moved, not waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading

import anyio
import httpx2
import moved_clock
import openai
import pytest
from defects.asking import preset, tried
from faults.in_memory import MemoryServer, spoken
from faults.lab import get
from local_servers.desks import collected, endpoint_at
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import DONE, KnownText, QuirkServer, Written, chunk, running
from scripted_server import WAIT_FOR_CLOSE, answer, scripted_server, sse
from scripted_server import chunk as scripted_chunk

from disco import AsyncDisco, ContextLengthError
from disco.endpoints.continuation.prefix_token_ids import proved_vocabulary
from disco.endpoints.local_server.model_load import LOAD_WITHIN_S, ModelLoad
from disco.errors import EndpointFailure, FailureKind
from disco.events import Started
from disco.request import Request, Timeouts

pytestmark = [pytest.mark.real, pytest.mark.anyio]

TEXT = "The sea is wide and deep. It keeps its own time, and nobody owns it."
ASKED = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 40}
HELLO = Request(ASKED["messages"], model="m")
CLOUD = ["Salt", " and", " water."]
# An application's patience: shorter than the load.
PATIENT = Timeouts(connect_s=5.0, first_content_s=30.0, gap_s=30.0, total_s=None)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return moved_clock.backend(request.param)


@contextlib.contextmanager
def cold(kind=Ollama, **more):
    """A server whose model is not loaded, until `gate` is set."""
    with running(kind(KnownText(TEXT), loaded=False, gate=threading.Event(), **more)) as server:
        try:
            yield server
        finally:
            server.gate.set()


async def until(what):
    with anyio.fail_after(60 + 1000):  # the clock is moved
        while not what():  # noqa: ASYNC110 - it is another thread's
            await anyio.sleep(0.002)


async def wait_out(seconds):
    """Move the clock, in steps that no session takes for a process that stood still."""
    for _ in range(round(seconds / 0.4)):
        moved_clock.skip(0.4)
        await anyio.sleep(0.001)


def asking(server, **more):
    settings = {"policy": "private", "timeouts": PATIENT, "max_retries": 2}
    return AsyncDisco(local=f"{server.base_url}#{server.models[0]}", **{**settings, **more})


def local_of(client):
    return client.router.endpoints.local


@pytest.mark.parametrize("kind", [Ollama, LMStudio])
async def test_an_answer_waits_for_the_load_whatever_its_own_clocks_say(kind):
    with cold(kind) as server:
        async with asking(server) as client, anyio.create_task_group() as group:
            got = []

            async def ask():
                got.append(await get(client, **ASKED))

            group.start_soon(ask)
            await until(lambda: server.loads)
            able = local_of(client).capabilities()
            assert (able.ready, able.loads, able.loading_s is not None) == (False, True, True)
            await wait_out(40.0)
            assert not got
            server.gate.set()
            await until(lambda: got)
        (only,) = got
        assert (only.text, only.attempts) == (TEXT, [("device", None)])
        assert (server.loads, server.dropped) == (1, 0)
        able = local_of(client).capabilities()
        assert (able.ready, able.loading_s) == (True, None)
        assert able.load_s is not None


async def test_who_stops_waiting_stops_nothing_and_the_next_request_finds_the_model_loaded():
    with cold() as server:
        async with asking(server) as client:
            with anyio.move_on_after(1000):
                async with anyio.create_task_group() as group:
                    group.start_soon(lambda: get(client, **ASKED))
                    group.start_soon(lambda: get(client, stream=False, **ASKED))
                    await until(lambda: server.loads)
                    group.cancel_scope.cancel()
            await anyio.sleep(0.05)  # what were dropped would be by now
            assert (server.loads, server.dropped, server.chats) == (1, 0, [])
            server.gate.set()
            await until(lambda: server.loaded)
            assert (await get(client, **ASKED)).text == TEXT
            assert (server.loads, len(server.chats)) == (1, 1)


@pytest.mark.parametrize("policy", [{"policy": "race"}, {"policy": "length_threshold", "budget": 0.0}])
async def test_another_endpoint_answers_meanwhile_and_the_model_loads_on(policy):
    """Also where the policy would have the device answer alone: the plan knows that its model is not loaded."""
    cloud = MemoryServer(spoken(CLOUD))
    http = httpx2.AsyncClient(transport=cloud)
    elsewhere = {
        "base_url": cloud.base_url,
        "api_key": "secret-key-1234",
        "http_client": http,
        "price": (1.0, 1.0),
    }
    with cold() as server:
        async with asking(server, policy=preset(**policy), **elsewhere) as client:
            for _ in range(2):  # while it loads
                first = await get(client, **ASKED)
                assert (first.text, first.writers) == ("".join(CLOUD), ["server"])
                await until(lambda: server.loads)
            assert (server.loads, server.dropped, server.chats) == (1, 0, [])
            server.gate.set()
            await until(lambda: local_of(client).capabilities().ready)
            await get(client, **ASKED, extra_body={"disco": {"local_only": True}})
        assert (server.loads, server.dropped, len(server.chats)) == (1, 0, 1)


async def test_a_model_that_another_program_had_unloaded_is_found_out(monkeypatch):
    with cold() as server:
        server.gate.set()
        async with endpoint_at(f"{server.base_url}#{server.models[0]}") as endpoint:
            await collected(endpoint.open(HELLO))
            server.loaded = False
            monkeypatch.setattr("disco.endpoints.local_server.local_endpoint._SURE_S", 0.0)
            await endpoint.look()
            assert not endpoint.capabilities().ready
            assert (await collected(endpoint.open(HELLO)))[1] == TEXT
            assert server.loads == 2
            assert server.asked.count("/v1/models") == 1  # of the rest it is not asked again


async def test_a_model_that_cannot_be_loaded_is_said_to_all_who_wait_and_tried_again():
    too_little = "model requires more system memory (9.1 GiB) than is available (2.0 GiB)"
    with cold(refuses=too_little) as server:
        async with endpoint_at(f"{server.base_url}#{server.models[0]}", at_once=2) as endpoint:
            for _ in range(2):
                said = []

                async def ask(said=said):
                    with pytest.raises(EndpointFailure) as caught:
                        await collected(endpoint.open(HELLO))
                    said.append(caught.value)

                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    group.start_soon(ask)
                assert [failure.kind for failure in said] == [FailureKind.SERVER] * 2
                assert all(too_little in str(failure.error) for failure in said)
                assert not endpoint.capabilities().ready
            server.refuses = None
            server.gate.set()
            assert (await collected(endpoint.open(HELLO)))[1] == TEXT


async def test_closing_the_client_ends_the_load():
    with cold() as server:
        async with asking(server) as client, anyio.create_task_group() as group:
            group.start_soon(lambda: get(client, **ASKED))
            await until(lambda: server.loads)
            group.cancel_scope.cancel()
        await until(lambda: server.dropped)
        assert not server.loaded


async def test_a_load_is_given_up_in_the_end():
    begun = anyio.Event()

    async def for_ever():
        begun.set()
        await anyio.sleep_forever()

    load, failures = ModelLoad(for_ever, name="desk"), []

    async def wait():
        try:
            await load.wait()
        except EndpointFailure as failure:
            failures.append(failure)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(wait)
        await begun.wait()
        moved_clock.skip(LOAD_WITHIN_S - 1.0)
        await anyio.sleep(0.01)
        assert load.since is not None
        assert not failures
        moved_clock.skip(1.0)
    assert [failure.kind for failure in failures] == [FailureKind.TIMEOUT] * 2
    assert failures[0] is not failures[1]
    assert load.since is None
    await load.aclose()


async def test_a_plan_does_not_wait_for_a_server_that_is_silent():
    async with scripted_server([WAIT_FOR_CLOSE]) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
        async with anyio.create_task_group() as group:
            group.start_soon(endpoint.look)
            await until(lambda: server.requests)
            moved_clock.skip(0.3)
        await endpoint.look()
        assert len(server.requests) == 1, "it is left alone for a while"
        assert endpoint.capabilities().ready  # nothing is known against it


# ---------------------------------------------------------------------- servers that do not tell


class Unknown(QuirkServer):
    """Lists one model, and holds its headers while it loads it; a load is dropped with its client (a fake)."""

    async def answer(self, path, body):
        if path == "/v1/models":
            return 200, {"data": [{"id": self.models[0], "owned_by": "somebody"}]}
        if path != "/v1/chat/completions":
            return 404, {}
        await self.load()
        return self._stream(body)

    async def _stream(self, body):
        made, written = {"id": "chatcmpl-1", "model": "m"}, Written("")
        async for written in self.writer.write("", {"n_predict": body.get("max_tokens")}):
            if written.text:
                yield chunk(made, {"content": written.text})
        yield chunk(made, {}, written.finish)
        yield DONE


async def test_a_request_that_got_nothing_is_taken_for_one_that_waited_for_the_load():
    with cold(Unknown, models=("m",)) as server:
        async with asking(server) as client, anyio.create_task_group() as group:
            got = []

            async def ask():
                got.append(await get(client, **ASKED))

            group.start_soon(ask)
            await until(lambda: server.loads == 1)
            await wait_out(31.0)  # the application's clock ends the first attempt, and with it its load
            await until(lambda: server.loads == 2)
            assert local_of(client).capabilities().loading_s is not None
            await wait_out(40.0)
            server.gate.set()
            await until(lambda: got)
        assert got[0].text == TEXT
        assert got[0].attempts == [("device", "timeout"), ("device", None)]
        assert [body["messages"][0]["content"] for body in server.chats] == [
            ASKED["messages"][0]["content"],
            "Hello",
            ASKED["messages"][0]["content"],
        ]


async def test_llama_server_says_that_it_loads_and_is_waited_for():
    loading = answer(
        b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
        status="503 Service Unavailable",
    )
    listed = answer(b'{"object":"list","data":[{"id":"m","owned_by":"llamacpp","meta":{"n_params":1}}]}')
    props = answer(b'{"default_generation_settings":{"n_ctx":4096},"total_slots":1}')
    text = answer(
        sse(scripted_chunk("Salt."), scripted_chunk(finish="stop")), content_type="text/event-stream"
    )
    steps = (loading, loading, loading, listed, props, listed, props, text)
    async with scripted_server(*steps) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
        got = []

        async def ask():
            got.append(await collected(endpoint.open(HELLO)))

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await until(lambda: endpoint.capabilities().loading_s is not None)
            assert not endpoint.capabilities().ready
            while not got:
                moved_clock.skip(0.5)
                await anyio.sleep(0.005)
        (events, text), *_ = got
        assert (events[0], text) == (Started(), "Salt.")
        assert endpoint.capabilities().context_tokens == 4096


# ---------------------------------------------------------------------- prompts that would be cut

LONG = [{"role": "user", "content": "wave " * 7000}]


async def test_the_context_is_learnt_before_a_long_prompt_is_sent():
    with cold(context_tokens=4096) as server:
        server.gate.set()
        async with asking(server) as client:
            failed = await get(client, messages=LONG)
            assert isinstance(failed.error, ContextLengthError)
            assert tried(failed) == [("device", "context_length")]
            assert "has room for 4,096 tokens" in str(failed.error)
            # The next one is not even tried.
            refused = await get_error(client, LONG)
            assert isinstance(refused, ContextLengthError)
            assert (await get(client, **ASKED)).text == TEXT
        assert [body["messages"] for body in server.chats] == [ASKED["messages"]]


async def get_error(client, messages):
    with pytest.raises(openai.OpenAIError) as caught:
        await client.chat.completions.create(model="m", messages=messages)
    return caught.value


async def test_another_endpoint_answers_what_is_too_long_here():
    cloud = MemoryServer(spoken(CLOUD))
    http = httpx2.AsyncClient(transport=cloud)
    elsewhere = {
        "base_url": cloud.base_url,
        "api_key": "secret-key-1234",
        "http_client": http,
        "price": (1.0, 1.0),
    }
    with cold(context_tokens=4096) as server:
        server.gate.set()
        async with asking(server, policy=preset("device_only"), **elsewhere) as client:
            given = await get(client, messages=LONG)
        assert (given.text, given.writers) == ("".join(CLOUD), ["server"])
        assert server.chats == []


async def test_a_context_of_the_models_own_is_known_before_it_is_loaded():
    with cold(
        parameters='num_ctx                        2048\nstop                           "<|im_end|>"'
    ) as server:
        async with endpoint_at(f"{server.base_url}#{server.models[0]}") as endpoint:
            await endpoint.look()
            able = endpoint.capabilities()
            assert (able.context_tokens, able.ready) == (2048, False)
        assert server.loads == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_to_a_cut_prompt_is_no_success(stream):
    """Of a server that tells nothing of its context: what it has read shows it."""
    listed = answer(b'{"object":"list","data":[{"id":"m","owned_by":"somebody"}]}')
    counts = {"prompt_tokens": 2050, "completion_tokens": 2, "total_tokens": 2052}
    script = answer(
        sse(scripted_chunk("Of what?"), {**scripted_chunk(finish="stop"), "usage": counts}),
        content_type="text/event-stream",
    )
    async with (
        scripted_server(listed, answer(b"{}", status="404 Not Found"), script) as server,
        AsyncDisco(local=f"{server.base_url}#m", policy="private", max_retries=0) as client,
    ):
        failed = await get(client, messages=LONG, stream=stream)
    assert isinstance(failed.error, ContextLengthError)
    assert "it has read 2,050 tokens of at least 7,000" in str(failed.error)
    assert tried(failed) == [("device", "context_length")]


# ---------------------------------------------------------------------- a file that a server names


async def test_a_pipe_that_a_server_names_as_its_model_is_not_opened(tmp_path):
    pipe = tmp_path / "model.gguf"
    os.mkfifo(pipe)
    async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0) as client:
        with anyio.fail_after(20):
            for named in (pipe, tmp_path, "no\0file"):
                assert await proved_vocabulary(client, named) is None
