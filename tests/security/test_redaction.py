"""What is taken out of a server's error, and what stays so that it can be understood."""

from __future__ import annotations

import dataclasses
import json

import httpx2
import openai
import pytest
from canaries import CALLERS_KEY, HEADER, KEY, PASSWORD, PROMPT, SYSTEM

from disco import AsyncDisco
from disco.client.chat.routed_request import Routed
from disco.client.request_options import NO_OPTIONS
from disco.endpoints.continuation.methods import Call
from disco.endpoints.openai_api.error_mapping import failure_from, redact
from disco.errors import FailureKind
from disco.request import Prefix, Request


def error(
    message: str, *, status: int = 400, request: httpx2.Request | None = None, **body
) -> openai.APIStatusError:
    request = request or httpx2.Request("POST", "http://server.test/v1/chat/completions")
    body = {"message": message, **body}
    made = openai.BadRequestError if status == 400 else openai.AuthenticationError
    return made(
        f"Error code: {status} - {message}", response=httpx2.Response(status, request=request), body=body
    )


SENT = httpx2.Request(
    "POST",
    f"http://user:{PASSWORD}@server.test/v1?api-key={CALLERS_KEY}",
    headers={"Authorization": f"Bearer {KEY}", "X-Api-Key": HEADER, "Accept": "application/json"},
)


@pytest.mark.parametrize("secret", [KEY, HEADER, PASSWORD, CALLERS_KEY])
def test_what_the_request_carried_is_found_in_it(secret):
    """However it came there: a function's key, Azure's header, one of the application's own, the URL."""
    quoting = error(f"Wrong: {secret}!", request=SENT, deep=[{"er": f"<{secret}>"}])
    redact(quoting)
    assert str(quoting) == "Error code: 400 - Wrong: [key]!"
    assert quoting.message == str(quoting)
    assert quoting.body == {"message": "Wrong: [key]!", "deep": [{"er": "<[key]>"}]}


def test_a_key_is_found_escaped_too():
    odd = 'sk-"quoted"\\key'
    quoting = error(f"Wrong: {json.dumps(odd)} or sk-%22quoted%22%5Ckey.")
    redact(quoting, (odd,))
    assert str(quoting) == 'Error code: 400 - Wrong: "[key]" or [key].'


def test_ordinary_words_stay():
    plain = error("Accept application/json, or choose another key.", request=SENT)
    said = str(plain)
    redact(plain, ("key", "", "another"), ["a short one", "key"])
    assert str(plain) == said


@pytest.mark.parametrize(
    ("quoted", "left"),
    [
        (f"Bad: {PROMPT}", "Bad: [prompt]"),
        (f"Bad: {PROMPT[:40]}...", "Bad: [prompt]..."),
        (f"Bad: ...{PROMPT[13:60]}... is bad", "Bad: ...[prompt]... is bad"),
        (f"{SYSTEM} and {PROMPT}", "[prompt] and [prompt]"),
        (f"Bad: {json.dumps(PROMPT)}", 'Bad: "[prompt]"'),
        ("Bad: temperature must be at most 2", "Bad: temperature must be at most 2"),
    ],
)
def test_quotations_of_the_prompt_leave_the_message(quoted, left):
    quoting = error(quoted)
    redact(quoting, (), {"messages": [{"content": [{"text": PROMPT}]}], "instructions": SYSTEM, "n": 1})
    assert str(quoting).replace("[prompt][prompt]", "[prompt]") == f"Error code: 400 - {left}"
    assert quoting.body == {"message": quoted}  # for the program that asked; nobody prints it unasked


def test_a_prompt_of_megabytes_is_searched():
    long = "the sea and the land, " * 200_000 + PROMPT
    quoting = error(f"Bad:\n{PROMPT}")
    redact(quoting, (), [long])
    assert str(quoting) == "Error code: 400 - Bad:\n[prompt]"


def test_the_kind_of_failure_is_told_by_what_the_server_said():
    """A prompt about context lengths must not hide that this is one."""
    words = "maximum context length is 4096 tokens"
    failure = failure_from(
        error(f"This model's {words}."), name="server", prompt=[f"What does '{words}' mean?"]
    )
    assert failure.kind is FailureKind.CONTEXT_LENGTH
    assert "[prompt]" in str(failure.error)


@pytest.mark.parametrize(
    "thing",
    [
        Request([{"role": "user", "content": PROMPT}], "m", {"user": PROMPT}, {"x": KEY}, {"key": KEY}),
        Prefix(PROMPT, withheld=PROMPT),
        Call("/chat/completions", {"messages": PROMPT}),
        Routed("/responses", {"input": PROMPT}, {"messages": PROMPT}, NO_OPTIONS),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_holds_a_prompt_does_not_show_it(thing):
    assert dataclasses.is_dataclass(thing)
    for written in (repr(thing), str(thing), f"{thing}"):
        assert "canary" not in written


def test_the_client_itself_shows_nothing():
    client = AsyncDisco(
        api_key=KEY, base_url=f"http://user:{PASSWORD}@server.test/v1", default_headers={"X": HEADER}
    )
    shown = f"{client!r} {client} {client.router!r} {client.server!r} {client.chat!r} {client.models!r}"
    for secret in (KEY, PASSWORD, HEADER):
        assert secret not in shown
