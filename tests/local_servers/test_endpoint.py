"""A server as the local side: what it tells, what it is told, what is made of its failures."""

from __future__ import annotations

import contextlib

import anyio
import openai
import pytest
from local_servers.desks import KINDS, collected
from loops import by_turns, mostly
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import running
from quirks.writers import KnownText
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, scripted_server, sse
from servers import free_port

from disco import AsyncDisco, ConfigurationError, ContextLengthError, LocalModelError, LocalServer
from disco.dispatch import Preset
from disco.endpoints.contract import Endpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Started
from disco.request import Prefix, Request

pytestmark = pytest.mark.anyio

SEA = "The sea is wide and deep. It keeps its own time, and nobody owns it."
HELLO = Request([{"role": "user", "content": "Tell me about the sea."}], model="gpt-4o-mini")


@contextlib.asynccontextmanager
async def endpoint_at(address, **more):
    made = LocalServer.at(address)
    endpoint = LocalServer(base_url=made.base_url, model=made.model, **more).endpoint()
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


# ---------------------------------------------------------------------- what it tells


@pytest.mark.parametrize(("desk", "anyio_backend"), by_turns(KINDS), indirect=True)
async def test_every_server_writes_and_is_found_to_continue(desk):
    async with endpoint_at(desk.address) as endpoint:
        assert not endpoint.capabilities().continues  # unknown means no
        await endpoint.warm_up()
        found = endpoint.continuation(endpoint.served_model).method
        assert found == ("none" if desk.kind == "llama-cpp-python" else "flags")
        assert isinstance(endpoint, Endpoint)
        able = endpoint.capabilities()
        assert (able.announces, able.ready, able.parks, able.waiting) == (True, True, False, 0)
        # The model is there whatever the request calls the other server's, and the limit under either name.
        request = Request(HELLO.messages, model="gpt-4o", params={"max_completion_tokens": 5})
        async with endpoint.open(request) as attempt:
            events, text, ended = await collected(attempt)
        assert events[0] == Started()
        assert text.strip()
        assert ended.finish_reason == "length"
        assert attempt.usage.completion_tokens == 5
    context = {"ollama": 2048, "lmstudio": 2048, "llama-server": 2048, "llama-cpp-python": None}
    assert able.context_tokens == context[desk.kind]
    assert endpoint.about.kind == {"llama-cpp-python": "other"}.get(desk.kind, desk.kind)
    assert endpoint._turns.at_once == (2 if desk.kind == "llama-server" else 1)
    assert endpoint.parameters == (134515008 if desk.kind in ("ollama", "llama-server") else None)


@mostly("asyncio")
async def test_the_file_of_the_model_lets_llama_cpp_python_continue(llama_server):
    from disco.endpoints.continuation import Continuation

    way = Continuation("auto", template=str(llama_server.gguf))
    async with endpoint_at(f"{llama_server.base_url}", continuation=way) as endpoint:
        await endpoint.warm_up()
        assert endpoint.continuation(endpoint.served_model).method == "completions"
        begun = Prefix("Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11", tokens=0)
        asked = [{"role": "user", "content": "Count from 1 to 30."}]
        request = Request(asked, model="x", params={"max_tokens": 4, "temperature": 0})
        async with endpoint.open(request, begun) as attempt:
            _, text, _ = await collected(attempt)
    assert text.startswith(", 12")


@pytest.mark.parametrize(
    ("make", "method", "outcome"),
    [
        (lambda: Ollama(KnownText(SEA)), "flags", "continues"),
        (lambda: Ollama(KnownText(SEA), continues=False), "none", "restarts"),
        (lambda: LMStudio(KnownText(SEA)), "flags", "continues"),
        (lambda: LMStudio(KnownText(SEA), prefix="echoes"), "flags", "echoes"),
        (lambda: LMStudio(KnownText(SEA), prefix="restarts"), "none", "restarts"),
    ],
)
async def test_what_each_kind_of_template_does_is_found_out_and_mended(make, method, outcome):
    with running(make()) as server:
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.warm_up()
            assert endpoint.continuation(endpoint.served_model).method == method
            (verdict,) = endpoint.verdicts.values()
            assert verdict.outcomes["flags"] == outcome
            if method == "none":
                assert not endpoint.capabilities().continues
                return
            begun = "The sea is wide and deep."
            _, text, _ = await collected(endpoint.open(HELLO, Prefix(begun, tokens=6)))
    assert begun + text == SEA


async def test_a_model_need_not_be_named_where_there_is_one():
    with running(LMStudio(KnownText(SEA), models=("qwen3-4b",))) as server:  # lists an embedding model, too
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.warm_up()
            assert endpoint.served_model == "qwen3-4b"
            assert endpoint.profile_name == "qwen3-4b"


async def test_ollamas_default_tag_is_understood():
    with running(Ollama(KnownText(SEA), models=("qwen3:latest", "qwen3:4b"))) as server:
        async with endpoint_at(f"{server.base_url}#qwen3") as endpoint:
            await endpoint.warm_up()
            assert endpoint.served_model == "qwen3:latest"


@pytest.mark.parametrize(
    ("models", "model", "said"),
    [
        (("a:1", "b:2"), "", ["has 2 models: 'a:1', 'b:2'", '#a:1"']),
        (
            ("llama3.2:1b", "qwen3:4b"),
            "#qwen3:4",
            ["has no model 'qwen3:4'", "Did you mean 'qwen3:4b'", "llama3.2:1b"],
        ),
        ((), "#a", ["lists no models", "load 'a' there first"]),
    ],
)
async def test_a_model_that_is_not_there_is_said_with_those_that_are(models, model, said):
    with running(Ollama(KnownText(SEA), models=models)) as server:
        async with endpoint_at(f"{server.base_url}{model}") as endpoint:
            with pytest.raises(ConfigurationError) as caught:
                await endpoint.warm_up()
            for part in said:
                assert part in str(caught.value)
            with pytest.raises(EndpointFailure) as failed:
                await collected(endpoint.open(HELLO))
            assert failed.value.kind is FailureKind.UNSERVED  # another endpoint may serve it
            assert not server.chats


async def test_context_is_known_once_the_model_is_loaded():
    with running(Ollama(KnownText(SEA), context_tokens=4096, load_s=0.01)) as server:
        async with endpoint_at(f"{server.base_url}#smollm2:135m") as endpoint:
            await collected(endpoint.open(HELLO))
            assert endpoint.capabilities().context_tokens is None  # Ollama tells it of loaded models only
            await collected(endpoint.open(HELLO))
            assert endpoint.capabilities().context_tokens == 4096
            asked = server.asked.count("/api/ps")
            await collected(endpoint.open(HELLO))
            assert server.asked.count("/api/ps") == asked == 2


async def test_what_ollama_would_cut_off_is_kept_away():
    """Moving there, the half-written answer is the last message: the question would be what is cut."""
    ollama = Ollama(KnownText(SEA), context_tokens=60)
    with running(ollama) as server:
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.warm_up()
            assert endpoint.capabilities().context_tokens == 60
            asked = [{"role": "user", "content": "Tell me about the sea. " * 10}]
            long = Request(
                [*asked, {"role": "user", "content": "Go on."}], model="m", params={"max_tokens": 4}
            )
            await collected(endpoint.open(long))
        assert ollama.dropped  # that is what it does, without a word; so dispatch must know its context
        policy = Preset(name="lab", dispatch={"policy": "device_only"})
        async with AsyncDisco(local=server.base_url, policy=policy) as client:
            await client.warm_up()
            before = len(ollama.chats)
            with pytest.raises(ContextLengthError):
                await client.chat.completions.create(model="m", messages=asked * 10)
            assert len(ollama.chats) == before


async def test_loading_is_known_where_the_server_tells():
    with running(LMStudio(KnownText(SEA), loaded=())) as server:
        async with endpoint_at(f"{server.base_url}#smollm2-135m-instruct") as endpoint:
            await endpoint.introduce()
            assert not endpoint.capabilities().ready
            await collected(endpoint.open(HELLO))
            assert endpoint.capabilities().ready


# ---------------------------------------------------------------------- what stays here


@pytest.mark.parametrize("warm", [True, False])
async def test_a_model_that_runs_elsewhere_gets_no_prompt(warm):
    """An Ollama stub of a cloud model need not be called so."""
    ollama = Ollama(KnownText(SEA), models=("mine:latest",), remote=("mine:latest",))
    with running(ollama) as server:
        async with endpoint_at(f"{server.base_url}#mine") as endpoint:
            with pytest.raises((ConfigurationError, EndpointFailure)) as caught:
                await (endpoint.warm_up() if warm else collected(endpoint.open(HELLO)))
            assert "would leave this machine" in str(getattr(caught.value, "error", caught.value))
        assert not server.chats
        assert not ollama.uploaded
        async with endpoint_at(f"{server.base_url}#mine", reach="any") as endpoint:
            await collected(endpoint.open(HELLO))
            assert endpoint.place == "server"
        assert len(ollama.uploaded) == 1


async def test_no_redirect_is_followed():
    outside: list[object] = []
    async with scripted_server(answer(b"{}")) as elsewhere:
        to = f"Location: {elsewhere.base_url}/chat/completions\r\n"
        models = answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}')
        moved = answer(b"{}", status="307 Temporary Redirect", headers=to)
        async with scripted_server(models, moved) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
            with pytest.raises(EndpointFailure):
                await collected(endpoint.open(HELLO))
        outside = elsewhere.requests
    assert outside == []


async def test_each_request_has_a_connection_of_its_own():
    """llama-server closes after every stream; a kept connection would be lost under the next request."""
    models = answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}')
    async with scripted_server(models) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
        for _ in range(3):
            endpoint._stale = True
            await endpoint.introduce()
        assert server.connections == 3


@mostly("trio")
async def test_answers_follow_each_other_without_a_pause(native_server):
    async with endpoint_at(native_server.base_url) as endpoint:
        request = Request(HELLO.messages, model="x", params={"max_tokens": 2})
        for _ in range(20):
            _, text, _ = await collected(endpoint.open(request))
            assert text


# ---------------------------------------------------------------------- what fails


async def test_nobody_there():
    async with endpoint_at(f"http://localhost:{free_port()}/v1#m") as endpoint:
        with pytest.raises(EndpointFailure) as caught:
            await collected(endpoint.open(HELLO))
        assert caught.value.kind is FailureKind.CONNECTION
        assert type(caught.value.error) is openai.APIConnectionError
        assert "Nothing answers at http://localhost:" in str(caught.value.error)
        with pytest.raises(LocalModelError, match="Start the server there"):
            await endpoint.warm_up()


async def test_a_connection_that_breaks_is_not_a_server_that_is_not_there():
    models = answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}')
    begun = [STREAM_HEAD, piece(sse(chunk("The"), done=False)), RESET]
    async with scripted_server(models, begun) as server, endpoint_at(server.base_url) as endpoint:
        with pytest.raises(EndpointFailure) as caught:
            await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.CONNECTION
    assert "Nothing answers" not in str(caught.value.error)


async def test_a_key_that_is_wrong_is_no_secret(native_server):
    async with (
        scripted_server(
            answer(b'{"error":{"message":"Wrong key sk-wrong-key."}}', status="401 No")
        ) as server,
        endpoint_at(f"{server.base_url}#m", api_key="sk-wrong-key") as endpoint,
    ):
        with pytest.raises(EndpointFailure) as caught:
            await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.AUTHENTICATION
    assert "sk-wrong-key" not in str(caught.value.error)


async def test_ollama_that_stops_in_the_middle_is_no_whole_answer():
    with running(Ollama(KnownText(SEA, fail_at=4))) as server:
        async with endpoint_at(server.base_url) as endpoint:
            with pytest.raises(EndpointFailure) as caught:
                await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.INCOMPLETE


async def test_ollama_that_fails_before_it_writes():
    with running(Ollama(KnownText(SEA, fail_at=0))) as server:
        async with endpoint_at(server.base_url) as endpoint:
            with pytest.raises(EndpointFailure) as caught:
                await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.SERVER


async def test_lm_studio_says_in_its_stream_that_a_prompt_is_too_long():
    with running(LMStudio(KnownText(SEA), context_tokens=4)) as server:
        async with endpoint_at(server.base_url) as endpoint:
            with pytest.raises(EndpointFailure) as caught:
                await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.CONTEXT_LENGTH


async def test_lm_studio_that_crashes():
    with running(LMStudio(KnownText(SEA, fail_at=3))) as server:
        async with endpoint_at(server.base_url) as endpoint:
            with pytest.raises(EndpointFailure) as caught:
                await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.SERVER


async def test_what_this_server_refuses_another_may_take():
    async with (
        scripted_server(
            answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}'),
            answer(b'{"error":{"message":"m does not support thinking"}}', status="400 Bad Request"),
        ) as server,
        endpoint_at(server.base_url) as endpoint,
    ):
        with pytest.raises(EndpointFailure) as caught:
            await collected(endpoint.open(HELLO))
    assert caught.value.kind is FailureKind.UNSERVED
    assert isinstance(caught.value.error, openai.BadRequestError)


# ---------------------------------------------------------------------- turns


async def test_the_queue_stands_here():
    slow = KnownText(SEA, token_s=0.02)
    with running(Ollama(slow, parallel=4)) as server:
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.introduce()
            order: list[str] = []

            async def ask(name: str) -> None:
                async with endpoint.open(HELLO) as attempt:
                    assert await anext(attempt) == Started()
                    order.append(f"{name} begins")
                    await collected(attempt)
                order.append(f"{name} ends")

            async with anyio.create_task_group() as tasks:
                for name in ("first", "second", "third"):
                    tasks.start_soon(ask, name)
                    await anyio.wait_all_tasks_blocked()
                assert endpoint.capabilities().waiting == 2
        assert order == [f"{n} {what}" for n in ("first", "second", "third") for what in ("begins", "ends")]


async def test_a_full_queue_refuses():
    with running(Ollama(KnownText(SEA, token_s=0.01))) as server:
        async with endpoint_at(server.base_url, max_queue=1) as endpoint:
            await endpoint.introduce()
            attempts = [endpoint.open(HELLO) for _ in range(3)]
            assert await anext(attempts[0]) == Started()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(collected, attempts[1])
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(EndpointFailure) as caught:
                    await anext(attempts[2])
                assert caught.value.kind is FailureKind.RATE_LIMIT
                await attempts[0].aclose()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_who_leaves_makes_room(how):
    with running(Ollama(KnownText(SEA, token_s=0.05))) as server:
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.introduce()
            first, second, third = (endpoint.open(HELLO) for _ in range(3))
            assert await anext(first) == Started()
            assert await anext(first)
            ended = anyio.Event()

            async def waits() -> None:
                await collected(second)
                ended.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(waits)
                await anyio.wait_all_tasks_blocked()
                if how == "closed":
                    await second.aclose()
                    await ended.wait()
                else:
                    tasks.cancel_scope.cancel()
            await first.aclose()
            _, text, _ = await collected(third)
            assert text == SEA
            assert endpoint.capabilities().waiting == 0
            with anyio.fail_after(10):
                while server.now:  # noqa: ASYNC110 - it is another thread's
                    await anyio.sleep(0.01)
        assert server.left == 1


async def test_closing_the_endpoint_ends_those_that_wait():
    with running(Ollama(KnownText(SEA, token_s=0.05))) as server:
        async with endpoint_at(server.base_url) as endpoint:
            attempts = [endpoint.open(HELLO) for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                for attempt in attempts:
                    tasks.start_soon(collected, attempt)
                await anyio.sleep(0.1)
                await endpoint.aclose()
            await endpoint.aclose()
