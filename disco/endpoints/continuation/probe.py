"""The probe: one small request for each method, to find out whether a server continues a half-written answer.

A status of 200 proves nothing: many servers accept the extra fields, ignore them, and start a new answer. So each
method is tried with a sequence whose next characters are certain and with which no new answer begins: after
"..., 10, 11" only a continuation starts with a comma.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    continue_call,
    rendered_call,
)
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.errors import ModelFileError
from disco.events import Usage
from disco.request import Prefix, Request

__all__ = [
    "MOST_PROMPT_TOKENS",
    "MOST_TOKENS",
    "Outcome",
    "ProbeMeter",
    "ProbeVerdict",
    "Reader",
    "judge",
    "probe",
    "rendered_head",
]

Reader = Callable[[str, httpx2.Response], Awaitable[tuple[str, Usage]]]
"""Given the path of a request and its response: the text, and what was used as far as it shows."""

Outcome = Literal["continues", "echoes", "restarts", "refuses", "unreachable"]

_QUESTION = "Count from 1 to 30 in digits. Write nothing but the numbers, separated by commas."
# The unusual opening keeps a new answer ("1, 2, 3") from looking like an echo.
_SENT = "Tally sheet: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11"
_NEXT = (", 12", ",12")
_TOKENS = 8
_PROMPT_TOKENS = 48  # of one request, about; where the server does not report them
# What a whole probe uses at most. No tokenizer makes more tokens of a text than it has bytes.
MOST_TOKENS = len(LADDER) * _TOKENS
MOST_PROMPT_TOKENS = len(LADDER) * (len(_QUESTION) + len(_SENT) + 160)


@dataclass(slots=True)
class ProbeMeter:
    """What the requests of a probe have used; all fields are mutable.

    Attributes:
        usage: as the servers reported it, else estimated. A request counts once it is sent, unless it is refused.
        waited: whether an attempt waited for a probe, its own or another one's.
    """

    usage: Usage = Usage()  # noqa: RUF009 - frozen
    waited: bool = False

    def add(self, prompt_tokens: int, completion_tokens: int = 0) -> None:
        """Add tokens; negative numbers correct an estimate."""
        was = self.usage
        self.usage = Usage(was.prompt_tokens + prompt_tokens, was.completion_tokens + completion_tokens)


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """What a probe found out about one model of one server.

    Attributes:
        method: the first method on the ladder that works; "none" when none does.
        outcomes: what the server did for each method that was tried.
        server_renders: "completions" works with llama-server's `/apply-template`.
        vocabulary: fingerprint of the vocabulary that the server has proved to have, and whose ids it accepts; None
            where it has proved none.
    """

    method: Method = "none"
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    server_renders: bool = False
    vocabulary: str | None = None

    @property
    def conclusive(self) -> bool:
        """False when the server could not be reached; then the probe should be repeated."""
        return "unreachable" not in self.outcomes.values()

    def applied_to(self, configured: Continuation) -> Continuation:
        """Return `configured` ("auto") with this verdict's method in place."""
        if self.method == "none":
            return Continuation("instructed") if configured.instructed else Continuation()
        template = None
        if self.method == "completions":
            template = APPLY_TEMPLATE if self.server_renders else configured.template
        return replace(
            configured,
            method=self.method,
            template=template,
            echoes=self.outcomes.get(self.method) == "echoes",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain JSON data."""
        return {
            "method": self.method,
            "outcomes": dict(self.outcomes),
            "server_renders": self.server_renders,
            "vocabulary": self.vocabulary,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ProbeVerdict:
        """Make a verdict from the data of `to_dict`."""
        renders = bool(data.get("server_renders", False))
        return cls(data["method"], dict(data["outcomes"]), renders, data.get("vocabulary"))


def judge(text: str) -> Outcome:
    """Return what an endpoint did that was given the probe's beginning and answered with `text`."""
    if text.startswith(_NEXT):
        return "continues"
    # An echo costs a server no tokens. A small model may imitate the text before its turn. If it repeats the beginning
    # word by word in a new turn, its eight tokens end before the beginning does.
    if text.startswith(_SENT) and text[len(_SENT) :].startswith(_NEXT):
        return "echoes"
    return "restarts"


async def probe(
    client: openai.AsyncOpenAI,
    model: str,
    read: Reader,
    *,
    methods: Sequence[Method] = LADDER,
    continuation: Continuation = Continuation("auto"),  # noqa: B008 - frozen
    limit_s: float = 30.0,
    meter: ProbeMeter | None = None,
) -> ProbeVerdict:
    """Try `methods` in order until one continues. Sends at most one request of 8 tokens for each.

    Args:
        client: the server's.
        model: the model to probe.
        read: reads its answers as any others are read; raises `CannotContinueError` where that cannot be.
        methods: from `LADDER`, in the order to try.
        continuation: gives the template for "completions"; without a template, llama-server renders the prompt.
        limit_s: time limit of each request, seconds.
        meter: counts what the requests use.
    """
    meter = ProbeMeter() if meter is None else meter
    outcomes: dict[str, Outcome] = {}
    for method in methods:
        template = continuation.template if method == "completions" else None
        if method == "completions" and template is None:
            template = APPLY_TEMPLATE
        tried = replace(continuation, method=method, template=template)
        outcome: Outcome = "unreachable"
        with anyio.move_on_after(limit_s):
            outcome = await _try(client, model, read, tried, meter)
        outcomes[method] = outcome
        if outcome in ("continues", "echoes"):
            return ProbeVerdict(method, outcomes, server_renders=tried.server_renders)
        if outcome == "unreachable":
            break
    return ProbeVerdict("none", outcomes)


async def _try(
    client: openai.AsyncOpenAI, model: str, read: Reader, continuation: Continuation, meter: ProbeMeter
) -> Outcome:
    request = Request(
        messages=[{"role": "user", "content": _QUESTION}],
        model=model,
        params={"max_tokens": _TOKENS, "temperature": 0},
    )
    # The prefix counts as no tokens: the limit is the probe's own.
    prefix = Prefix(_SENT)
    try:
        if continuation.method == "completions":
            head = await rendered_head(client, request) if continuation.server_renders else None
            call = await rendered_call(request, prefix, continuation, head=head)
        else:
            call = continue_call(request, prefix, continuation)
        text, used = await read(call.path, await _posted(client, call, meter))
    except (CannotContinueError, ModelFileError):
        return "refuses"
    except openai.APIStatusError as error:
        # A server that is busy or broken now may still be able to continue; likewise one that rejects the key.
        temporary = error.status_code >= 500 or error.status_code in (401, 403, 408, 409, 425, 429)
        # A server that lacks the path (501, 405, 404) or rejects the fields (400, 422) refuses.
        return "unreachable" if temporary and error.status_code != 501 else "refuses"
    except (openai.APIConnectionError, httpx2.HTTPError):
        return "unreachable"
    except (openai.APIError, ValueError):
        return "refuses"
    meter.add(used.prompt_tokens - _PROMPT_TOKENS if used.prompt_tokens else 0, used.completion_tokens)
    return judge(text)


async def _posted(client: openai.AsyncOpenAI, call: Call, meter: ProbeMeter) -> httpx2.Response:
    """Return the answer to a call."""
    # The next request follows at once. It must not be sent on a connection that the server is just closing, as
    # llama-server does after each streamed answer.
    options: Any = {"max_retries": 0, "headers": {"Connection": "close"}}
    meter.add(_PROMPT_TOKENS)  # stays where the probe is cancelled before the server's answer
    try:
        return await client.post(call.path, body=call.body, cast_to=httpx2.Response, options=options)
    except openai.OpenAIError:
        meter.add(-_PROMPT_TOKENS)  # no server charges for an error
        raise


async def rendered_head(client: openai.AsyncOpenAI, request: Request) -> str:
    """Return the prompt up to the assistant's turn, rendered by llama-server's `/apply-template`.

    Raises:
        CannotContinueError: the server's answer holds no prompt.
        openai.APIError: the server could not be reached, or has no such path.
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
