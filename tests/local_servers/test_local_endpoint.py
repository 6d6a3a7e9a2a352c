"""A server as the local side: what it tells, what it is told, what is made of its failures."""

from __future__ import annotations

import contextlib

import anyio
import openai
import pytest
from local_servers.desks import collected, endpoint_at
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import KnownText, QuirkServer, running
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, scripted_server, sse
from servers import free_port

from disco import ConfigurationError, LocalModelError
from disco.endpoints.continuation import Continuation
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Prefix, Request

pytestmark = [pytest.mark.real, pytest.mark.anyio]

TEXT = "The sea is wide and deep. It keeps its own time, and nobody owns it."
SEA = KnownText(TEXT)
HELLO = Request([{"role": "user", "content": "Tell me about the sea."}], model="gpt-4o-mini")
MODELS = answer(b'{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}')


@pytest.fixture
def anyio_backend():
    return "trio"  # `test_answers` runs on asyncio


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


async def test_every_server_writes_and_is_found_to_continue(desk):
    async with endpoint_at(desk.address) as endpoint:
        assert not endpoint.capabilities().continues  # unknown means no
        await endpoint.warm_up()
        found = endpoint.continuation(endpoint.served_model).method
        assert found == ("instructed" if desk.kind == "llama-cpp-python" else "flags")
        able = endpoint.capabilities()
        assert (able.announces, able.ready, able.parks, able.waiting) == (True, True, False, 0)
        # The model is there whatever the request calls the other server's, and the limit under either name.
        request = Request(HELLO.messages, model="gpt-4o", params={"max_completion_tokens": 5})
        attempt = endpoint.open(request)
        events, text = await collected(attempt)
    assert text.strip()
    assert (events[0], events[-1].finish_reason) == (Started(), "length")
    assert attempt.usage.completion_tokens == 5
    assert able.context_tokens == (None if desk.kind == "llama-cpp-python" else 2048)
    assert endpoint.about.kind == {"llama-cpp-python": "other"}.get(desk.kind, desk.kind)
    assert endpoint._turns.at_once == (2 if desk.kind == "llama-server" else 1)
    assert endpoint.parameters == (134515008 if desk.kind in ("ollama", "llama-server") else None)
    if desk.kind == "llama-cpp-python":  # its model's file lets it continue
        way = Continuation("auto", template=desk.gguf)
        async with endpoint_at(desk.address, continuation=way) as endpoint:
            await endpoint.warm_up()
            assert endpoint.continuation(endpoint.served_model).method == "completions"


@pytest.mark.parametrize(
    ("server", "method", "outcome"),
    [
        (Ollama(SEA), "flags", "continues"),
        (Ollama(SEA, continues=False), "instructed", "restarts"),
        (LMStudio(SEA), "flags", "continues"),
        (LMStudio(SEA, prefix="echoes"), "flags", "echoes"),
        (LMStudio(SEA, prefix="restarts"), "instructed", "restarts"),
    ],
)
async def test_what_each_kind_of_template_does_is_found_out_and_mended(server, method, outcome):
    async with endpoint_of(server) as endpoint:
        await endpoint.warm_up()
        assert endpoint.continuation(endpoint.served_model).method == method
        (verdict,) = endpoint.verdicts.values()
        assert verdict.outcomes["flags"] == outcome
        assert endpoint.capabilities().continues == (method != "instructed")
        if method == "flags":
            begun = TEXT[:25]
            assert begun + (await collected(endpoint.open(HELLO, Prefix(begun, tokens=6))))[1] == TEXT


MISSING = [  # the models there are, the one that is asked for, and what is said
    (("a:1", "b:2"), "", ["has 2 models: 'a:1', 'b:2'", '#a:1"']),
    (("a:1", "qwen3:4b"), "#qwen3:4", ["no model 'qwen3:4'", "Did you mean 'qwen3:4b'", "a:1"]),
    ((), "#a", ["lists no models", "load 'a' there first"]),
]


async def test_what_a_model_is_called_there_and_what_is_said_of_one_that_is_not():
    named = [(LMStudio(SEA, ("qwen3-4b",)), "", "qwen3-4b")]  # lists an embedding model, too
    named += [(Ollama(SEA, ("qwen3:latest", "qwen3:4b")), "#qwen3", "qwen3:latest")]  # the default tag
    for server, model, served in named:
        async with endpoint_of(server, model) as endpoint:
            await endpoint.warm_up()
            assert (endpoint.served_model, endpoint.profile_name) == (served, served.replace(":", "-"))
    for models, model, said in MISSING:
        server = Ollama(SEA, models)
        async with endpoint_of(server, model) as endpoint:
            with pytest.raises(ConfigurationError) as caught:
                await endpoint.warm_up()
            assert [part for part in said if part not in str(caught.value)] == []
            # Another endpoint may serve it.
            assert (await fails(endpoint.open(HELLO))).kind is FailureKind.UNSERVED
        assert not server.chats


async def test_what_a_server_tells_of_loaded_models_only_is_known_then():
    ollama = Ollama(SEA, context_tokens=4096, loaded=False)
    async with endpoint_of(ollama, "#smollm2:135m") as endpoint:
        await endpoint.introduce()
        assert endpoint.capabilities().context_tokens is None
        for _ in range(2):
            await collected(endpoint.open(HELLO))
            assert endpoint.capabilities().context_tokens == 4096
    assert ollama.asked.count("/api/ps") == 2
    async with endpoint_of(LMStudio(SEA, loaded=False), "#smollm2-135m-instruct") as endpoint:
        await endpoint.introduce()
        assert not endpoint.capabilities().ready
        await collected(endpoint.open(HELLO))
        assert endpoint.capabilities().ready


# ---------------------------------------------------------------------- what stays here


@pytest.mark.parametrize("warm", [True, False])
async def test_a_model_that_runs_elsewhere_gets_no_prompt(warm):
    """An Ollama stub of a cloud model need not be called so."""
    with running(Ollama(SEA, ("mine:latest",), remote=("mine:latest",))) as ollama:
        async with endpoint_at(f"{ollama.base_url}#mine") as endpoint:
            with pytest.raises((ConfigurationError, EndpointFailure)) as caught:
                await (endpoint.warm_up() if warm else collected(endpoint.open(HELLO)))
            assert "would leave this machine" in str(getattr(caught.value, "error", caught.value))
        assert (ollama.chats, ollama.uploaded) == ([], [])
        async with endpoint_at(f"{ollama.base_url}#mine", reach="any") as endpoint:
            await collected(endpoint.open(HELLO))
            assert endpoint.place == "server"
        assert len(ollama.uploaded) == 1


async def test_no_redirect_is_followed_and_each_request_has_a_connection_of_its_own():
    """llama-server closes after every stream; a kept connection would be lost under the next request."""
    async with scripted_server(answer(b"{}")) as elsewhere:
        to = f"Location: {elsewhere.base_url}/chat/completions\r\n"
        moved = answer(b"{}", status="307 Temporary Redirect", headers=to)
        async with scripted_server(MODELS, moved) as server, endpoint_at(f"{server.base_url}#m") as endpoint:
            await fails(endpoint.open(HELLO))
            assert server.connections == len(server.requests) > 1
        assert elsewhere.requests == []


async def test_an_empty_stop_text_is_none_to_it():
    """llama-server finds an empty text before the first character, and every answer is empty."""
    for given, sent in (("", None), (["", "sea"], ["sea"]), ("sea", "sea")):
        async with (
            scripted_server(MODELS, REFUSED) as server,
            endpoint_at(f"{server.base_url}#m") as endpoint,
        ):
            await fails(endpoint.open(Request(HELLO.messages, model="m", params={"stop": given})))
        asked = [body for line, _, body in server.requests if "/chat/completions" in line]
        assert [body.get("stop") for body in asked] == [sent]


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
FAILURES = {
    "broken": ([MODELS, BROKEN], FailureKind.CONNECTION),
    "key": ([WRONG_KEY], FailureKind.ACCOUNT),
    "refused": ([MODELS, REFUSED], FailureKind.UNSERVED),  # another may take it
    "ollama later": (Ollama(KnownText(TEXT, fail_at=4)), FailureKind.INCOMPLETE),  # ends as if it were whole
    "ollama at once": (Ollama(KnownText(TEXT, fail_at=0)), FailureKind.SERVER),
    "lmstudio": (LMStudio(KnownText(TEXT, fail_at=3)), FailureKind.SERVER),
    # Told in the stream: its estimate fits.
    "lmstudio context": (LMStudio(SEA, context_tokens=12), FailureKind.CONTEXT_LENGTH),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_what_becomes_of_a_failure(name):
    server, kind = FAILURES[name]
    async with endpoint_of(server, api_key="sk-wrong-key") as endpoint:
        failure = await fails(endpoint.open(HELLO))
    assert failure.kind is kind
    assert isinstance(failure.error, openai.OpenAIError)
    of_the_request = kind in (FailureKind.UNSERVED, FailureKind.CONTEXT_LENGTH)
    assert isinstance(failure.error, openai.BadRequestError) == of_the_request
    assert "Nothing answers" not in str(failure.error)  # something does
    assert "sk-wrong-key" not in str(failure.error)


# ---------------------------------------------------------------------- turns


async def test_the_queue_stands_here():
    slow = KnownText(TEXT, wait_at=1)
    async with endpoint_of(Ollama(slow)) as endpoint:
        await endpoint.introduce()
        order, names = [], ("first", "second", "third")

        async def ask(name: str) -> None:
            async with endpoint.open(HELLO) as attempt:
                async for event in attempt:
                    order.extend([f"{name} {type(event).__name__}"] * isinstance(event, Started | Ended))

        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask, name)
                await anyio.wait_all_tasks_blocked()
            assert endpoint.capabilities().waiting == 3  # the one that is written, and two that wait
            slow.wait_at = None
    assert order == [f"{name} {what}" for name in names for what in ("Started", "Ended")]


async def test_a_full_queue_refuses_and_closing_the_endpoint_ends_those_that_wait():
    async with endpoint_of(Ollama(KnownText(TEXT, wait_at=1)), max_queue=1) as endpoint:
        await endpoint.introduce()
        attempts = [endpoint.open(HELLO) for _ in range(3)]
        assert await anext(attempts[0]) == Started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(collected, attempts[1])
            await anyio.wait_all_tasks_blocked()
            assert (await fails(attempts[2])).kind is FailureKind.RATE_LIMIT
            await endpoint.aclose()
        await endpoint.aclose()


async def test_who_leaves_makes_room():
    slow = KnownText(TEXT, wait_at=2)
    server = Ollama(slow)
    async with endpoint_of(server) as endpoint:
        await endpoint.introduce()
        first, *waiting, last = (endpoint.open(HELLO) for _ in range(4))
        assert await anext(first) == Started()
        assert await anext(first)
        async with anyio.create_task_group() as tasks:
            for attempt in waiting:
                tasks.start_soon(collected, attempt)
            await anyio.wait_all_tasks_blocked()
            await waiting[0].aclose()
            tasks.cancel_scope.cancel()
        await first.aclose()
        with anyio.fail_after(60):
            while not server.left:  # noqa: ASYNC110 - it is another thread's
                await anyio.sleep(0.01)
        slow.wait_at = None
        assert (await collected(last))[1] == TEXT
        assert (endpoint.capabilities().waiting, server.left) == (0, 1)
