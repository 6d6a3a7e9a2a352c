"""What clients ask of a local model that know nothing of disco: tools, hints, demands, choices, log probabilities.

An unmodified `openai` client, and `disco serve` as a process with the real model, whose chat template has no place for
tools.
"""

from __future__ import annotations

import json

import openai
import pytest

from tests.clients_local.serving import local_client

pytestmark = pytest.mark.real

PARAMETERS = {
    "$defs": {"unit": {"enum": ["C", "F"]}},
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"$ref": "#/$defs/unit"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
HISTORY = [
    *QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "12 C, light rain"},
]


@pytest.fixture(scope="module", params=["engine", "llama-server"])
def client(request):
    with local_client("--runtime", request.param) as client:
        yield client


def ask(client: openai.OpenAI, messages=QUESTION, **more):
    return client.chat.completions.create(
        model="gpt-4o-mini", messages=messages, **{"max_tokens": 8, "temperature": 0, **more}
    )


def fits(arguments: str) -> bool:
    given = json.loads(arguments)
    return set(given) == {"city", "unit"} and len(given["city"]) <= 12 and given["unit"] in ("C", "F")


# Tools: row 1, and row 17


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [WEATHER]},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"messages": HISTORY},
        {"messages": HISTORY, "tools": [WEATHER, NOW], "parallel_tool_calls": False},
    ],
    ids=["offered", "none", "history", "history and tools"],
)
def test_tools_are_never_refused(client, more):
    choice = ask(client, **more).choices[0]
    assert choice.finish_reason in ("stop", "length", "tool_calls")
    if more.get("tool_choice") == "none":
        assert choice.message.content
        assert not choice.message.tool_calls


@pytest.mark.parametrize(
    ("choice", "stream"),
    [("required", False), ({"type": "function", "function": {"name": "get_weather"}}, True)],
    ids=["required", "named and streamed"],
)
def test_a_call_that_is_required_is_made_and_valid(client, choice, stream):
    tools = [WEATHER] if choice == "required" else [NOW, WEATHER]
    # A stop string ends a text, and must not cut a call.
    asked = {"tools": tools, "tool_choice": choice, "max_tokens": 100, "temperature": 1.0, "stop": ['"']}
    if stream:
        with client.chat.completions.stream(model="m", messages=QUESTION, **asked) as events:
            answer = events.get_final_completion()
    else:
        answer = ask(client, **asked)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
    (call,) = answer.choices[0].message.tool_calls
    assert call.id
    assert call.function.name == "get_weather"
    assert fits(call.function.arguments)


def test_a_required_call_that_is_cut_off_is_a_call_that_is_cut_off(client):
    choice = ask(client, tools=[WEATHER], tool_choice="required", max_tokens=16, temperature=1.0).choices[0]
    assert choice.finish_reason == "length"
    assert not choice.message.content


# Hints: row 16

HINTS = {
    "reasoning_effort": "high",
    "verbosity": "low",
    "keep_alive": "5m",
    "cache_prompt": False,
    "chat_template_kwargs": {"enable_thinking": False, "messages": [], "add_generation_prompt": False},
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "metadata": {"a": "b"},
    "store": True,
    "user": "u",
}


def test_hints_are_no_reason_to_refuse_and_do_not_change_an_answer_that_they_say_nothing_of(client):
    assert ask(client, extra_body=HINTS).choices[0].message.content == plainly(client)


def test_the_agents_of_gpt_5_are_answered_by_responses(client):
    answer = client.responses.create(
        model="gpt-5",
        input="Name a fish.",
        max_output_tokens=8,
        text={"verbosity": "low"},
        reasoning={"effort": "low"},
    )
    assert answer.output_text


def plainly(client: openai.OpenAI) -> str:
    return ask(client).choices[0].message.content


def test_other_servers_names_of_what_is_served_are_served(client):
    def text(**more) -> str:
        return ask(client, extra_body=more).choices[0].message.content

    assert text(repetition_penalty=1.9) == text(repeat_penalty=1.9) != plainly(client)
    for asked in (
        {"guided_json": PARAMETERS},
        {"guided_json": json.dumps(PARAMETERS)},
        {"structured_outputs": {"json": PARAMETERS}},
    ):
        answer = ask(client, extra_body=asked, max_tokens=100)
        assert answer.choices[0].finish_reason == "stop"
        assert fits(answer.choices[0].message.content)


# Demands: rows 1, 16 and 24

DEMANDS = {
    "grammar": ('root ::= "a"', "response_format"),
    "guided_regex": ("a+", "response_format"),
    "structured_outputs": ({"choice": ["a", "b"]}, "response_format"),
    "functions": ([{"name": "f"}], "tools"),
    "web_search_options": ({}, "server"),
    "audio": ({"voice": "alloy", "format": "wav"}, "server"),
    "modalities": (["text", "audio"], "server"),
    "mirostat": (2, "server"),
    "n": (129, "128"),
}


@pytest.mark.parametrize("name", DEMANDS)
def test_a_demand_that_cannot_be_kept_is_refused_by_its_name_with_a_remedy(client, name):
    value, remedy = DEMANDS[name]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, extra_body={name: value})
    error = refused.value
    assert error.param == name
    assert error.code in ("no_eligible_endpoint", "integer_above_max_value")
    assert name.removesuffix("_options") in error.body["message"]
    assert remedy in error.body["message"]
    for of_python in ("api_key", "create(", "chat.completions.create", "disco-llm["):
        assert of_python not in error.body["message"]


MALFORMED = {
    "temperature": "hot",
    "top_p": 2,
    "top_k": "many",
    "min_p": [0.1],
    "seed": "one",
    "frequency_penalty": {},
    "repeat_penalty": "high",
    "repetition_penalty": "high",
    "logit_bias": {"5": "high"},
    "max_tokens": "many",
    "stop": [5],
    "response_format": {"type": "poem"},
    "tools": [{"type": "function"}],
    "tool_choice": "required",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_by_its_name(client, name):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, extra_body={name: MALFORMED[name]})
    assert refused.value.param == name


def test_what_a_response_asks_for_that_no_chat_has_is_named(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input="Hi.", tools=[{"type": "web_search"}])
    assert refused.value.param == "tools"
    assert "api_key" not in refused.value.body["message"]


# Choices: row 24


def test_several_choices_are_written_with_their_own_seeds_and_the_prompt_counts_once(client):
    asked = {"temperature": 1.0, "max_tokens": 8}
    answer = ask(client, seed=3, n=5, **asked)
    assert [choice.index for choice in answer.choices] == list(range(5))
    texts = [choice.message.content for choice in answer.choices]
    for index in (0, 4):
        alone = ask(client, seed=3 + index, **asked)
        assert texts[index] == alone.choices[0].message.content
        assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    assert len(set(texts)) > 2
    assert 5 <= answer.usage.completion_tokens <= 5 * 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_several_choices_are_streamed_each_with_its_index_and_end(client):
    asked = {"temperature": 1.0, "seed": 3, "n": 3, "max_tokens": 6, "logprobs": True, "stream": True}
    texts, ends, ids, tokens = [""] * 3, [None] * 3, set(), [0] * 3
    usage = None
    for chunk in ask(client, stream_options={"include_usage": True}, **asked):
        ids.add(chunk.id)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert ends[choice.index] is None, "nothing of a choice comes behind its end"
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
            tokens[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
    assert len(ids) == 1
    assert all(texts)
    assert None not in ends
    assert sum(tokens) == usage.completion_tokens
    assert usage.prompt_tokens == ask(client).usage.prompt_tokens


# Log probabilities: row 8


def test_log_probabilities_come_with_a_whole_answer_too(client):
    answer = ask(client, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in entries)


def test_images_and_embeddings_are_refused_by_name_with_what_would_serve_them(client):
    seen = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError, match="mmproj") as raised:
        ask(client, [{"role": "user", "content": seen}])
    assert raised.value.param == "messages"
    with pytest.raises(
        openai.BadRequestError, match=r"smollm2-135m', is a chat model.*OPENAI_BASE_URL"
    ) as raised:
        client.embeddings.create(model="smollm2-135m", input="the sea")
    assert raised.value.param == "model"
