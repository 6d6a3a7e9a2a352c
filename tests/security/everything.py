"""Every method of the SDK's client, called once with something in every argument it insists on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from openai import AsyncOpenAI, OpenAI

HELLO = [{"role": "user", "content": "hello"}]
_ARGUMENTS: dict[str, Any] = {"messages": HELLO, "tools": [], "files": [b"x"], "size": "1024x1024"}
_ARGUMENTS |= {"bytes": 1, "file": b"x", "data": b"x", "image": b"x", "request_counts": 1}
# They talk to nobody: they check what came in, or hand out an object.
_SILENT = {"unwrap", "verify_signature", "copy", "with_options", "close", "is_closed"}


def methods(
    owner: AsyncOpenAI | OpenAI | Any, path: str = "client"
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, a call with every required argument) for each public method of each resource."""
    for name in sorted(n for n in dir(type(owner)) if not n.startswith(("_", "with_"))):
        attribute = inspect.getattr_static(type(owner), name)
        if inspect.isfunction(attribute):
            if path != "client" and name not in _SILENT:
                yield f"{path}.{name}", _call(getattr(owner, name))
        elif hasattr(attribute, "func"):  # a cached property: a resource
            resource = getattr(owner, name)
            if type(resource).__module__.startswith(("openai.resources", "disco")):
                yield from methods(resource, f"{path}.{name}")


def _call(method: Callable[..., Any]) -> Callable[[], Any]:
    parameters = inspect.signature(method).parameters.values()
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    # The SDK's overloads say what is required; the function behind them may have everything optional.
    required = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    given = {name: _ARGUMENTS.get(name, "x") for name in required}
    if "create" in method.__name__ and method.__qualname__.startswith("Disco"):
        given = {"messages": HELLO, "model": "m"}
    return lambda: method(**given)
