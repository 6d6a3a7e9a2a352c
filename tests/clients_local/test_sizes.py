"""Long prompts, long answers and many at once: what clients send that know nothing of disco, to a local model alone.

An unmodified `openai` client, and `disco serve` as a process with the real model.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.clients_local.serving import local_client

pytestmark = pytest.mark.real

CONTEXT = 512  # tokens; the model was trained for more


@pytest.fixture(scope="module", params=["engine", "llama-server"])
def client(request):
    with local_client("--runtime", request.param, "--context", str(CONTEXT)) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **more):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="m", messages=messages, temperature=0, **more)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_an_answer_is_never_a_reason_to_refuse(client, name):
    """Coding agents send 8,000 and 32,000 with every request, also with the one for a title."""
    for limit in (4096, 32_000):
        answer = ask(client, "Say hello.", stop=[" "], **{name: limit})
        assert answer.choices[0].message.content
        assert answer.usage.completion_tokens < 32


def test_a_prompt_that_fits_is_answered_although_an_estimate_by_its_characters_says_otherwise(client):
    words = int(0.81 * CONTEXT)
    answer = ask(client, "river " * words, max_tokens=2)
    assert words < answer.usage.prompt_tokens < CONTEXT
    assert 5 * words // 4 > CONTEXT, "the estimate, at four characters a token"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_frameworks_know(client, stream):
    """Each digit is a token, so an estimate by characters says a quarter. LiteLLM goes by these words."""
    with pytest.raises(openai.BadRequestError) as refused:
        for _ in ask(client, "7" * (CONTEXT + 100), max_tokens=2, stream=stream):
            pass
    error = refused.value
    assert (error.code, error.type, error.param) == (
        "context_length_exceeded",
        "invalid_request_error",
        "messages",
    )
    begin, _, count = error.body["message"].partition(" However, your messages resulted in ")
    assert begin == f"This model's maximum context length is {CONTEXT} tokens."
    assert CONTEXT + 100 < int(count.split()[0]) < CONTEXT + 200, "a count, and not an estimate"
    assert "Shorten the messages" in count


def test_forty_chats_at_once_are_all_answered(client):
    with ThreadPoolExecutor(40) as many:
        answers = list(many.map(lambda n: ask(client, f"What is {n} and 1?", max_tokens=4), range(40)))
    assert [bool(answer.choices[0].message.content) for answer in answers] == [True] * 40
