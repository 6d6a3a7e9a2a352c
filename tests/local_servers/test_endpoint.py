"""A server as the local side: what it tells, what it is told, what is made of its failures."""

from __future__ import annotations

import contextlib

import anyio
import openai
import pytest
from local_servers.desks import KINDS, collected, endpoint_at
from loops import by_turns, mostly
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import QuirkServer, running
from quirks.writers import KnownText
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, scripted_server, sse
from servers import free_port

from disco import AsyncDisco, ConfigurationError, ContextLengthError, LocalModelError
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.contract import Endpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Started
from disco.request import Prefix, Request

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = "The sea is wide and deep. It keeps its own time, and nobody owns it."
HELLO = Request([{"role": "user", "content": "Tell me about the sea."}], model="gpt-4o-mini")
MODELS = answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}')


@contextlib.asynccontextmanager
async def endpoint_of(server, model="", **more):
    """The endpoint of a server of quirks, or of one that plays scripts."""
    async with contextlib.AsyncExitStack() as stack:
        if isinstance(server, QuirkServer):
            stack.enter_context(running(server))
        else:
            server = await stack.enter_async_context(scripted_server(*server))
        yield await stack.enter_async_context(endpoint_at(f"{server.base_url}{model}", **more))


async def fails(attempt) -> EndpointFailure:
    with pytest.raises(EndpointFailure) as caught:
        await collected(attempt)
    return caught.value


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
async def test_the_file_of_the_model_lets_llama_cpp_python_continue(llama_server, anyio_backend):
    way = Continuation("auto", template=str(llama_server.gguf))
    async with endpoint_at(llama_server.base_url, continuation=way) as endpoint:
        await endpoint.warm_up()
        assert endpoint.continuation(endpoint.served_model).method == "completions"
        begun = Prefix("Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11", tokens=0)
        asked = [{"role": "user", "content": "Count from 1 to 30."}]
        request = Request(asked, model="x", params={"max_tokens": 4, "temperature": 0})
        _, text, _ = await collected(endpoint.open(request, begun))
    assert text.startswith(", 12")


@pytest.mark.parametrize(
    ("make", "quirk", "method", "outcome"),
    [
        (Ollama, {}, "flags", "continues"),
        (Ollama, {"continues": False}, "none", "restarts"),
        (LMStudio, {}, "flags", "continues"),
        (LMStudio, {"prefix": "echoes"}, "flags", "echoes"),
        (LMStudio, {"prefix": "restarts"}, "none", "restarts"),
    ],
)
async def test_what_each_kind_of_template_does_is_found_out_and_mended(make, quirk, method, outcome):
    async with endpoint_of(make(KnownText(SEA), **quirk)) as endpoint:
        await endpoint.warm_up()
        assert endpoint.continuation(endpoint.served_model).method == method
        (verdict,) = endpoint.verdicts.values()
        assert verdict.outcomes["flags"] == outcome
        assert endpoint.capabilities().continues == (method != "none")
        if method == "flags":
            begun = "The sea is wide and deep."
            _, text, _ = await collected(endpoint.open(HELLO, Prefix(begun, tokens=6)))
            assert begun + text == SEA


@pytest.mark.parametrize(
    ("server", "model", "served"),
    [
        (LMStudio(KnownText(SEA), models=("qwen3-4b",)), "", "qwen3-4b"),  # lists an embedding model, too
        (Ollama(KnownText(SEA), models=("qwen3:latest", "qwen3:4b")), "#qwen3", "qwen3:latest"),
    ],
    ids=["its only one", "the default tag"],
)
async def test_what_a_model_is_called_there(server, model, served):
    async with endpoint_of(server, model) as endpoint:
        await endpoint.warm_up()
        assert endpoint.served_model == served
        assert endpoint.profile_name == served.replace(":", "-")


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
    server = Ollama(KnownText(SEA), models=models)
    async with endpoint_of(server, model) as endpoint:
        with pytest.raises(ConfigurationError) as caught:
            await endpoint.warm_up()
        assert all(part in str(caught.value) for part in said)
        # Another endpoint may serve it.
        assert (await fails(endpoint.open(HELLO))).kind is FailureKind.UNSERVED
    assert not server.chats


async def test_context_is_known_once_the_model_is_loaded():
    server = Ollama(KnownText(SEA), context_tokens=4096, load_s=0.01)
    async with endpoint_of(server, "#smollm2:135m") as endpoint:
        for expected in (None, 4096, 4096):  # Ollama tells it of loaded models only
            await collected(endpoint.open(HELLO))
            assert endpoint.capabilities().context_tokens == expected
    assert server.asked.count("/api/ps") == 2


async def test_what_ollama_would_cut_off_is_kept_away():
    """Moving there, the half-written answer is the last message: the question would be what is cut."""
    ollama = Ollama(KnownText(SEA), context_tokens=60)
    asked = [{"role": "user", "content": "Tell me about the sea. " * 10}]
    with running(ollama) as server:
        async with endpoint_at(server.base_url) as endpoint:
            await endpoint.warm_up()
            assert endpoint.capabilities().context_tokens == 60
            long = [*asked, {"role": "user", "content": "Go on."}]
            await collected(endpoint.open(Request(long, model="m", params={"max_tokens": 4})))
        assert ollama.dropped  # that is what it does, without a word; so dispatch must know its context
        policy = Preset(name="lab", dispatch={"policy": "device_only"})
        async with AsyncDisco(local=server.base_url, policy=policy) as client:
            await client.warm_up()
            before = len(ollama.chats)
            with pytest.raises(ContextLengthError):
                await client.chat.completions.create(model="m", messages=asked * 10)
            assert len(ollama.chats) == before


async def test_loading_is_known_where_the_server_tells():
    async with endpoint_of(LMStudio(KnownText(SEA), loaded=()), "#smollm2-135m-instruct") as endpoint:
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
    async with scripted_server(answer(b"{}")) as elsewhere:
        to = f"Location: {elsewhere.base_url}/chat/completions\r\n"
        moved = answer(b"{}", status="307 Temporary Redirect", headers=to)
        async with endpoint_of([MODELS, moved], "#m") as endpoint:
            await fails(endpoint.open(HELLO))
        assert elsewhere.requests == []


async def test_each_request_has_a_connection_of_its_own():
    """llama-server closes after every stream; a kept connection would be lost under the next request."""
    async with scripted_server(MODELS) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
        for _ in range(3):
            endpoint._stale = True
            await endpoint.introduce()
        assert server.connections == 3


# ---------------------------------------------------------------------- what fails


async def test_an_address_where_nothing_listens():
    async with endpoint_at(f"http://localhost:{free_port()}/v1#m") as endpoint:
        failure = await fails(endpoint.open(HELLO))
        assert failure.kind is FailureKind.CONNECTION
        assert type(failure.error) is openai.APIConnectionError
        assert "Nothing answers at http://localhost:" in str(failure.error)
        with pytest.raises(LocalModelError, match="Start the server there"):
            await endpoint.warm_up()


BROKEN = [STREAM_HEAD, piece(sse(chunk("The"), done=False)), RESET]
WRONG_KEY = answer(b'{"error":{"message":"Wrong key sk-wrong-key."}}', status="401 No")
REFUSED = answer(b'{"error":{"message":"m does not support thinking"}}', status="400 Bad Request")


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        ([MODELS, BROKEN], FailureKind.CONNECTION),
        ([WRONG_KEY], FailureKind.AUTHENTICATION),
        ([MODELS, REFUSED], FailureKind.UNSERVED),  # another may take it
        (Ollama(KnownText(SEA, fail_at=4)), FailureKind.INCOMPLETE),  # it ends the stream as if it were whole
        (Ollama(KnownText(SEA, fail_at=0)), FailureKind.SERVER),
        (LMStudio(KnownText(SEA, fail_at=3)), FailureKind.SERVER),
        (LMStudio(KnownText(SEA), context_tokens=4), FailureKind.CONTEXT_LENGTH),  # told in the stream
    ],
    ids=["broken", "key", "refused", "ollama later", "ollama at once", "lmstudio", "lmstudio context"],
)
async def test_what_becomes_of_a_failure(server, kind):
    async with endpoint_of(server, api_key="sk-wrong-key") as endpoint:
        failure = await fails(endpoint.open(HELLO))
    assert failure.kind is kind
    assert isinstance(failure.error, openai.OpenAIError)
    assert isinstance(failure.error, openai.BadRequestError) == (kind is FailureKind.UNSERVED)
    assert "Nothing answers" not in str(failure.error)  # something does
    assert "sk-wrong-key" not in str(failure.error)


# ---------------------------------------------------------------------- turns


async def test_the_queue_stands_here():
    async with endpoint_of(Ollama(KnownText(SEA, token_s=0.02), parallel=4)) as endpoint:
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
    async with endpoint_of(Ollama(KnownText(SEA, token_s=0.01)), max_queue=1) as endpoint:
        await endpoint.introduce()
        attempts = [endpoint.open(HELLO) for _ in range(3)]
        assert await anext(attempts[0]) == Started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collected, attempts[1])
            await anyio.wait_all_tasks_blocked()
            assert (await fails(attempts[2])).kind is FailureKind.RATE_LIMIT
            await attempts[0].aclose()


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_who_leaves_makes_room(how):
    server = Ollama(KnownText(SEA, token_s=0.05))
    async with endpoint_of(server) as endpoint:
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
    async with endpoint_of(Ollama(KnownText(SEA, token_s=0.05))) as endpoint:
        attempts = [endpoint.open(HELLO) for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for attempt in attempts:
                tasks.start_soon(collected, attempt)
            await anyio.sleep(0.1)
            await endpoint.aclose()
        await endpoint.aclose()
