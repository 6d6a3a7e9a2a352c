"""What servers on a desk take from a request and leave out without a word, and what disco does about it.

Ollama and LM Studio read the fields that they know, and drop all others: a request for three answers gets one, with a
status of 200. So a demand that such a server would drop is not sent to it: another endpoint may serve it, and otherwise
the error names the parameter. A hint that it would drop, or that its model refuses, is left out. Servers that refuse
what they do not serve (llama-server, vLLM, an unknown one) get every request as it is; but llama-server shows no tools
to a model whose chat template has no place for them.

Sources: docs.ollama.com/api/openai-compatibility and ollama's `openai/openai.go`; lmstudio.ai/docs/developer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import openai

from disco.endpoints.local_server.server_info import About, Kind
from disco.errors import EndpointFailure, FailureKind, NoEndpointError

__all__ = ["features_of_server", "lacks_of_server", "sees_none", "without_what_is_dropped"]

# Not in here, and dropped: n, logit_bias (Ollama), logprobs (LM Studio), audio, any parameter of other vendors.
_SERVED: Final[Mapping[Kind, frozenset[str]]] = {
    "ollama": frozenset({"json_schema", "logprobs"}),
    "lmstudio": frozenset({"json_schema", "logit_bias"}),
}
# Features that depend on the model, by the words for them in `About.able`.
_OF_MODEL: Final = {"tools": "tools", "vision": "images"}
# An answer without one of these is as good an answer.
_HINTS: Final = frozenset({"chat_template_kwargs", "keep_alive", "think", "verbosity"})
_THINKING: Final = ("reasoning", "reasoning_effort")
# Fields of llama.cpp's and vLLM's servers for what `response_format` asks for, which alone these servers know.
_STRUCTURES: Final = (
    *("grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
    *("json_schema", "structured_outputs"),
)
_OF_ANY: Final = "its server says that this model sees none; choose a model that does"
_NO_PROJECTOR: Final = (
    "this llama-server has no projector for images; start it with --mmproj and that of its model"
)
# What servers say of an image that their model cannot see: llama-server, Ollama, LM Studio, vLLM. Some with status 500.
_SEES_NONE: Final = re.compile(
    r"image input is not supported|missing data required for image input|not a multimodal model|at most 0 image"
    r"|(?:does not|doesn't|cannot|can't|not) (?:support|accept|process|see|handle) (?:image|vision)"
    r"|vision (?:is )?not supported|images? (?:inputs? )?(?:is|are) not supported",
    re.IGNORECASE,
)
_NAMES: Final[Mapping[Kind, str]] = {"ollama": "Ollama", "lmstudio": "LM Studio"}


def features_of_server(about: About) -> frozenset[str] | None:
    """Return the features of a request that the server serves with this model; None: it decides itself."""
    served = _SERVED.get(about.kind)
    if served is None:
        return None
    words = _OF_MODEL if about.able is None else about.able & _OF_MODEL.keys()
    return served | {_OF_MODEL[word] for word in words} | _HINTS | {"reasoning"}


def lacks_of_server(about: About) -> Mapping[str, str]:
    """Return why the server does not serve a feature, by its name; see `Capabilities.lacks`."""
    served, name = features_of_server(about), _NAMES.get(about.kind)
    if about.kind == "llama-server" and about.able is not None and "vision" not in about.able:
        return {"images": _NO_PROJECTOR}
    if served is None or name is None:
        return {}
    dropped = f"{name} drops it without a word; llama-server and vLLM serve it"
    model = f"{name} says that this model cannot; choose another one"
    reasons = {"n": dropped, "logit_bias": dropped, "logprobs": dropped, "tools": model, "images": model}
    return {feature: why for feature, why in reasons.items() if feature not in served}


def without_what_is_dropped(params: dict[str, Any], about: About, *, endpoint: str) -> dict[str, Any]:
    """Return the parameters for the server: without hints that it drops, and with nothing that it would ignore.

    Args:
        params: the request's.
        about: the server.
        endpoint: the endpoint's name, for messages.

    Raises:
        EndpointFailure: UNSERVED, a demand that the server would ignore; the message names it.
    """
    name = _NAMES.get(about.kind)
    shows_tools = about.able is None or "tools" in about.able
    if about.kind == "llama-server" and params.get("tools") and not shows_tools:
        if params.get("tool_choice") != "none":
            remedy = "use a model whose chat template has a place for tools"
            raise _unserved(endpoint, "llama-server", "tools", remedy)
        return {key: value for key, value in params.items() if key not in ("tools", "tool_choice")}
    if name is None:
        return params
    for structure in _STRUCTURES:
        if params.get(structure):
            raise _unserved(endpoint, name, structure, 'use response_format={"type": "json_schema", ...}')
    left = {key: value for key, value in params.items() if key not in _HINTS}
    if about.able is not None and "thinking" not in about.able:
        for key in _THINKING:  # Ollama refuses it for a model that does not think
            left.pop(key, None)
    choice = left.get("tool_choice")
    if about.kind == "ollama":
        left.pop("tool_choice", None)
        if choice == "none":
            left.pop("tools", None)
        elif choice not in (None, "auto"):
            raise _unserved(endpoint, name, "tool_choice", 'use "auto"')
    elif isinstance(choice, Mapping):
        raise _unserved(endpoint, name, "tool_choice", 'use "auto", "required" or "none"')
    return left


def sees_none(error: Exception, why: str | None, *, endpoint: str) -> EndpointFailure | None:
    """Return the failure of a request with images, where the server's error says that the model sees none.

    Args:
        error: what the server answered.
        why: what is known of the reason, with the remedy (`Capabilities.lacks`).
        endpoint: the endpoint's name, for the message.
    """
    if not isinstance(error, openai.APIStatusError) or _SEES_NONE.search(error.message) is None:
        return None
    message = (
        f"Endpoint {endpoint!r} cannot serve images: {why or _OF_ANY}. Or leave images out, or configure "
        "an endpoint that sees them."
    )
    failure = EndpointFailure(FailureKind.UNSERVED, NoEndpointError(message, param="messages"))
    failure.__cause__ = error
    return failure


def _unserved(endpoint: str, server: str, param: str, remedy: str) -> EndpointFailure:
    message = (
        f"Endpoint {endpoint!r} cannot serve {param}: {server} ignores this without a word. Instead, {remedy}, "
        "or configure an endpoint that serves it."
    )
    return EndpointFailure(FailureKind.UNSERVED, NoEndpointError(message, param=param))
