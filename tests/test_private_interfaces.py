"""What disco uses of other packages that they do not promise to keep: one test for each.

A failure says which private interface changed, what disco uses it for, and what to do.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pydantic
import pytest
from jinja2.filters import FILTERS, do_format
from jinja2.sandbox import SandboxedEnvironment
from openai import _constants, _legacy_response, _response
from openai._models import FinalRequestOptions
from openai.lib import _parsing
from openai.lib._parsing._responses import TextFormatT
from openai.lib.streaming.chat import AsyncChatCompletionStream
from openai.resources.chat.completions.completions import validate_response_format
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

import disco
from disco.client.chat.http_encoding import RAW_RESPONSE_HEADER
from disco.endpoints.chat_template import _environment_class
from disco.endpoints.llamacpp import ggml_functions
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.cut_check import compare
from disco.endpoints.llamacpp.model.declarations import FUNCTIONS, WheelLibrary
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama

PACKAGE = Path(disco.__file__).parent
PINNED: set[str] = set()


def pins(of: str, names: str) -> Callable[[Any], Any]:
    """Let a test's failure say what of the package `of` changed, and its docstring: what for, and what to do."""
    PINNED.update(names.split())

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def told(**fixtures: Any) -> None:
            try:
                test(**fixtures)
            except Exception as error:  # noqa: BLE001 - whatever it is, it means the same
                version = getattr(importlib.import_module(of), "__version__", "?")
                changed = f"{of} {version}: private interface {names} is not as it was ({error!r})."
                pytest.fail(f"{changed}\nUsed by {test.__doc__}")

        return told

    return wrap


URL = "http://h.example/v1"
ANSWER = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
REPLY = httpx2.Response(200, json=ANSWER, headers={"x-request-id": "req_1"})
HTTP = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: REPLY), verify=False)
GIVEN = {"base_url": URL, "http_client": HTTP, "default_headers": {"X-A": "1"}, "default_query": {"b": "2"}}
SDK = openai.AsyncOpenAI(api_key="k", **GIVEN)
OPTIONS = FinalRequestOptions.construct(method="post", url="/chat/completions", json_data={"model": "m"})


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


@pins("openai", "openai._models _client _send_request _request_id")
def test_a_request_on_its_way():
    """disco.client.async_client, disco.endpoints.openai_api.sdk_client
    to read what a request is made of before the SDK sends it, to share its HTTP client, to count the bytes that each
    attempt sends and receives, and to say that an answer of several requests has no one request id.
    Remedy: find the names of a request's parts and id in openai/_models.py, of the client and of what
    `AsyncAPIClient.request` calls to send one request in openai/_base_client.py."""
    assert SDK._client is HTTP
    assert {"request", "stream"} <= parameters(SDK._send_request)
    create = functools.partial(SDK.chat.completions.create, model="m", messages=[])
    assert anyio.run(create)._request_id == "req_1"
    parts = {"method", "url", "json_data", "extra_json", "params", "timeout", "headers", "security", "files"}
    assert parts | {"content"} <= FinalRequestOptions.model_fields.keys()
    assert OPTIONS.get_max_retries(7) == 7


@pins(
    "openai",
    "_iterator _strict_response_validation _workload_identity_auth _provider_runtime _azure_ad_token "
    "_azure_ad_token_provider",
)
def test_what_a_stream_reads_from_and_how_a_client_signs():
    """disco.client.direct.direct_stream, disco.client.chat.answer_stream, disco.client.sync.sync_calls
    to leave a stream as instruments expect it, to let the SDK validate where it is told to, and to know whether the
    synchronous client has a way of its own to sign requests.
    Remedy: see what `AsyncStream` iterates now (openai/_streaming.py), and what `OpenAI.__init__` keeps of its
    credentials (openai/_client.py)."""
    stream = openai.Stream(cast_to=object, response=httpx2.Response(200), client=openai.OpenAI(api_key="k"))
    assert (list(stream._iterator), SDK._strict_response_validation) == ([], False)
    assert (SDK._workload_identity_auth, SDK._provider_runtime) == (None, None)
    azure = openai.AzureOpenAI(
        azure_endpoint="https://h.example", api_version="1", _enforce_credentials=False
    )
    assert (azure._azure_ad_token, azure._azure_ad_token_provider) == (None, None)
    assert azure.api_key == "<missing API key>"


@pins("openai", "_build_request _idempotency_header")
def test_building_a_request():
    """disco.endpoints.openai_api.sdk_client
    to copy the head of an earlier request, which saves most of what the SDK takes for a request.
    Remedy: delete `PlainClient._build_request` and what belongs to it: the SDK then builds every request itself."""
    assert parameters(SDK._build_request) == {"options", "retries_taken"}
    request = SDK._build_request(OPTIONS, retries_taken=0)
    assert (SDK._idempotency_header, str(request.url)) == (None, f"{URL}/chat/completions?b=2")
    assert request.read() == b'{"model":"m"}'


@pins("openai", "_custom_headers _custom_query _api_key_provider _version")
def test_what_a_copy_is_made_of():
    """disco.client.async_client, disco.client.sync.sync_client
    to make the client of the server endpoint with the same settings, and to name the SDK in its User-Agent.
    Remedy: find where `AsyncOpenAI.copy` takes its default headers, default query and key from."""
    assert (dict(SDK._custom_headers), dict(SDK._custom_query)) == ({"X-A": "1"}, {"b": "2"})
    with_provider = openai.AsyncOpenAI(api_key=anyio.sleep, **GIVEN)
    assert (with_provider._api_key_provider, SDK._api_key_provider) == (anyio.sleep, None)
    assert (SDK._version, SDK.user_agent) == (openai.__version__, f"AsyncOpenAI/Python {SDK._version}")
    assert "_extra_kwargs" in parameters(SDK.copy)


@pins("openai", "_prepare_url _process_response _maybe_override_cast_to _cast_to _process_response_data")
def test_making_an_answer_and_a_stream_of_a_response():
    """disco.client.async_client, disco.client.sync.sync_client, disco.client.chat.object_stream
    to answer `parse`, `with_raw_response` and the Responses API with a response that no server sent, and to hand out
    the events of a routed stream without writing them down and parsing them again.
    Remedy: see what `AsyncAPIClient.request` does with a response now, and do the same in `AsyncDisco.request`; let
    `quick_stream_class` return its argument: the SDK then parses the bytes."""
    assert str(SDK._prepare_url("/chat/completions")) == f"{URL}/chat/completions"
    assert SDK._maybe_override_cast_to(ChatCompletion, OPTIONS) is ChatCompletion
    assert {"cast_to", "options", "response", "stream", "stream_cls"} <= parameters(SDK._process_response)
    assert {"data", "cast_to", "response"} <= parameters(SDK._process_response_data)
    given = {"cast_to": ChatCompletionChunk, "response": httpx2.Response(200), "client": SDK}
    stream = openai.AsyncStream[ChatCompletionChunk](**given)
    assert (stream._cast_to, stream._client) == (ChatCompletionChunk, SDK)


@pins("uvicorn", "_unset_keepalive_if_required _should_upgrade")
def test_one_connection_of_the_server():
    """disco.server.http_protocol to limit heads and trailers, and to decline upgrades.
    Remedy: see what `HttpToolsProtocol.data_received` does now; or give uvicorn `http="h11"`, which needs no class."""
    assert {"data", "self"} == parameters(HttpToolsProtocol.data_received)
    written = inspect.getsource(HttpToolsProtocol)
    named = ("cycle", "headers", "loop", "parser", "transport", "url")
    assert all(f"self.{name}" in written for name in named)
    assert STATUS_LINE[431].startswith(b"HTTP/1.1 431 ")
    for name in ("_unset_keepalive_if_required", "_should_upgrade", "handle_websocket_upgrade"):
        assert parameters(getattr(HttpToolsProtocol, name)) == {"self"}


@pins(
    "openai",
    "openai._legacy_response openai._response openai.lib._parsing openai.lib._parsing._responses _raw_stream",
)
def test_what_the_sdk_makes_of_an_answer():
    """disco.client.chat.routed_results, disco.client.chat.helper_events
    to give the route record to raw responses and to the streams of helpers, and to type what they parse into.
    Remedy: find the classes that `with_raw_response` and `with_streaming_response` return, the type variables of
    `parse`, and what a helper's stream reads; without a class, `routed` returns its argument as it is."""
    options = OPTIONS.model_copy(update={"post_parser": lambda made: (made, "parsed")})
    given = {"raw": REPLY, "cast_to": ChatCompletion, "client": SDK, "stream": False, "stream_cls": None}
    for kind in (_legacy_response.LegacyAPIResponse, _response.APIResponse):
        assert kind(**given, options=options).parse()[1] == "parsed"
    assert inspect.iscoroutinefunction(_response.AsyncAPIResponse.parse)
    assert {_parsing.ResponseFormatT.__name__, TextFormatT.__name__} == {"ResponseFormatT", "TextFormatT"}
    given = {"cast_to": ChatCompletionChunk, "response": httpx2.Response(200), "client": SDK}
    raw = openai.AsyncStream[ChatCompletionChunk](**given)
    stream = AsyncChatCompletionStream(raw_stream=raw, response_format=openai.omit, input_tools=openai.omit)
    assert stream._raw_stream is raw


@pins("openai", "_state _input_tools _response_format _rich_response_format")
def test_the_state_of_a_streamed_answer():
    """disco.client.chat.helper_events to make the events of `.stream()` at an eighth of their cost.
    Remedy: return the SDK's own manager from `DiscoCompletions.stream` and `DiscoSyncCompletions.stream`."""
    given = {"cast_to": ChatCompletionChunk, "response": httpx2.Response(200), "client": SDK}
    raw = openai.AsyncStream[ChatCompletionChunk](**given)
    given = {"response_format": openai.omit, "input_tools": openai.omit}
    state = AsyncChatCompletionStream(raw_stream=raw, **given)._state
    assert (state._response_format, list(state._input_tools)) == (openai.omit, [])
    assert isinstance(state._rich_response_format, openai.Omit)
    assert callable(state.handle_chunk)


@pins("openai", "validate_response_format RAW_RESPONSE_HEADER")
def test_what_the_completions_resource_checks():
    """disco.client.chat.completions, disco.client.chat.http_encoding
    to refuse a class as `response_format` as the SDK does, and to know who asks for a raw response.
    Remedy: find both in openai/resources/chat/completions/completions.py and openai/_constants.py."""
    with pytest.raises(TypeError):
        validate_response_format(openai.BaseModel)
    assert _constants.RAW_RESPONSE_HEADER == RAW_RESPONSE_HEADER


@pins("httpx2", "_transport_for_url _pool _uds _proxy")
def test_the_transport_of_an_http_client():
    """disco.endpoints.openai_api.connectivity
    to see whether requests go straight to the server, so that the kernel's routing table says if it can be reached.
    Remedy: let `connects_directly` return False: without a network the connect clock then decides, seconds later."""
    for settings, name in (({}, None), ({"uds": "/a/socket"}, "_uds"), ({"proxy": "http://p:1"}, "_proxy")):
        http = httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(verify=False, **settings))
        transport = http._transport_for_url(httpx2.URL("https://h.example"))
        assert type(transport) is httpx2.AsyncHTTPTransport
        pool: Any = transport._pool
        assert (type(pool).__name__ == "AsyncConnectionPool") == (name != "_proxy")
        assert ((pool._uds is not None), pool._proxy) == (name == "_uds", None)


@pins("pydantic", "__pydantic_fields_set__ __pydantic_extra__ __pydantic_private__")
def test_the_slots_of_a_model():
    """disco.endpoints.openai_api.chunk_template (and so chat_chunks, helper_events, responses_reply)
    to make a chunk like another one in a quarter of the time that parsing takes.
    Remedy: write `remade` with `model.model_copy(update=...)`, which is slower and public."""
    slots = {"__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"}
    assert set(pydantic.BaseModel.__slots__) == slots


@pins("jinja2", "CodeGenerator.blockvisit CodeGenerator.visit_Concat jinja_pass_arg __wrapped__")
def test_the_code_that_templates_become():
    """disco.endpoints.chat_template to stop a chat template that never ends or that grows without bound.
    Remedy: see jinja2/compiler.py and sandbox.py for what writes blocks, `~` and calls now."""
    environment = _environment_class()()
    source = "{% for a in b %}{% if a %}{{ a ~ 'x' }}{% endif %}{% endfor %}{% macro f() %}y{% endmacro %}"
    code = environment.compile(source + "{{ a * 2 }}{{ a() }}", raw=True)
    assert code.count("environment.checkpoint()") == 4  # the template, the loop, the condition, the macro
    for call in ("joined((", "call_binop(context, '*'", "call(context, "):
        assert f"environment.{call}" in code
    assert hasattr(FILTERS["join"], "jinja_pass_arg")
    assert FILTERS["format"] is do_format
    assert SandboxedEnvironment().getattr("{}", "format").__wrapped__.__self__ == "{}"


CALLED = re.compile(r"\b(?:lib|_lib|library|functions)\.((?:llama|ggml)_\w+)")
OF_QUANTISER = {"llama_model_quantize", "llama_model_quantize_default_params"}  # only llama-cpp-python has it


def functions_called() -> set[str]:
    rooms = (PACKAGE / "endpoints" / "llamacpp", PACKAGE.parent / "examples" / "papers")
    texts = [path.read_text(encoding="utf-8") for room in rooms for path in room.rglob("*.py")]
    return {name for text in texts for name in CALLED.findall(text)}


@pins("xllamacpp", "llama_* ggml_*")
def test_the_functions_of_llama_cpp_are_declared():
    """disco.endpoints.llamacpp
    to run a local model: these are llama.cpp's C functions, which come and go with its versions.
    Remedy: python tests/endpoints/llamacpp/compare_header.py VERSION compares model/declarations.py with llama.h."""
    used = functions_called()
    assert "llama_decode" in used
    assert used - OF_QUANTISER - FUNCTIONS.keys() <= vars(WheelLibrary).keys()
    # Those that only the check at load calls, by names that it makes.
    of_the_check = {name for name in FUNCTIONS if re.match(r"llama_n_|llama_\w+_default_params$", name)}
    assert FUNCTIONS.keys() - used == of_the_check - used


@pins("llama_cpp", "llama_* ggml_*")
def test_the_functions_of_llama_cpp():
    """disco.endpoints.llamacpp
    to run a local model by llama-cpp-python, where that is installed: it declares llama.cpp's C functions, too.
    Remedy: look each one up in the llama.h of the version that llama-cpp-python brings."""
    library = pytest.importorskip("llama_cpp")
    assert functions_called() - {"ggml_nbytes", "ggml_get_name", "ggml_backend_tensor_get"} <= set(
        dir(library)
    )
    fields = {"n_ctx", "n_batch", "n_ubatch", "n_threads_batch", "no_perf"}
    assert fields <= set(dir(library.llama_context_default_params()))
    assert hasattr(library.llama_model_default_params(), "progress_callback")


@pins("llama_cpp", "llama_cpp._ggml")
def test_the_tensors_of_llama_cpp():
    """papers.measure.attention, disco.endpoints.llamacpp.layers.graph_reader
    to read attention weights, and the states between two layers, from llama.cpp's intermediate results: names, sizes
    and values of ggml's tensors.
    Remedy: find the library libggml of the new version; see the fields of `struct ggml_tensor` in its ggml.h."""
    ggml = ggml_functions(pytest.importorskip("llama_cpp"))
    for name in ("ggml_get_name", "ggml_nbytes", "ggml_backend_tensor_get"):
        assert hasattr(ggml, name)
    settings = importlib.import_module("llama_cpp").llama_context_default_params()
    assert {"cb_eval", "flash_attn_type"} <= set(dir(settings))


@pytest.mark.real
@pins("xllamacpp", "l_out-N")
def test_the_name_of_the_state_behind_a_layer(tmp_path):
    """disco.endpoints.llamacpp.layers.graph_reader
    to read the states that a device sends, and a cloud sends back: llama.cpp's name of the node behind layer N.
    Remedy: look for the last `cb(cur, ..., il)` of a layer in src/models/llama.cpp, qwen2.cpp and qwen3.cpp."""
    for architecture in ("llama", "qwen2", "qwen3"):
        source = tiny_llama(tmp_path / f"{architecture}.gguf", architecture=architecture)
        assert compare(source, cut_model(source, 2, tmp_path)).delta == 0.0


def private_names_of_others() -> set[str]:
    """The private names that disco's endpoints and client use and that are no names of their own."""
    used: set[str] = set()
    own: set[str] = set()
    files = [path for room in ("endpoints", "client") for path in (PACKAGE / room).rglob("*.py")]
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))):
        match node:
            case (
                ast.Attribute(attr=name, ctx=ast.Load())
                | ast.ImportFrom(module=str(name))
                | ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_])
                | ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))])
            ):
                used.add(name)
            case (
                (ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name))
                | (ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)))
                | ast.Assign(targets=[ast.Name(id=name)])
            ):
                own.add(name)
    found = {name for name in used - own if re.match(r"(?:\w+\.)*_(?!_)\w", name)}
    return {name for name in found if not name.startswith("disco.")}


KNOWN = {"_exit", "_asdict"}  # of the standard library, and public there


def test_every_private_interface_has_its_test():
    found = private_names_of_others()
    assert "_transport_for_url" in found
    assert sorted(found - PINNED - KNOWN) == []
