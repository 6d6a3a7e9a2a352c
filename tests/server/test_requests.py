"""Requests that are wrong: refused in the words of the API, with the field named, and never with a 500."""

from __future__ import annotations

import json
from functools import partial

import anyio
import httpx2
import pytest
from asgi import ask, asking, part, pieces, simulated
from faults.rising import DOUBTED, TEXT, Kept, local, preset
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HELLO
from watched import virtually

from disco import AsyncDisco, Backup
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import make_app
from disco.server.api_errors import Refusal
from disco.server.request_body import Gone, read_body

CHAT = {"model": "m", "messages": HELLO, "disco": {"pace_tps": "off"}}
RESPONSE = {"model": "m", "input": "Hi", "disco": {"pace_tps": "off"}}
CHATS = "/v1/chat/completions"
PATHS = {CHATS: CHAT, "/v1/responses": RESPONSE}


@pytest.fixture(scope="module")
def asked():
    with asking(max_body_bytes=200_000) as asked:
        yield asked


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
        *((b'{"model":"m","temperature":%s}' % n, None, "parse") for n in (b"1e400", b"-1E999", b"9" * 400)),
        (b'{"model":"m","x":' + b"[" * 250 + b"]" * 250 + b"}", None, "parse"),
        (b'{"model":"m","x":' + b'{"a":' * 250 + b"1" + b"}" * 251, None, "parse"),
        (b"[]", None, "object"),
        (b'"text"', None, "object"),
        ({}, "model", "model"),
        ({"model": "m"}, "messages", "messages"),
        ({"model": "m", "messages": []}, "messages", "empty"),
        ({**CHAT, "disco": 3}, "disco", "dict"),
        ({**CHAT, "disco": {"local_onyl": True}}, "disco", "local_only"),
        ({**CHAT, "disco": {"policy": "balnced"}}, "disco", "balanced"),
        ({**CHAT, "disco": {"policy": __file__}}, "disco", "preset"),  # a path is for who owns the files
        ({**CHAT, "disco": {"policy": "../secret"}}, "disco", "preset"),
        ({**CHAT, "disco": {"policy": "C:secret"}}, "disco", "preset"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_the_api_would_refuse_is_refused_in_its_words(asked, body, param, says):
    answer = asked(CHATS, body)
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status, error["type"], error["param"]) == (400, "invalid_request_error", param)
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
OF_TYPE = {"string": "x", "boolean": True, "integer": 5, "number": 0.5, "array": [5], "object": {"x": 5}}


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_type_is_refused_and_its_field_named(asked, path):
    for field, takes in FIELDS[path].items():
        for kind in set(OF_TYPE) - set(takes.split()) - ({"integer"} if takes == "number" else set()):
            for stream in (False, True):
                answer = asked(path, {**PATHS[path], "stream": stream, field: OF_TYPE[kind]})
                said = (answer.status, answer.error["code"], answer.error["param"])
                assert said == (400, "invalid_type", field), (kind, answer)


FUNCTION = {"type": "function", "function": {"parameters": 5}}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": []}}]}
NESTED = [
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    (
        {"messages": [{"content": [{"type": "text", "text": 5}], "role": "user"}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": 5}]}, "messages[1].tool_calls"),
    ({"messages": [{"role": "assistant", "tool_calls": [5]}]}, "messages[0].tool_calls[0]"),
    ({"messages": [CALLS]}, "messages[0].tool_calls[0].function.name"),
    ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
    ({"tools": [{"type": []}]}, "tools[0].type"),
    ({"tools": [FUNCTION]}, "tools[0].function.parameters"),
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
INTEGER_BELOW = "integer_below_min_value"
OUT_OF_RANGE = [
    ({"max_tokens": 0}, INTEGER_BELOW),
    ({"max_tokens": -2}, INTEGER_BELOW),
    ({"max_tokens": -(10**300)}, INTEGER_BELOW),
    ({"max_completion_tokens": 0}, INTEGER_BELOW),
    ({"max_output_tokens": 0}, INTEGER_BELOW),
    ({"temperature": -1}, "decimal_below_min_value"),
    ({"top_p": 1.1}, "decimal_above_max_value"),
    ({"top_logprobs": 21}, "integer_above_max_value"),
]


@pytest.mark.parametrize(
    ("wrong", "param", "code"),
    [
        *((wrong, param, "invalid_type") for wrong, param in NESTED),
        *((wrong, *wrong, code) for wrong, code in OUT_OF_RANGE),
    ],
    ids=lambda value: str(value)[:60],
)
def test_so_is_one_inside_of_a_field_and_what_is_out_of_range(asked, wrong, param, code):
    responses = {"input", "text", "reasoning", "max_output_tokens"} & set(wrong)
    path = "/v1/responses" if responses else CHATS
    answer = asked(path, {**PATHS[path], **wrong})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert len(answer.error["message"]) < 200


NAMES = ["type", "role", "content", "text", "function", "name", "arguments", "format", "x"]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
ANYTHING = st.recursive(
    PLAIN | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
OF_MESSAGES = ["role", "content", "tool_calls", "tool_call_id", "name", "audio", "function_call"]


@settings(max_examples=100)
@given(st.data())
def test_no_body_is_answered_with_a_500(asked, data):
    path = data.draw(st.sampled_from(sorted(PATHS)))
    names = st.sampled_from([*FIELDS[path], "disco", "unknown"])
    changes = data.draw(st.dictionaries(names, ANYTHING, min_size=1, max_size=3))
    if path == CHATS and data.draw(st.booleans()):
        more = data.draw(st.dictionaries(st.sampled_from(OF_MESSAGES), ANYTHING, max_size=2))
        changes["messages"] = [{**HELLO[0], **more}]
    assert asked(path, {**PATHS[path], **changes}).status in (200, 400)


ODD_NUMBERS = st.sampled_from(
    ["1e400", "-1e400", "1e308", "-1e308", "1e-400", "-0", "9" * 400, "-" + "9" * 309, "9" * 300]
)
DEEP = st.builds(
    lambda levels, ends: ends[0] * levels + "1" + ends[1] * levels,
    st.sampled_from([50, 150, 199, 300, 500, 600, 990, 5000]),
    st.sampled_from(["[]", ('{"a":', "}"), ('[{"type":', "}]")]),
)


def behind_a_server(**more):
    """A client whose server answers everything."""
    message = {"role": "assistant", "content": "x"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    document = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices}
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: httpx2.Response(200, json=document)))
    return AsyncDisco(
        base_url="http://h.test/v1", api_key="k", http_client=http, policy="fast", price=(1, 1), **more
    )


A_TOOL = '[{"type": "function", "function": {"parameters": {"x": %s}}}]'
BESIDE = Backup(base_url="http://127.0.0.1:1/v1", api_key="k", model="b", price=(1, 1))


@pytest.fixture(scope="module", params=["device", "server", "backup"])
def any_asked(request):
    made = {
        "device": simulated,
        "server": behind_a_server,
        "backup": partial(behind_a_server, backups=[BESIDE]),
    }
    with asking(made[request.param](), max_body_bytes=200_000) as asked:
        yield asked


@settings(max_examples=60)
@given(st.data())
def test_no_number_and_no_depth_is_answered_with_a_500(any_asked, data):
    """Whoever answers, and whatever field it is in."""
    path = data.draw(st.sampled_from([CHATS, "/v1/embeddings"]))
    odd = data.draw(ODD_NUMBERS | DEEP)
    around = data.draw(
        st.sampled_from(
            ["%s", "[%s]", '{"5": %s}', '[{"type": "function", "function": {"parameters": {"x": %s}}}]']
        )
    )
    field = data.draw(st.sampled_from([*FIELDS[CHATS], "disco", "unknown", "input"]))
    whole = json.dumps({**CHAT, "input": "x", field: "HERE"}).replace('"HERE"', around % odd)
    answer = any_asked(path, whole.encode())
    assert answer.status in (200, 400), answer.body
    as_options = json.dumps({**CHAT, "disco": {data.draw(OPTIONS): "HERE"}}).replace('"HERE"', odd)
    assert any_asked(CHATS, as_options.encode()).status in (200, 400)


OPTIONS = st.sampled_from(
    ["pace_tps", "deadline_s", "local_only", "reach", "task", "classes", "budget_class", "judge"]
)


def test_a_long_number_in_a_text_is_a_text(asked):
    said = [{"role": "user", "content": "3." + "14" * 500}]
    assert asked(CHATS, {**CHAT, "messages": said}).status == 200


def test_what_needs_a_server_says_so_and_unknown_paths_are_answered_in_the_apis_shape(asked):
    for path in ("/v1/completions", "/v1/embeddings"):
        answer = asked(path, {"model": "m", "prompt": "x", "input": "x"})
        assert answer.status == 400
        assert "OPENAI_API_KEY" in answer.error["message"]
    for path in ("/", "/v1", "/v1/chat/completions/", "/v2/chat/completions", "/v1/files", "/v1/models/"):
        answer = asked(path, None if path == "/v1/models/" else {})
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
    assert asked("/v1/models/..").error["code"] == "model_not_found"


LEAVES = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("messages", "every_s", "comes_to", "after_s"),
    [
        ([part(b"ab"), part(b""), part(b"c", more=False)], 0.0, b"abc", 0.0),
        ([part(b"ab"), LEAVES], 0.0, Gone, 0.0),
        ([part(b"ab")], 0.0, 408, 30.0),
        ([part(b"a")] * 1000, 29.0, 408, 300.0),  # a byte now and then
        ([part(b"a" * 2001)], 0.0, 413, 5.0),  # and no end
    ],
    ids=["in parts", "gone", "silent", "slow", "long and silent"],
)
def test_a_body_is_read_for_as_long_as_it_comes(messages, every_s, comes_to, after_s):
    async def main():
        began_at = anyio.current_time()
        try:
            came = await read_body({"headers": []}, pieces(*messages, every_s=every_s), 2000)
        except Refusal as refusal:
            came = refusal.status
        except Gone:
            came = Gone
        return came, anyio.current_time() - began_at

    assert virtually(main) == (comes_to, pytest.approx(after_s, abs=0.1))


def test_unfinished_bodies_take_no_place_and_are_broken_off_at_the_end():
    async def main():
        async with simulated() as client, anyio.create_task_group() as tasks:
            app = make_app(client, max_concurrent=1)
            said = []

            async def unfinished():
                answer = await ask(app, CHATS, {}, pieces(part(b"{")))
                said.append((answer.status, answer.error["code"]))

            for _ in range(5):
                tasks.start_soon(unfinished)
            await anyio.sleep(1.0)
            assert app.state.limiter.busy == 0
            assert (await ask(app, CHATS, CHAT)).status == 200
            app.state.limiter.close()
            await anyio.sleep(1.0)
            assert said == [(503, "shutting_down")] * 5
            assert (await ask(app, CHATS, CHAT)).status == 503

    virtually(main)


@pytest.mark.parametrize(
    "owner",
    [{"policy": preset("revise")}, {"policy": preset("guard"), "default_options": {"judge": "revise"}}],
    ids=["preset", "default options"],
)
def test_text_is_taken_back_only_from_callers_who_ask_for_it(owner):
    """The owner revises answers; a caller who knows nothing of that would read both answers as one."""
    quick = {"decode_tps": 1e5}
    higher = SimulatedEndpoint("higher", SimulatedProfile(answer=TEXT["higher"], **quick))
    kept = Kept({"device/m": DOUBTED})
    made = AsyncDisco(local=local(**quick), tiers=[higher], histories=kept, **owner)
    with asking(made) as asked:
        for options, is_revised in (
            (None, False),
            ({"judge": None}, False),
            ({"task": "default"}, False),
            ({"preset": "cascade"}, False),
            ({"judge": "revise"}, True),
        ):
            body = {"model": "m", "messages": HELLO, "stream": True}
            answer = asked(CHATS, body if options is None else {**body, "disco": options})
            assert answer.status == 200
            assert (b"retract_to" in answer.body) is is_revised
