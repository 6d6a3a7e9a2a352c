"""What a request says about tools: the functions, and whether and how the answer must call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.endpoints.llamacpp.refusals import malformed, unserved

__all__ = ["Function", "Tools", "read_tools"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called.

    Attributes:
        name: letters, digits, _ and -.
        arguments: the schema of the function's arguments, a JSON object, as `accepted_schema` returns it.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    Attributes:
        offered: all tools, as the API writes them; the model is shown these.
        callable: the functions that may be called.
        required: whether the answer must be a call.
        several: whether the answer may hold more than one call.
    """

    offered: Sequence[Mapping[str, Any]] = field(repr=False)
    callable: Sequence[Function]
    required: bool = False
    several: bool = True


def read_tools(
    params: Mapping[str, Any],
    *,
    endpoint: str,
    check: Callable[[], None] | None = None,
    keeps: Callable[..., str] = accepted_schema,
) -> Tools | None:
    """Return the tools of a request that may be called; None where there are none.

    Args:
        params: the request's parameters.
        endpoint: the endpoint's name, for messages.
        check: see `accepted_schema`.
        keeps: returns a function's schema as the model's grammars take it.

    Raises:
        EndpointFailure: BAD_REQUEST for malformed tools, UNSERVED for tools that this endpoint cannot have called.
    """
    offered, choice = params.get("tools") or (), params.get("tool_choice") or "auto"
    if not offered:
        if choice not in ("auto", "none"):
            raise malformed("tool_choice needs tools: give tools, or leave tool_choice out.", "tool_choice")
        return None
    declared = [_declared(tool, endpoint) for tool in offered]
    names = [function["name"] for function in declared]
    if len(set(names)) != len(names):
        raise malformed("Two of the tools have the same name.", "tools")
    required, chosen, one = _choice(choice, names, endpoint)
    if choice == "none":
        return None
    functions = [
        _function(function, endpoint, check, keeps) for function in declared if function["name"] in chosen
    ]
    several = params.get("parallel_tool_calls") is not False and not one
    shown = [{"type": "function", "function": function} for function in declared]
    return Tools(offered=shown, callable=functions, required=required, several=several)


def _declared(tool: Any, endpoint: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if isinstance(kind, str) and kind != "function":
        raise unserved(
            f"Endpoint {endpoint!r} (llama.cpp) serves tools of type function, not {kind}.", "tools"
        )
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise malformed(
            'A tool must be {"type": "function", "function": {"name": ..., "parameters": ...}}, its name of '
            "up to 64 letters, digits, _ and -.",
            "tools",
        )
    # Templates expect all three fields.
    return {
        "name": name,
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _function(
    function: Mapping[str, Any],
    endpoint: str,
    check: Callable[[], None] | None,
    keeps: Callable[..., str],
) -> Function:
    name, parameters = function["name"], function["parameters"]
    if not isinstance(parameters, Mapping):
        raise malformed(f"The parameters of the function {name!r} are not a JSON schema.", "tools")
    try:
        arguments = keeps(parameters, only="object", check=check)
    except SchemaError as exc:
        raise unserved(
            f"Endpoint {endpoint!r} (llama.cpp) cannot keep to the parameters of the function {name!r}: {exc}.",
            "tools",
        ) from exc
    return Function(name, arguments)


def _choice(choice: Any, names: Sequence[str], endpoint: str) -> tuple[bool, Sequence[str], bool]:
    """Return whether a call is required, which functions may be called, and whether only one call may be made."""
    if choice in ("auto", "none"):
        return False, names, False
    if choice == "required":
        return True, names, False
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        wanted, required, one = [choice], True, True
    elif kind == "allowed_tools" and isinstance(choice.get("allowed_tools"), Mapping):
        allowed = choice["allowed_tools"]
        wanted, required, one = list(allowed.get("tools") or ()), allowed.get("mode") == "required", False
    elif kind == "custom":
        raise unserved(f"Endpoint {endpoint!r} (llama.cpp) does not serve custom tools.", "tool_choice")
    else:
        raise malformed(
            'tool_choice must be "auto", "none", "required", or {"type": "function", "function": {"name": ...}}.',
            "tool_choice",
        )
    chosen = [_named(one_of_them) for one_of_them in wanted]
    if not chosen or any(name not in names for name in chosen):
        raise malformed("tool_choice names a function that is not among the tools.", "tool_choice")
    return required, chosen, one


def _named(choice: Any) -> Any:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None
