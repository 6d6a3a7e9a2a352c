"""The methods by which a server continues a half-written answer, and the request that each method sends.

No method is guessed: it is configured, or a probe has proved it (`probe.py`). Where neither is so, the model may be
told to repeat the last words and go on (`instruction.py`), which proves each seam by itself; else the server does not
continue.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from anyio import CapacityLimiter, to_thread

from disco.endpoints.continuation.rendering import CannotContinueError, marker_in, render_prefix
from disco.endpoints.gguf_header import read_chat_template
from disco.errors import ConfigurationError, nearest
from disco.request import Prefix, Request

__all__ = [
    "LADDER",
    "RESPONSES",
    "Call",
    "Continuation",
    "Method",
    "chat_body",
    "chat_call",
    "completions_body",
    "completions_call",
    "continue_call",
    "rendered_call",
    "responses_call",
    "used_up",
]

Method = Literal["none", "flags", "completions", "prefix", "trailing", "instructed", "auto"]

LADDER: tuple[Method, ...] = ("flags", "completions", "prefix", "trailing")
"""The methods a probe tries, most dependable first."""

APPLY_TEMPLATE = "apply-template"
RESPONSES = "/responses"


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a server is made to continue an answer.

    Attributes:
        method: "flags": `continue_final_message` with `add_generation_prompt: false` (vLLM, SGLang,
            llama-server); "completions": the prompt, rendered here, sent to `/completions`; "prefix": last
            message with `"prefix": true` (DeepSeek, Mistral); "trailing": a trailing assistant message;
            "instructed": the model is told to repeat the last words and go on, in failover only; "auto": determine
            the method by a probe, and else "instructed"; "none": never continue.
        template: for "completions" (and "auto"): the model's chat template as Jinja source, the path of a
            GGUF file that holds it (ends in `.gguf`), or "apply-template" to let llama-server render.
        bos_token, eos_token: the template's variables. Leave `bos_token` empty where the server adds it to
            every prompt itself, as nearly all servers do.
        echoes: whether the server repeats the sent text first (Mistral does). None: as the method's specification
            says, see `known_to_echo`; "auto" determines it.
        instructed: whether "auto" may use "instructed" where no other method works.
    """

    method: Method = "none"
    template: str | None = field(default=None, repr=False)
    bos_token: str = ""
    eos_token: str = ""
    echoes: bool | None = None
    instructed: bool = True

    def __post_init__(self) -> None:
        methods = ("none", *LADDER, "instructed", "auto")
        if self.method not in methods:
            raise ConfigurationError(
                f"Unknown continuation method {self.method!r}. {nearest(str(self.method), methods)}"
            )
        if self.method == "completions" and not self.template:
            raise ConfigurationError(
                'Continuation method "completions" needs `template`: Jinja source, the path of a .gguf file, '
                'or "apply-template".'
            )
        if self.method == "instructed" and not self.instructed:
            raise ConfigurationError(
                'Continuation method "instructed" contradicts instructed=False. Leave one of them out.'
            )
        if self.template and self.method not in ("completions", "auto"):
            raise ConfigurationError(
                f"Continuation method {self.method!r} uses no `template`. Leave it out, or choose "
                '"completions" or "auto".'
            )

    @property
    def known_to_echo(self) -> bool | None:
        """Whether the reply begins with the sent text; None when that is not known.

        "flags" and "completions" do not echo by their specification. For "prefix" and "trailing" it depends on
        the server, so only `echoes` or a probe can say.
        """
        if self.echoes is None and self.method in ("flags", "completions"):
            return False
        return self.echoes

    @property
    def server_renders(self) -> bool:
        """True when llama-server's `/apply-template` renders the prompt."""
        return self.template == APPLY_TEMPLATE

    def template_source(self) -> str | None:
        """Return the template as Jinja source, read from the GGUF file where one was given.

        Raises:
            ModelFileError: the file cannot be read or holds no template.
        """
        if self.template is None or self.server_renders:
            return None
        file = self.template_file
        return self.template if file is None else read_chat_template(file)

    @property
    def template_file(self) -> str | None:
        """Return the GGUF file that was given as template; None where the template is no file."""
        given = self.template or ""
        one_line = "\n" not in given and "{" not in given
        return given if one_line and given.lower().endswith(".gguf") else None


@dataclass(frozen=True, slots=True)
class Call:
    """One POST to the server.

    Attributes:
        path: relative to the client's base_url.
        body: JSON object.
        echoes: whether the reply begins with the sent text; None when that is not known.
        method: how the call continues an answer; None where it begins one.
        repeats_from: the position in the prefix, in characters, from which the reply repeats it, where it was told to.
        new_tokens: how many tokens of the reply may be new, where its own limit allows more; None: any number.
        otherwise: the call for a server that has no such path.
    """

    path: str
    body: dict[str, Any] = field(repr=False)
    echoes: bool | None = False
    method: str | None = None
    repeats_from: int | None = None
    new_tokens: int | None = None
    otherwise: Call | None = None


def chat_call(request: Request) -> Call:
    """Return the call that sends the request unchanged, streamed."""
    return Call("/chat/completions", chat_body(request, Prefix(), request.messages))


def responses_call(request: Request, body: Mapping[str, Any]) -> Call:
    """Return the call that sends the body of a `/responses` request as it is, streamed."""
    asked = {**body, "model": request.model, "stream": True}
    return Call(RESPONSES, asked, otherwise=chat_call(request))


def chat_body(
    request: Request, prefix: Prefix, messages: Sequence[Mapping[str, Any]], *, again_tokens: int = 0
) -> dict[str, Any]:
    """Return the body of the chat request with these messages, streamed.

    Args:
        request: the chat request.
        prefix: the answer so far, whose length the limit is lowered by.
        messages: replace those of the request.
        again_tokens: how many tokens of the answer so far are written again, besides withheld ones.
    """
    body = {"messages": list(messages), **_given(request)}
    if prefix:
        _lower_limit(body, request, prefix, again_tokens)
    return _streamed(body, request)


def used_up(request: Request, prefix: Prefix) -> bool:
    """Return True when the prefix already reaches the answer's length limit."""
    limit = request.max_tokens
    return bool(prefix) and limit is not None and limit - prefix.tokens <= 0


def continue_call(request: Request, prefix: Prefix, continuation: Continuation) -> Call:
    """Return the chat request that continues `prefix`, for every method but "completions".

    When all of the prefix is withheld there is no text to send. The request then goes out unchanged, and the target's
    answer must begin with the withheld text. An empty prefix is never sent.

    Raises:
        CannotContinueError: the method sends no chat request ("none", "auto" before its probe).
    """
    messages = list(request.messages)
    if not prefix.sent:
        return Call("/chat/completions", chat_body(request, prefix, messages))
    extra: dict[str, Any] = {}
    message: dict[str, Any] = {"role": "assistant", "content": prefix.sent}
    echoes = continuation.known_to_echo
    if continuation.method == "flags":
        if continuation.echoes is None and request.params.get(
            "echo"
        ):  # vLLM's parameter, if the caller set it
            echoes = True
        extra = {"continue_final_message": True, "add_generation_prompt": False}
    elif continuation.method == "prefix":
        message["prefix"] = True
    elif continuation.method != "trailing":
        raise CannotContinueError("the endpoint has no known way to continue an answer")
    body = {**chat_body(request, prefix, [*messages, message]), **extra}
    return Call("/chat/completions", body, echoes=echoes, method=continuation.method)


# Parameters of a chat request that have the same meaning for `/completions`; the second half are extensions of
# OpenAI's API that local servers accept.
_COMPLETIONS_PARAMS = (
    *("temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "user"),
    *("top_k", "min_p", "typical_p", "repeat_penalty", "repetition_penalty", "mirostat_mode", "mirostat_tau"),
    *("mirostat_eta", "min_tokens", "ignore_eos", "priority", "cache_prompt", "id_slot"),
)
_MAX_STOPS = 4  # OpenAI's limit, which several servers share


async def rendered_call(
    request: Request, prefix: Prefix, continuation: Continuation, *, head: str | None = None
) -> Call:
    """Do the same as `completions_call`, and render in a thread, which ends with its caller: it may take seconds."""
    if head is not None:
        return completions_call(request, prefix, continuation, head=head)
    is_left = threading.Event()

    def check() -> None:
        if is_left.is_set():
            raise CannotContinueError("nobody waits for it")

    make = partial(completions_call, request, prefix, continuation, check=check)
    try:
        # A limiter of its own: a reader waits for this call, and anyio's shared threads may all be busy.
        return await to_thread.run_sync(make, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        is_left.set()


def completions_call(
    request: Request,
    prefix: Prefix,
    continuation: Continuation,
    *,
    head: str | None = None,
    check: Callable[[], None] = lambda: None,
) -> Call:
    """Return the `/completions` request that continues `prefix.sent` (not empty).

    Args:
        request: the chat request.
        prefix: the text to continue.
        continuation: its template renders the prompt, unless the server did.
        head: the prompt up to the assistant's turn, where the server rendered it.
        check: see `render_prefix`.

    Raises:
        CannotContinueError: see `render_prefix`.
        ModelFileError: the template's GGUF file cannot be read.
    """
    stops = list(request.stops)
    if head is None:
        template = continuation.template_source()
        if template is None:
            raise CannotContinueError("no chat template is known")
        rendered = render_prefix(
            template,
            request.messages,
            prefix.sent,
            bos_token=continuation.bos_token,
            eos_token=continuation.eos_token,
            tools=request.params.get("tools") or None,
            extra=_template_variables(request),
            check=check,
        )
        prompt, end_of_turn = rendered.text, rendered.end_of_turn
        # A server stops at its own end token; a server whose model ends a turn with another token prints that token.
        if end_of_turn and end_of_turn not in stops and len(stops) < _MAX_STOPS:
            stops.append(end_of_turn)
    else:
        found = marker_in(head, prefix.sent)
        if found is not None:
            raise CannotContinueError(
                f"the answer contains {found!r}, which the model would read as control token"
            )
        prompt = head + prefix.sent
    if not prompt.endswith(prefix.sent):
        raise CannotContinueError("the rendered prompt does not end with the answer so far")
    return completions_body(request, prefix, prompt, stops=stops, echoes=continuation.known_to_echo)


def completions_body(
    request: Request,
    prefix: Prefix,
    prompt: str | list[int | str],
    *,
    stops: Sequence[str] | None = None,
    echoes: bool | None = False,
) -> Call:
    """Return the `/completions` request with a prompt that ends with the answer so far.

    Args:
        request: the chat request.
        prefix: the text that the prompt ends with.
        prompt: text, or another form of prompt that the server accepts.
        stops: the texts to stop at; by default the request's.
        echoes: see `Call`.
    """
    body: dict[str, Any] = {
        name: request.params[name] for name in _COMPLETIONS_PARAMS if name in request.params
    }
    body |= {"model": request.model, "prompt": prompt, "max_tokens": request.max_tokens}
    # An explicit null asks for no limit; without the field, most servers stop after 16 tokens.
    _lower_limit(body, request, prefix)
    if stops:
        body["stop"] = list(stops)
    return Call("/completions", _streamed(body, request), echoes=echoes, method="completions")


def _given(request: Request) -> dict[str, Any]:
    return {"model": request.model, **request.params}


def _streamed(body: dict[str, Any], request: Request) -> dict[str, Any]:
    options = request.params.get("stream_options")
    given = dict(options) if isinstance(options, Mapping) else {}
    return {**body, "stream": True, "stream_options": {**given, "include_usage": True}}


def _lower_limit(body: dict[str, Any], request: Request, prefix: Prefix, again_tokens: int = 0) -> None:
    """Subtract the tokens already written from the length limit, and add those that must be written again.

    The exact number of tokens in the withheld text is unknown; the estimate is four characters to one, rounded up.
    """
    limit = request.max_tokens
    if limit is None:
        return
    left = max(1, limit - prefix.tokens) + math.ceil(len(prefix.withheld) / 4) + again_tokens
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None:
            body[name] = left


def _template_variables(request: Request) -> Mapping[str, Any]:
    extra = request.params.get("chat_template_kwargs")
    return extra if isinstance(extra, Mapping) else {}
