"""Which request parameters the local model serves, and how it applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.endpoints.llamacpp.refusals import malformed, unserved
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools, read_tools
from disco.request import Prefix, Request

__all__ = ["Sampling", "needs_compiling", "read_params", "refuse_unserved", "unserved_params"]

MOST_LOGPROBS = 20  # the API's own limit

# Parameters that change how the answer is made. Values that have no effect are served too.
_SERVED = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "repeat_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
# Accounting, caching and speed of a hosted API: without meaning or effect here.
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)
_NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The defaults are llama.cpp's own.

    Attributes:
        temperature: 0 picks the most probable token.
        schema: the schema that the answer must be valid under, as `accepted_schema` returns it; None for free text.
        tools: the functions that may be called; None where there are none.
        top_logprobs: alternatives reported for each token; None when log probabilities are not asked for.
        max_tokens: length limit of the whole answer; None for no limit but the context.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    schema: str | None = field(default=None, repr=False)
    tools: Tools | None = None
    top_logprobs: int | None = None
    stop: tuple[str, ...] = field(default=(), repr=False)
    max_tokens: int | None = None


def unserved_params(params: Mapping[str, Any]) -> list[str]:
    """Return the given parameters that the local model cannot serve and must not ignore, by name.

    Args:
        params: parameters of a request, by name.
    """
    unserved_names = []
    for name, value in params.items():
        if value is None or name in _WITHOUT_EFFECT or value in _NOTHING_ASKED.get(name, ()):
            continue
        if name not in _SERVED or (name == "n" and value != 1):
            unserved_names.append(name)
    return sorted(unserved_names)


def refuse_unserved(params: Mapping[str, Any], *, endpoint: str) -> None:
    """Raise a failure that names the parameters which a model on this machine cannot serve and must not ignore.

    Args:
        params: parameters of a request, by name.
        endpoint: the endpoint's name, for the message.

    Raises:
        EndpointFailure: UNSERVED: another endpoint may serve the request.
    """
    if names := unserved_params(params):
        raise unserved(
            f"Endpoint {endpoint!r} (llama.cpp) does not serve {', '.join(names)}: "
            "leave it out, or send this request to a server.",
            names[0],
        )


def needs_compiling(request: Request) -> bool:
    """Return whether the request has schemas to compile, which may take about a second."""
    return bool(request.params.get("tools")) or request.params.get("response_format") is not None


def read_params(
    request: Request, prefix: Prefix, *, endpoint: str, check: Callable[[], None] | None = None
) -> Sampling:
    """Translate a request's parameters.

    Args:
        request: its `params`.
        prefix: the answer so far.
        endpoint: the endpoint's name, for messages.
        check: called while schemas are read; an exception that it raises stops the reading and passes through.

    Raises:
        EndpointFailure: UNSERVED for a request that another endpoint may serve, BAD_REQUEST for a malformed one.
    """
    params = {name: value for name, value in request.params.items() if value is not None}
    refuse_unserved(params, endpoint=endpoint)
    schema = _schema(params.get("response_format"), endpoint, check)
    tools = read_tools(params, endpoint=endpoint, check=check)
    if prefix and (schema is not None or (tools is not None and tools.required)):
        raise unserved(f"Endpoint {endpoint!r} cannot continue an answer with structured output.")
    try:
        given = _numbers(params)
        bias = tuple((int(token), float(value)) for token, value in params.get("logit_bias", {}).items())
        max_tokens = None if request.max_tokens is None else int(request.max_tokens)
        top_logprobs = int(params.get("top_logprobs", 0))
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise malformed(f"Endpoint {endpoint!r}: a sampling parameter is not a number.") from exc
    if not 0 <= top_logprobs <= MOST_LOGPROBS:
        raise malformed(f"top_logprobs must lie between 0 and {MOST_LOGPROBS}.", "top_logprobs")
    stop = params.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(text, str) for text in stops):
        raise malformed("stop must be a text or a list of texts.", "stop")
    return Sampling(
        **given,
        logit_bias=bias,
        schema=schema,
        tools=tools,
        top_logprobs=top_logprobs if params.get("logprobs") else None,
        stop=tuple(stops),
        max_tokens=max_tokens,
    )


def _numbers(params: Mapping[str, Any]) -> dict[str, Any]:
    floats = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repeat_penalty")
    given: dict[str, Any] = {name: float(params[name]) for name in floats if name in params}
    given |= {name: int(params[name]) for name in ("top_k", "seed") if name in params}
    return given


def _schema(response_format: Any, endpoint: str, check: Callable[[], None] | None) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return accepted_schema({"type": "object"})
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if isinstance(schema, Mapping):
            try:
                return accepted_schema(schema, check=check)
            except SchemaError as exc:
                raise unserved(
                    f"Endpoint {endpoint!r} (llama.cpp) cannot keep to this JSON schema: {exc}.",
                    "response_format",
                ) from exc
    raise malformed(f"Endpoint {endpoint!r} does not understand this response_format.", "response_format")
