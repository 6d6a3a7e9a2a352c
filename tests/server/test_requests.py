"""Requests that are wrong: refused in the words of the API, with the field named, and never with a 500."""

from __future__ import annotations

import json

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from asgi import ask, part, pieces, scope, simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HELLO
from watched import virtually

from disco.server import make_app
from disco.server.api_errors import Refusal
from disco.server.request_body import Gone, parse, read_body

CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}
RESPONSE = {"model": "m", "input": "Hi", "disco": {"pace_tps": "off"}}
PATHS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSE}


@pytest.fixture(scope="module")
def asked():
    """Called with path and body: status and answer of the application on a simulated device, without a socket."""
    with start_blocking_portal("asyncio") as portal, portal.wrap_async_context_manager(simulated()) as client:
        app = make_app(client, max_body_bytes=200_000)

        def post(path, body=None, receive=None):
            status, answer = portal.call(ask, app, path, body, receive)
            if status != 200:
                error = answer["error"]
                assert set(error) == {"message", "type", "param", "code"}, error
            return status, answer

        yield post


# ---------------------------------------------------------------------- what cannot be parsed, or lacks something


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"", None, "parse"),
        (b"{", None, "parse"),
        (b"\xff\xfe", None, "parse"),
        (b'{"model": NaN}', None, "parse"),
        (b'{"seed": ' + b"9" * 5000 + b"}", None, "parse"),
        (b"[" * 100_000, None, "parse"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', None, "parse"),
        (b"[]", None, "object"),
        (b'"text"', None, "object"),
        ({}, "model", "model"),
        ({"model": "m"}, "messages", "messages"),
        ({"model": "m", "messages": []}, "messages", "empty"),
        ({**CHAT, "disco": 3}, "disco", "dict"),
        ({**CHAT, "disco": {"local_onyl": True}}, "disco", "local_only"),
        ({**CHAT, "disco": {"policy": "balnced"}}, "disco", "balanced"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_the_api_would_refuse_is_refused_in_its_words(asked, body, param, says):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = asked("/v1/chat/completions", {}, pieces(part(data, more=False)))
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert says in error["message"]
    assert "extra_body" not in error["message"]


# What each field takes, as the API documents it: JSON types.
COMMON = {
    "model": "string", "stream": "boolean", "temperature": "number", "top_p": "number", "tools": "array",
    "tool_choice": "string object", "parallel_tool_calls": "boolean", "stream_options": "object",
    "metadata": "object", "user": "string", "store": "boolean", "top_logprobs": "integer",
}  # fmt: skip
FIELDS = {
    "/v1/chat/completions": COMMON | {
        "messages": "array", "max_tokens": "integer", "max_completion_tokens": "integer", "n": "integer",
        "seed": "integer", "stop": "string array", "logit_bias": "object", "logprobs": "boolean",
        "frequency_penalty": "number", "presence_penalty": "number", "response_format": "object",
        "functions": "array", "function_call": "string object", "modalities": "array", "audio": "object",
        "reasoning_effort": "string", "prediction": "object",
    },
    "/v1/responses": COMMON | {
        "input": "string array", "instructions": "string", "max_output_tokens": "integer", "text": "object",
        "reasoning": "object", "previous_response_id": "string", "background": "boolean", "include": "array",
        "truncation": "string", "max_tool_calls": "integer",
    },
}  # fmt: skip
OF_TYPE = {
    "string": "x", "boolean": True, "integer": 5, "number": 0.5, "array": [5], "object": {"x": 5}
}  # fmt: skip


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_type_is_refused_and_its_field_named(asked, path):
    for field, takes in FIELDS[path].items():
        wrong = {kind: value for kind, value in OF_TYPE.items() if kind not in takes.split()}
        if takes == "number":
            del wrong["integer"]
        for value in wrong.values():
            for stream in (False, True):
                status, answer = asked(path, {**PATHS[path], "stream": stream, field: value})
                assert (status, answer["error"]["code"]) == (400, "invalid_type"), (field, value, answer)
                assert answer["error"]["param"] == field


NESTED = [
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": 5}]}, "messages[1].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls[0]"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": []}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
    ({"tools": [{"type": []}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"parameters": 5}}]}, "tools[0].function.parameters"),
    ({"stop": [5]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
    ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema"),
    ({"input": [5]}, "input[0]"),
    ({"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": "function_call", "arguments": {}}]}, "input[0].arguments"),
    ({"text": {"format": 5}}, "text.format"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
]


@pytest.mark.parametrize(("wrong", "param"), NESTED, ids=lambda value: str(value)[:60])
def test_so_is_one_inside_of_a_field(asked, wrong, param):
    path = "/v1/responses" if param.startswith(("input", "text", "reasoning")) else "/v1/chat/completions"
    status, answer = asked(path, {**PATHS[path], **wrong})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_type", param)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        *((name, value, "integer_below_min_value") for name in ("max_tokens", "max_completion_tokens")
          for value in (0, -1)),
        ("max_output_tokens", 0, "integer_below_min_value"),
        ("temperature", -1, "decimal_below_min_value"),
        ("top_p", 1.1, "decimal_above_max_value"),
        ("top_logprobs", 21, "integer_above_max_value"),
        ("max_tokens", -(10**300), "integer_below_min_value"),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(asked, field, value, code):
    path = "/v1/responses" if field == "max_output_tokens" else "/v1/chat/completions"
    status, answer = asked(path, {**PATHS[path], field: value})
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (400, code, field)
    assert len(error["message"]) < 200


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "function", "name", "arguments", "format", "x"]
            )
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


@settings(max_examples=100)
@given(st.data())
def test_no_body_is_answered_with_a_500(asked, data):
    path = data.draw(st.sampled_from(sorted(PATHS)))
    names = st.sampled_from([*FIELDS[path], "disco", "unknown"])
    changes = data.draw(st.dictionaries(names, ANYTHING, min_size=1, max_size=3))
    if path == "/v1/chat/completions" and data.draw(st.booleans()):
        fields = st.sampled_from(
            ["role", "content", "tool_calls", "tool_call_id", "name", "audio", "function_call"]
        )
        changes["messages"] = [{**HELLO[0], **data.draw(st.dictionaries(fields, ANYTHING, max_size=2))}]
    status, _ = asked(path, {**PATHS[path], **changes})
    assert status in (200, 400)


def test_a_preset_cannot_be_read_from_a_file_over_http(asked, tmp_path):
    """The path of a preset is for the program that owns the files, not for whoever may ask."""
    secret = tmp_path / "secret.toml"
    secret.write_text("TOPSECRET = 1")
    for name in (str(secret), "../secret", "C:secret"):
        status, answer = asked("/v1/chat/completions", {**CHAT, "disco": {"policy": name}})
        assert status == 400
        assert "TOPSECRET" not in str(answer)
    assert asked("/v1/chat/completions", {**CHAT, "disco": {"policy": "private"}})[0] == 200


def test_what_needs_a_server_says_so(asked):
    for path in ("/v1/completions", "/v1/embeddings"):
        status, answer = asked(path, {"model": "m", "prompt": "x", "input": "x"})
        assert status == 400
        assert "OPENAI_API_KEY" in answer["error"]["message"]


def test_unknown_paths_are_answered_in_the_apis_shape(asked):
    for path in ("/", "/v1", "/v1/chat/completions/", "/v2/chat/completions", "/v1/files"):
        status, answer = asked(path, {})
        assert (status, answer["error"]["code"]) == (404, "unknown_url")
    assert asked("/v1/models/")[1]["error"]["code"] == "unknown_url"
    assert asked("/v1/models/..")[1]["error"]["code"] == "model_not_found"


# ---------------------------------------------------------------------- reading a body


@pytest.mark.anyio
async def test_a_body_in_parts_is_put_together():
    receive = pieces(part(b"ab"), part(b""), part(b"c", more=False))
    assert await read_body({"headers": []}, receive, 3) == b"abc"


@pytest.mark.anyio
async def test_a_client_that_leaves_in_its_body_is_gone():
    with pytest.raises(Gone):
        await read_body({"headers": []}, pieces(part(b"ab"), {"type": "http.disconnect"}), 3)


@pytest.mark.parametrize(
    ("messages", "every_s", "given_up_s"),
    [([part(b"ab")], 0.0, 30.0), ([part(b"a")] * 1000, 29.0, 300.0)],
    ids=["silent", "a byte now and then"],
)
def test_a_body_that_does_not_come_in_time_is_given_up(messages, every_s, given_up_s):
    async def main():
        began_at = anyio.current_time()
        with pytest.raises(Refusal) as caught:
            await read_body({"headers": []}, pieces(*messages, every_s=every_s), 2000)
        return caught.value.status, anyio.current_time() - began_at

    assert virtually(main) == (408, pytest.approx(given_up_s, abs=0.1))


def test_unfinished_bodies_take_no_place_and_are_broken_off_at_the_end():
    async def main():
        async with simulated() as client, anyio.create_task_group() as tasks:
            app = make_app(client, max_concurrent=1)
            statuses = []

            async def unfinished():
                status, answer = await ask(app, "/v1/chat/completions", {}, pieces(part(b"{")))
                statuses.append((status, answer["error"]["code"]))

            for _ in range(5):
                tasks.start_soon(unfinished)
            await anyio.sleep(1.0)
            assert app.state.limiter.busy == 0
            assert (await ask(app, "/v1/chat/completions", CHAT))[0] == 200
            app.state.limiter.close()
            await anyio.sleep(1.0)
            assert statuses == [(503, "shutting_down")] * 5
            assert (await ask(app, "/v1/chat/completions", CHAT))[0] == 503

    virtually(main)


def test_what_only_disco_knows_is_taken_out_of_the_body():
    read = parse("/chat/completions", json.dumps({**CHAT, "stream": True}).encode())
    assert (read.disco, read.stream) == ({"pace_tps": "off"}, True)
    assert "disco" not in read.body


# ---------------------------------------------------------------------- any event loop


@pytest.mark.anyio
async def test_the_application_runs_on_any_event_loop():
    """Uvicorn brings asyncio; other ASGI servers run on trio."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    sent = []

    async def send(message):
        sent.append(message)

    async with simulated() as client:
        app = make_app(client)
        await app(scope("/v1/chat/completions"), pieces(part(body, more=False)), send)
        assert sent[0]["status"] == 200
        assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
        assert sent[-2]["body"].endswith(b"data: [DONE]\n\n")
        gone = pieces(part(body, more=False), {"type": "http.disconnect"})
        with anyio.fail_after(60):
            await app(scope("/v1/chat/completions"), gone, send)
        assert client.router.statistics.seen == 2
        assert app.state.limiter.busy == 0
