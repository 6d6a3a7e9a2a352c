"""Which request parameters the local model serves, and what they mean to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disco.errors import EndpointFailure, FailureKind, NoEndpointError
from disco.request import Prefix, Request

__all__ = ["Sampling", "plain_messages", "read_params", "refuse", "unserved_params"]

# Parameters that change how the answer is made; values that ask for nothing are served too.
_SERVED = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "n",
        "presence_penalty",
        "repeat_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
# Accounting, caching and speed of a hosted API: without meaning here, and without effect on the answer.
_WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
_NOTHING_ASKED: dict[str, tuple[Any, ...]] = {
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "tool_choice": ("none",),
    "tools": ([],),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The defaults are llama.cpp's own.

    Attributes:
        temperature: 0 picks the most probable token.
        grammar: GBNF the answer must follow, None for free text.
        top_logprobs: alternatives reported for each token; None when log probabilities are not asked for.
        max_tokens: length of the whole answer, None for as long as the context lasts.
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
    json_schema: str | None = field(default=None, repr=False)
    top_logprobs: int | None = None
    stop: tuple[str, ...] = field(default=(), repr=False)
    max_tokens: int | None = None


def refuse(message: str, param: str | None = None) -> EndpointFailure:
    """The failure for a request that this endpoint cannot serve as it is."""
    return EndpointFailure(FailureKind.BAD_REQUEST, NoEndpointError(message, param=param))


def unserved_params(params: Mapping[str, Any]) -> list[str]:
    """Names of the given parameters that the local model would have to ignore although they matter."""
    unserved = []
    for name, value in params.items():
        if value is None or name in _WITHOUT_EFFECT or value in _NOTHING_ASKED.get(name, ()):
            continue
        if name not in _SERVED or (name == "n" and value != 1):
            unserved.append(name)
    return sorted(unserved)


def read_params(request: Request, prefix: Prefix, *, endpoint: str) -> Sampling:
    """Translate a request's parameters.

    Raises:
        EndpointFailure: BAD_REQUEST for a parameter this endpoint does not serve, or a malformed one.
    """
    params = {name: value for name, value in request.params.items() if value is not None}
    if unserved := unserved_params(params):
        raise refuse(
            f"Endpoint {endpoint!r} (llama.cpp) does not serve {', '.join(unserved)}: "
            "leave it out, or send this request to a server.",
            unserved[0],
        )
    schema = _json_schema(params.get("response_format"), endpoint)
    if schema is not None and prefix:
        raise refuse(f"Endpoint {endpoint!r} cannot continue an answer with structured output.")
    try:
        given = _numbers(params)
        bias = tuple((int(token), float(value)) for token, value in params.get("logit_bias", {}).items())
        max_tokens = None if request.max_tokens is None else int(request.max_tokens)
    except (TypeError, ValueError, AttributeError) as exc:
        raise refuse(f"Endpoint {endpoint!r}: a sampling parameter is not a number.") from exc
    stop = params.get("stop", ())
    asked = bool(params.get("logprobs"))
    return Sampling(
        **given,
        logit_bias=bias,
        json_schema=schema,
        top_logprobs=int(params.get("top_logprobs", 0)) if asked else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        max_tokens=max_tokens,
    )


def _numbers(params: Mapping[str, Any]) -> dict[str, Any]:
    floats = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repeat_penalty")
    given: dict[str, Any] = {name: float(params[name]) for name in floats if name in params}
    given |= {name: int(params[name]) for name in ("top_k", "seed") if name in params}
    return given


def _json_schema(response_format: Any, endpoint: str) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return json.dumps({"type": "object"})
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if isinstance(schema, Mapping):
            return json.dumps(schema)
    raise refuse(f"Endpoint {endpoint!r} does not understand this response_format.", "response_format")


def plain_messages(messages: Sequence[Mapping[str, Any]], *, endpoint: str) -> list[dict[str, Any]]:
    """Messages as chat templates take them: a role and one string.

    Raises:
        EndpointFailure: BAD_REQUEST for tool messages and for content that is not text.
    """
    plain = []
    for message in messages:
        role = message.get("role")
        if role in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            raise refuse(f"Endpoint {endpoint!r} (llama.cpp) does not serve tools.", "messages")
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            parts = []
            for part in content:
                if not isinstance(part, Mapping) or part.get("type") != "text":
                    raise refuse(f"Endpoint {endpoint!r} (llama.cpp) reads text only.", "messages")
                parts.append(str(part.get("text", "")))
            content = "".join(parts)
        # Templates know the older name of this role.
        plain.append({"role": "system" if role == "developer" else role, "content": content or ""})
    return plain
