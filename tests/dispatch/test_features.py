"""What a request asks for is read off it once, in numbers."""

import pytest

from disco.dispatch import estimate_tokens, features_of
from disco.request import Request


def read(messages="hello", **params):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return features_of(Request(messages=messages, model="m", params=params), stream=True, local_only=False)


NOTHING = frozenset()


@pytest.mark.parametrize(
    ("params", "needs", "may_migrate"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tools"}, False),
        ({"functions": [{"name": "f"}]}, {"tools"}, False),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"json_schema"}, False),
        ({"response_format": {"type": "json_object"}}, {"json_schema"}, False),
        ({"guided_json": {"type": "object"}}, {"json_schema"}, False),
        ({"logprobs": True}, {"logprobs"}, False),
        ({"top_logprobs": 3}, {"logprobs"}, False),
        ({"n": 2}, {"n"}, False),
        ({"modalities": ["text", "audio"], "audio": {"voice": "x"}}, {"audio"}, False),
        ({"logit_bias": {"1": 5}}, {"logit_bias"}, True),
        ({"reasoning_effort": "low"}, {"reasoning"}, True),
        ({"web_search_options": {}}, {"web_search"}, True),
        ({"verbosity": "low"}, {"verbosity"}, True),  # a parameter that is not known
        # These ask for nothing.
        ({"temperature": 0.2, "seed": 1, "stop": ["."], "max_tokens": 9}, NOTHING, True),
        ({"tools": [], "n": 1, "logit_bias": {}, "user": "u", "top_k": None}, NOTHING, True),
        ({"n": None, "logprobs": False, "top_logprobs": 0}, NOTHING, True),
        ({"response_format": {"type": "text"}, "modalities": ["text"]}, NOTHING, True),
        ({"reasoning_effort": "none"}, NOTHING, True),
    ],
)
def test_parameters_become_needs(params, needs, may_migrate):
    features = read(**params)
    assert (features.needs, features.may_migrate) == (needs, may_migrate)
    assert features.max_tokens == params.get("max_tokens")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("part", "needs"),
    [
        ({"type": "text", "text": "x"}, set()),
        ({"type": "refusal", "refusal": "x"}, set()),
        ({"type": "image_url", "image_url": {"url": "data:"}}, {"images"}),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"audio"}),
        ({"type": "file", "file": {"file_id": "f"}}, {"file"}),
        ({"type": "hologram"}, {"hologram"}),  # unknown ones under their own name
        ({"text": "no type"}, {"part without a type"}),
    ],
)
def test_content_parts_become_needs_and_so_do_tool_calls_when_no_tools_are_offered_now(part, needs):
    assert read([{"role": "user", "content": [part]}]).needs == needs
    assert read([{"role": "assistant", "content": None, "tool_calls": [CALL]}]).needs == {"tools"}
    assert read([{"role": "tool", "tool_call_id": "1", "content": "3"}]).needs == {"tools"}


def test_estimates_follow_the_stated_rule_and_binary_data_is_not_counted_as_text():
    counts = {"": 0, "abcd" * 10: 10, "模型模型": 4, "привет": 4, "abcd模": 2}  # six letters of two bytes
    assert {text: estimate_tokens(text) for text in counts} == counts
    assert estimate_tokens("\ud800") > 0  # half of an emoji, as a careless slice leaves it
    # Three tokens open the answer; each message costs four beside its text.
    assert read("abcd" * 10).prompt_tokens == 3 + 4 + 10
    two = [{"role": "system", "content": "abcd"}, {"role": "user", "content": "abcdabcd"}]
    assert read(two).prompt_tokens == 3 + 2 * 4 + 1 + 2
    tools = [{"type": "function", "function": {"name": "f", "description": "x" * 400}}]
    assert read("hi", tools=tools).prompt_tokens > read("hi").prompt_tokens + 100
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}}
    audio = {"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "mp3"}}
    assert read([{"role": "user", "content": [image]}]).prompt_tokens < 1_000
    assert 20 < read([{"role": "user", "content": [audio]}]).prompt_tokens < 100


def test_what_bounds_a_request_is_kept():
    request = Request(messages=[{"role": "user", "content": "x"}], model="m")
    found = features_of(request, stream=False, local_only=True)
    assert (found.stream, found.local_only, found.reach) == (False, True, "device")
    bounded = features_of(request, stream=True, reach="own")
    assert (bounded.local_only, bounded.reach) == (False, "own")
