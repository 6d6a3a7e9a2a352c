"""Finding out, by asking once, whether a server continues a half-written answer.

A status of 200 proves nothing: many servers take the extra fields, ignore them, and start a new answer. So
each method is tried with a sequence whose next characters are certain and which no new answer begins with:
after "..., 10, 11" a continuation starts with a comma, and nothing else does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import anyio
import httpx2
import openai

from disco.endpoints.continuation.methods import (
    APPLY_TEMPLATE,
    LADDER,
    Call,
    Continuation,
    Method,
    completions_call,
    continue_call,
)
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.errors import ModelFileError
from disco.request import Prefix, Request

__all__ = ["Outcome", "ProbeVerdict", "judge", "probe", "rendered_head"]

Outcome = Literal["continues", "echoes", "restarts", "refuses", "unreachable"]

_QUESTION = "Count from 1 to 30 in digits. Write nothing but the numbers, separated by commas."
# The unlikely opening keeps an answer that starts anew ("1, 2, 3") from looking like an echo.
_SENT = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
_NEXT = (", 12", ",12")
_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """What a probe found out about one model of one server.

    Attributes:
        method: the first method on the ladder that works; "none" when none does.
        outcomes: what each method that was tried did.
        server_renders: "completions" works with llama-server's `/apply-template`.
        vocabulary: fingerprint of the vocabulary that it has proved to have, and whose ids it takes; None where it
            has not.
    """

    method: Method = "none"
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    server_renders: bool = False
    vocabulary: str | None = None

    @property
    def conclusive(self) -> bool:
        """False when the server could not be asked; then it should be asked again."""
        return "unreachable" not in self.outcomes.values()

    def applied_to(self, configured: Continuation) -> Continuation:
        """`configured` ("auto") with this verdict's method in place."""
        if self.method == "none":
            return Continuation()
        template = None
        if self.method == "completions":
            template = APPLY_TEMPLATE if self.server_renders else configured.template
        return replace(
            configured,
            method=self.method,
            template=template,
            echoes=self.outcomes.get(self.method) == "echoes",  # known from here on
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data."""
        return {
            "method": self.method,
            "outcomes": dict(self.outcomes),
            "server_renders": self.server_renders,
            "vocabulary": self.vocabulary,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbeVerdict:
        """The inverse of `to_dict`."""
        renders = bool(data.get("server_renders", False))
        return cls(data["method"], dict(data["outcomes"]), renders, data.get("vocabulary"))


def judge(text: str) -> Outcome:
    """What an endpoint did that was given the probe's beginning and answered with `text`."""
    if text.startswith(_NEXT):
        return "continues"
    # An echo costs a server no tokens. Small models imitate what stands before them, and one that repeats
    # the beginning word by word in a new turn runs out of its eight tokens before it gets to the end.
    if text.startswith(_SENT) and text[len(_SENT) :].startswith(_NEXT):
        return "echoes"
    return "restarts"


async def probe(
    client: openai.AsyncOpenAI,
    model: str,
    *,
    methods: Sequence[Method] = LADDER,
    continuation: Continuation = Continuation("auto"),  # noqa: B008 - frozen
    limit_s: float = 30.0,
) -> ProbeVerdict:
    """Try `methods` in order until one continues. Sends at most one request of 8 tokens for each.

    Args:
        client: the server's.
        model: which of its models.
        methods: of `LADDER`, in the order to try.
        continuation: gives the template for "completions"; without one, llama-server is asked to render.
        limit_s: seconds each request may take.
    """
    outcomes: dict[str, Outcome] = {}
    for method in methods:
        template = continuation.template if method == "completions" else None
        if method == "completions" and template is None:
            template = APPLY_TEMPLATE
        tried = replace(continuation, method=method, template=template)
        outcome: Outcome = "unreachable"
        with anyio.move_on_after(limit_s):
            outcome = await _try(client, model, tried)
        outcomes[method] = outcome
        if outcome in ("continues", "echoes"):
            return ProbeVerdict(method, outcomes, server_renders=tried.server_renders)
        if outcome == "unreachable":
            break
    return ProbeVerdict("none", outcomes)


async def _try(client: openai.AsyncOpenAI, model: str, continuation: Continuation) -> Outcome:
    request = Request(
        messages=[{"role": "user", "content": _QUESTION}],
        model=model,
        params={"max_tokens": _TOKENS, "temperature": 0},
    )
    # Counted as no tokens at all: the limit is the probe's own.
    prefix = Prefix(_SENT)
    try:
        if continuation.method == "completions":
            head = await rendered_head(client, request) if continuation.server_renders else None
            call = completions_call(request, prefix, continuation, head=head)
        else:
            call = continue_call(request, prefix, continuation)
        return judge(await _text(client, call))
    except (CannotContinueError, ModelFileError):
        return "refuses"
    except openai.APIStatusError as error:
        # Busy or broken now says nothing about what it can do; a bad key likewise.
        temporary = error.status_code >= 500 or error.status_code in (401, 403, 408, 409, 425, 429)
        # A server without the path (501, 405, 404) or that rejects the fields (400, 422) refuses.
        return "unreachable" if temporary and error.status_code != 501 else "refuses"
    except (openai.APIConnectionError, httpx2.HTTPError):
        return "unreachable"
    except (openai.APIError, ValueError, AttributeError):
        return "refuses"


async def _text(client: openai.AsyncOpenAI, call: Call) -> str:
    """The text a call is answered with; the first choice's."""
    options: Any = {"max_retries": 0}
    response = await client.post(call.path, body=call.body, cast_to=httpx2.Response, options=options)
    pieces: list[str] = []
    for line in response.text.split("\n"):
        data = line.removeprefix("data:").strip()
        if data == line.strip() or data == "[DONE]":
            continue
        for choice in json.loads(data).get("choices") or []:
            text = (
                choice.get("text")
                if call.path == "/completions"
                else (choice.get("delta") or {}).get("content")
            )
            pieces.append(text or "")
    return "".join(pieces)


async def rendered_head(client: openai.AsyncOpenAI, request: Request) -> str:
    """The prompt up to the assistant's turn, rendered by llama-server's `/apply-template`.

    Raises:
        CannotContinueError: the server answered with something else.
        openai.APIError: it could not be asked, or has no such path.
    """
    url = str(client.base_url).rstrip("/").removesuffix("/v1") + "/apply-template"
    body: dict[str, Any] = {"messages": list(request.messages)}
    body |= {
        name: request.params[name] for name in ("tools", "chat_template_kwargs") if name in request.params
    }
    options: Any = {"max_retries": 0}
    answer = await client.post(url, body=body, cast_to=object, options=options)
    prompt = answer.get("prompt") if isinstance(answer, Mapping) else None
    if not isinstance(prompt, str) or not prompt:
        raise CannotContinueError("the server's /apply-template gave no prompt")
    return prompt
