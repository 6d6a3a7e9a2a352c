"""What is taken out of a server's error, and what stays so that it can be understood."""

from __future__ import annotations

import json

import httpx2
import openai
import pytest
from canaries import CALLERS_KEY, HEADER, KEY, PASSWORD, PROMPT, SYSTEM

from disco.endpoints.openai_api.error_mapping import failure_from
from disco.endpoints.openai_api.refused.redacted import redact
from disco.errors import FailureKind

SENT = httpx2.Request(
    "POST",
    f"http://user:{PASSWORD}@server.test/v1?api-key={CALLERS_KEY}",
    headers={"Authorization": f"Bearer {KEY}", "X-Api-Key": HEADER, "Accept": "application/json"},
)


def error(message: str, **body) -> openai.APIStatusError:
    response = httpx2.Response(400, request=SENT)
    body = {"message": message, **body}
    return openai.BadRequestError(f"Error code: 400 - {message}", response=response, body=body)


@pytest.mark.parametrize("secret", [KEY, HEADER, PASSWORD, CALLERS_KEY])
def test_what_the_request_carried_is_found_in_it(secret):
    """However it came there: a function's key, Azure's header, one of the application's own, the URL."""
    quoting = error(f"Wrong: {secret}!", deep=[{"er": f"<{secret}>"}])
    redact(quoting)
    assert str(quoting) == quoting.message == "Error code: 400 - Wrong: [key]!"
    assert quoting.body == {"message": "Wrong: [key]!", "deep": [{"er": "<[key]>"}]}


ODD = 'sk-"quoted"\\key'
LONG = "the sea and the land, " * 200_000
PROMPTS = {"messages": [{"content": [{"text": PROMPT}]}], "instructions": SYSTEM, "n": 1}
SHORT = ["a short one", "key"]


@pytest.mark.parametrize(
    ("quoted", "keys", "prompt", "left"),
    [
        (f"Wrong: {json.dumps(ODD)} or sk-%22quoted%22%5Ckey.", (ODD,), (), 'Wrong: "[key]" or [key].'),
        ("Accept application/json, or choose another key.", ("key", "", "another"), SHORT, None),
        (f"Bad: {PROMPT}", (), PROMPTS, "Bad: [prompt]"),
        (f"Bad: {PROMPT[:40]}...", (), PROMPTS, "Bad: [prompt]..."),
        (f"Bad: ...{PROMPT[13:60]}... is bad", (), PROMPTS, "Bad: ...[prompt]... is bad"),
        (f"{SYSTEM} and {PROMPT}", (), PROMPTS, "[prompt] and [prompt]"),
        (f"Bad: {json.dumps(PROMPT)}", (), PROMPTS, 'Bad: "[prompt]"'),
        ("Bad: temperature must be at most 2", (), PROMPTS, None),
        (f"Bad:\n{PROMPT}", (), [LONG + PROMPT], "Bad:\n[prompt]"),  # megabytes are searched
    ],
    ids=lambda value: str(value)[:30],
)
def test_quotations_of_keys_and_prompt_leave_the_message_and_other_words_stay(quoted, keys, prompt, left):
    quoting = error(quoted)
    redact(quoting, keys, prompt)
    said = str(quoting).replace("[prompt][prompt]", "[prompt]")
    assert said == f"Error code: 400 - {quoted if left is None else left}"
    if not keys:
        assert quoting.body == {"message": quoted}  # for the program that asked; nobody prints it unasked


def test_the_kind_of_failure_is_told_by_what_the_server_said():
    """A prompt about context lengths must not hide that this is one."""
    words = "maximum context length is 4096 tokens"
    failure = failure_from(
        error(f"This model's {words}."), name="server", prompt=[f"What does '{words}' mean?"]
    )
    assert failure.kind is FailureKind.CONTEXT_LENGTH
    assert "[prompt]" in str(failure.error)
