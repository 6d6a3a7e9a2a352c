"""The real model: calls that are required, chosen and cut off, and what it writes and fails with."""

from __future__ import annotations

import json
import threading

import anyio
import anyio.lowlevel
import openai
import pytest
from loops import mostly
from weather_server import weather_server

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.model.sampler import Sampler
from disco.endpoints.llamacpp.model.sequences import SequenceModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.errors import BusyError, ConfigurationError, FailureKind, LocalModelError
from disco.events import DeltaKind, Ended
from disco.request import Prefix, Request
from disco.testing.asking import next_event
from tests.endpoints.llamacpp.answers import ask, cached, complete, fails, fresh

pytestmark = [pytest.mark.real, pytest.mark.anyio]


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SMALL = {"type": "integer", "minimum": 0, "maximum": 99}
WEATHER = tool("get_weather", city={"type": "string", "maxLength": 12}, unit={"enum": ["C", "F"]})
ADD = tool("add", a=SMALL, b=SMALL)
FIVE = {"content": "Add 3 and 5.", "max_tokens": 60, "tools": [ADD]}
ARGUMENTS = '{"city": "Rome", "unit": "C"}'
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CALLED = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "assistant", "content": "It is sunny in Rome."},
]
PARIS = {"content": "What is the weather in Paris?", "history": CALLED, "tools": [WEATHER], "max_tokens": 60}


def calls_of(deltas):
    """[name, arguments] of each call, put together as the API documents it."""
    calls = []
    for delta in deltas:
        if delta.kind is not DeltaKind.TOOL:
            continue
        assert (delta.text, delta.raw) == ("", None)
        (piece,) = delta.tool_calls
        if piece.index == len(calls):
            assert piece.id.startswith("call_")
            assert piece.arguments == ""
            calls.append([piece.name, ""])
        else:
            assert (piece.id, piece.name) == (None, None)
            assert piece.arguments
        calls[piece.index][1] += piece.arguments
    return calls


# Tests of the same tools stand together: most of a prompt is its tools, and the cache holds them for the next one.


async def test_a_call_that_the_model_chooses_itself(thread_model):
    text, deltas, ended = await complete(thread_model, ask(**PARIS))
    ((name, arguments),) = calls_of(deltas)
    assert (name, json.loads(arguments)["city"]) == ("get_weather", "Paris")
    assert (text, ended.finish_reason) == ("", "tool_calls")  # the marker is in no text
    assert len(deltas) > 5
    _, deltas, ended = await complete(thread_model, ask(**{**PARIS, "max_tokens": 4}))
    assert (ended.finish_reason, calls_of(deltas)) == ("length", [])
    # An answer begun elsewhere may still call.
    _, deltas, ended = await complete(thread_model, ask(**PARIS), Prefix("I will look it up.\n", tokens=6))
    assert (ended.finish_reason == "tool_calls") == bool(calls_of(deltas))
    text, _, ended = await complete(
        thread_model, Request(CALLED[:3], "m", {"temperature": 0, "max_tokens": 16})
    )
    assert ("sunny" in text, ended.finish_reason) == (True, "stop")  # results of calls are read


@pytest.mark.slow
async def test_a_call_is_paused_in_its_middle_and_its_grammar_goes_on(thread_model, monkeypatch):
    """Also where another request has used the model meanwhile: what is lost is read again, and stays a call."""
    monkeypatch.setattr(thread_model.engine._thread.scheduler, "_limits", Limits(hold_s=0.05))
    request = ask(**FIVE, tool_choice="required")
    await complete(thread_model, ask(**{**FIVE, "max_tokens": 1}, tool_choice="required"))
    _, expected, _ = await complete(thread_model, request)
    for displaced in (False, True):
        deltas = []
        async with thread_model.open(request) as attempt:
            while True:
                event = await anext(attempt)
                if isinstance(event, Ended):
                    break
                if not isinstance(event, list):
                    continue
                deltas += event
                if deltas == event:
                    assert attempt.pause()
                    await anyio.sleep(0.1)
                    if displaced:
                        await complete(thread_model, ask("Hello!", max_tokens=2))
                    assert attempt.resume()
        ((name, arguments),) = calls_of(deltas)
        assert (name, set(json.loads(arguments)), event.finish_reason) == ("add", {"a", "b"}, "tool_calls")
        assert displaced or [(name, arguments)] == [tuple(call) for call in calls_of(expected)]


async def test_a_plain_answer_stays_text_and_is_what_it_is_with_no_call_allowed(thread_model):
    hello = {"content": "Hello!", "max_tokens": 8}
    text, deltas, ended = await complete(thread_model, ask(**hello, tools=[WEATHER]))
    assert text
    assert {delta.kind for delta in deltas} == {DeltaKind.TEXT}
    assert ended.finish_reason in ("stop", "length")
    spell = thread_model.engine.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    plain, _, _ = await complete(thread_model, ask(**hello))
    none, _, _ = await complete(thread_model, ask(**hello, tools=[WEATHER], tool_choice="none"))
    assert none == plain


async def test_a_token_that_says_more_than_the_opening_is_cut_there(thread_model, monkeypatch):
    """The model is made to write the marker's end and what follows it as one token."""
    model = thread_model.engine.model
    beyond = model.index.beginning_with(b">")[0]
    written = [*model.tokenize("Well. <tool_call", special=False), beyond]
    assert model.piece(beyond) != b">"
    sample = Sampler.sample

    def forced(self, position):
        return sample(self, position) if self.constrained or not written else written.pop(0)

    monkeypatch.setattr(Sampler, "sample", forced)
    text, deltas, ended = await complete(thread_model, ask(**FIVE))
    ((name, arguments),) = calls_of(deltas)
    assert (text, name, set(json.loads(arguments))) == ("Well. ", "add", {"a", "b"})
    assert ended.finish_reason == "tool_calls"
    assert b"".join(map(model.piece, cached(thread_model))).count(b'<tool_call>\n{"name": "add"') == 1


async def test_a_required_call_keeps_to_bans_and_penalties_and_no_stop_string_ends_it(thread_model):
    (three,) = thread_model.engine.model.tokenize("3", special=False)
    more = {"logit_bias": {str(three): -100}, "frequency_penalty": 1.0, "stop": ['"a"', "add"]}
    text, deltas, ended = await complete(thread_model, ask(**FIVE, tool_choice="required", **more))
    ((name, arguments),) = calls_of(deltas)
    assert (text, name, set(json.loads(arguments))) == ("", "add", {"a", "b"})
    assert ("3" in arguments, ended.finish_reason) == (False, "tool_calls")
    assert sum(delta.tokens for delta in deltas) == ended.usage.completion_tokens
    for limit in (3, 12):  # in the middle of a call
        limited = {**FIVE, "max_tokens": limit}
        _, deltas, ended = await complete(thread_model, ask(**limited, tool_choice="required", **more))
        assert (ended.finish_reason, ended.usage.completion_tokens) == ("length", limit)
        assert all(arguments.startswith(partial) for _, partial in calls_of(deltas))
    text, _, ended = await complete(thread_model, ask("Hello!", tools=[ADD], stop="o"))
    assert (ended.finish_reason, "o" in text) == ("stop", False)
    async with thread_model.open(ask(**{**FIVE, "max_tokens": None}, tool_choice="required")) as attempt:
        (delta, *_) = await next_event(attempt)
        await attempt.aclose()
    assert (delta.kind, attempt.usage.completion_tokens < 20) == (DeltaKind.TOOL, True)


async def test_tools_beside_structured_output(thread_model):
    """Either a whole document or a whole call, whichever the model prefers; never a mixture."""
    schema = {"type": "object", "properties": {"x": SMALL}, "required": ["x"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    (mark,) = thread_model.engine.model.tokenize("<", special=False)
    for bias, reason in ((50, "tool_calls"), (-100, "stop")):
        request = ask(**FIVE, response_format=form, logit_bias={str(mark): bias})
        text, deltas, ended = await complete(thread_model, request)
        assert ended.finish_reason == reason
        assert [set(json.loads(one)) for _, one in calls_of(deltas)] == [{"a", "b"}] * (bias > 0)
        assert text == "" if bias > 0 else list(json.loads(text)) == ["x"]


# A template that knows tools; a small one of our own, because the model at hand has none.

LLAMA = (
    '<|start_header_id|>{% if tools %}{{ tools | tojson }}Use {"name": .., "parameters": ..}{{ \'"parameters": \' }}'
    "{% endif %}{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}"
    "{{ raise_exception('one at a time') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    '{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", '
    '"parameters": {{ c.function.arguments | tojson }}}'
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.mark.slow
async def test_a_template_that_knows_tools_decides_how_calls_are_written_unless_it_refuses_the_history(
    thread_model, monkeypatch
):
    model = thread_model.engine.model
    renderer = Renderer(model, LLAMA)
    monkeypatch.setattr(thread_model.engine, "_renderer", renderer)
    history = [CALLED[0], {**CALLED[1], "tool_calls": [CALL] * 2}, CALLED[2]]
    for more, opening in (({}, renderer.form.open), ({"history": history}, "<tool_call>")):
        _, deltas, ended = await complete(thread_model, ask(**FIVE, **more, tool_choice="required"))
        assert (ended.finish_reason, set(json.loads(calls_of(deltas)[0][1]))) == ("tool_calls", {"a", "b"})
        written = b"".join(map(model.piece, cached(thread_model))).decode().rpartition("assistant")[2]
        assert written.lstrip().startswith(opening)
    assert renderer.form.name == "llama"
    mentions = "{% if tools %}{# <tool_call> arguments #}{% endif %}{{ messages[0].content }}"
    assert Renderer(model, mentions).form.name == "generic"
    refusing = Renderer(model, "{{ raise_exception(messages[0].content) }}")
    monkeypatch.setattr(thread_model.engine, "_renderer", refusing)
    assert (await fails(thread_model, ask("my secret"))).kind is FailureKind.BAD_REQUEST


async def test_what_the_local_model_cannot_keep_to_goes_to_the_server_or_is_refused_by_name(thread_model):
    unique = tool("f", x={"type": "array", "items": {}, "uniqueItems": True})
    given = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 60}
    async with AsyncDisco(local=thread_model, policy="private") as client:
        with pytest.raises(openai.BadRequestError, match="uniqueItems") as caught:
            await client.chat.completions.create(**given, tools=[unique])
        assert caught.value.param == "tools"
    with weather_server() as server:
        more = {"policy": Preset(dispatch={"policy": "device_only"}), "base_url": server.base_url}
        async with AsyncDisco(local=thread_model, api_key="key", **more) as client:
            answer = await client.chat.completions.create(**given, tools=[unique])
        assert answer.choices[0].message.tool_calls[0].id == "call_1"
        assert [one.endpoint for one in answer.route.attempts] == ["device", "server"]
        assert server.bodies[0]["tools"] == [unique]


# ---------------------------------------------------------------- text


@mostly("trio")
async def test_with_its_own_ids_and_a_warm_cache_a_continuation_is_the_same_answer(
    thread_model, anyio_backend
):
    whole, deltas, ended = await complete(thread_model, ask(max_tokens=12))
    assert [delta.tokens for delta in deltas] == [1] * 12
    spell = thread_model.engine.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("length", 12)
    ids = tuple(token for delta in deltas[:8] for token in delta.ids)
    known = {"tokens": 8, "vocabulary": thread_model.capabilities().vocabulary}
    prefix = Prefix("".join(delta.text for delta in deltas[:8]), ids=ids, **known)
    rest, _, ended = await complete(thread_model, ask(max_tokens=12), prefix)
    assert prefix.text + rest == whole
    assert (ended.usage.completion_tokens, ended.usage.prompt_tokens - ended.usage.cached_tokens) == (4, 1)
    # Ids that do not spell the text are not believed.
    expected, _, _ = await complete(thread_model, ask(max_tokens=12), Prefix("Paris is the", tokens=8))
    for odd in ((5, 6, 7), (10**9,)):
        prefix = Prefix("Paris is the", ids=odd, **known)
        assert (await complete(thread_model, ask(max_tokens=12), prefix))[0] == expected


async def test_seeds_penalties_and_biases_hold_and_log_probabilities_are_the_models(thread_model):
    asked = [ask(max_tokens=8, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [(await complete(thread_model, one))[0] for one in asked]
    assert texts[0] == texts[1] != texts[2]
    prefix = Prefix("one two one two one two one two one", tokens=9)  # penalties look at it, too
    for penalty, says_two in ((0.0, True), (2.0, False)):
        text, _, _ = await complete(
            thread_model, ask("Count.", max_tokens=11, frequency_penalty=penalty), prefix
        )
        assert text.startswith(" two") is says_two
    _, (delta,), _ = await complete(thread_model, ask(max_tokens=1, logprobs=True, top_logprobs=3))
    openai.types.chat.chat_completion_chunk.ChoiceLogprobs.model_validate(delta.logprobs)
    (entry,) = delta.logprobs["content"]
    assert entry["token"] == delta.text == entry["top_logprobs"][0]["token"]
    assert bytes(entry["bytes"]) == delta.text.encode()
    values = [one["logprob"] for one in entry["top_logprobs"]]
    assert 0 > entry["logprob"] == values[0] >= values[1] >= values[2]
    banned = {str(delta.ids[0]): -100}
    _, (other,), _ = await complete(thread_model, ask(max_tokens=1, logit_bias=banned))
    assert other.text == entry["top_logprobs"][1]["token"]


CUT = "Paris's café—漢字 🎉 beauti\n\n  lit; x=f(3)"


async def test_it_continues_exactly_wherever_the_text_is_cut(thread_model):
    model = thread_model.engine.model
    for at in range(2, len(CUT) + 1, 3):
        text = CUT[:at]
        word_at = max((i for i, c in enumerate(text) if c.isspace()), default=0)
        prefix = Prefix(text, tokens=1, withheld=text[word_at:])
        rest, deltas, ended = await complete(thread_model, ask(max_tokens=3), prefix)
        # What is in the cache is what the model was made to write: exactly the text and the first token
        # after it; the second one was never computed.
        written = b"".join(model.piece(token) for token in cached(thread_model))
        answer = written[written.rindex(b"assistant\n") + len(b"assistant\n") :]
        delivered = (text + rest).encode()
        assert len(answer) >= len(text.encode())
        common = min(len(answer), len(delivered))  # the end may be an unfinished character
        assert answer[:common] == delivered[:common]
        assert all(one.ids is None or model.spell(one.ids) == one.text.encode() for one in deltas[:1])
        assert ended.usage.completion_tokens <= 2
    _, _, plain = await complete(thread_model, ask(max_tokens=2), Prefix("It is ", tokens=1))
    _, _, quoted = await complete(thread_model, ask(max_tokens=2), Prefix("It is <|im_end|>", tokens=1))
    # As a control token it would be a single one.
    assert quoted.usage.prompt_tokens - plain.usage.prompt_tokens > 2


async def test_the_context_ends_the_answer_and_refuses_what_does_not_fit():
    unending = {"2": -100, "0": -100}
    async with fresh(context_tokens=64) as endpoint:
        _, _, ended = await complete(endpoint, ask(max_tokens=None, logit_bias=unending))
        assert ended.finish_reason == "length"
        assert ended.usage.prompt_tokens + ended.usage.completion_tokens == 64
        assert "64" in str((await fails(endpoint, ask("secret " * 100))).error)


async def test_measuring_gives_times_and_rates(thread_model, engine_host):
    for model in (thread_model, engine_host):
        steps, numbers = [], {"prompt_tokens": (8, 16, 10**6), "depths": (8,), "decode_tokens": 4}
        measured = await model.measure(**numbers, progress=lambda *step, steps=steps: steps.append(step))
        assert [one.tokens for one in measured.prefill] == [8, 16]
        assert all(one.seconds_s > 0 for one in measured.prefill)
        assert (measured.decode[0].depth_tokens, measured.decode[0].tps > 0) == (8, True)
        # To start an interpreter takes that long.
        assert measured.load_s > (0 if model is thread_model else 0.1)
        assert (steps, measured.batch_tokens) == ([(1, 3), (2, 3), (3, 3)], 64)


async def test_a_full_queue_refuses_and_says_so():
    endpoint = EngineEndpoint(model="nowhere.gguf", max_queue=1)
    endpoint.engine._thread._thread = threading.current_thread()  # nothing works on the queue
    waiting = endpoint.open(ask())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.__anext__)
            await anyio.lowlevel.checkpoint()
            failure = await fails(endpoint, ask())
            assert (failure.kind, type(failure.error), failure.retry_after_s) == (
                FailureKind.RATE_LIMIT,
                BusyError,
                1,
            )
            group.cancel_scope.cancel()
    # Cancelling freed its place.
    with anyio.move_on_after(0.01) as scope:
        await next_event(endpoint.open(ask()))
    assert scope.cancelled_caught


async def test_a_model_that_llama_cpp_refuses_says_why(tmp_path, thread_model, capfd):
    whole = bytearray(thread_model.engine.model.path.read_bytes())
    at = whole.index(b"llama", whole.index(b"general.architecture"))
    whole[at : at + 5] = b"lxama"
    path = tmp_path / "unknown.gguf"
    path.write_bytes(whole)
    async with fresh(model=path) as endpoint:
        with pytest.raises(LocalModelError, match="lxama"):
            await endpoint.warm_up()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # llama.cpp has a lot to say about it


async def test_a_chat_template_that_is_none_is_a_mistake_and_no_crash():
    async with fresh(chat_template="{% for") as endpoint:
        with pytest.raises(ConfigurationError, match="chat_template"):
            await endpoint.warm_up()
        assert not endpoint.capabilities().ready


async def test_after_a_crash_the_model_is_loaded_again(monkeypatch):
    def crash(self, parts):
        raise OSError("secret")

    async with fresh() as endpoint:
        await endpoint.warm_up()
        with monkeypatch.context() as patch:
            patch.setattr(SequenceModel, "compute", crash)
            failure = await fails(endpoint, ask())
        assert (failure.kind, type(failure.error)) == (FailureKind.CRASHED, LocalModelError)
        assert "failed while it worked" in str(failure.error)
        assert not endpoint.capabilities().ready
        assert (await complete(endpoint, ask(max_tokens=2)))[0]
