"""Every method of the SDK's client, called once with something in every argument it insists on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from openai import AsyncOpenAI, OpenAI

_ARGUMENTS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hello"}],
    "tools": [],
    "file": b"x",
    "data": b"x",
    "image": b"x",
    "files": [b"x"],
    "bytes": 1,
    "size": "1024x1024",
    "request_counts": 1,
}
# They talk to nobody: they check what came in, or hand out an object.
_SILENT = {"unwrap", "verify_signature", "copy", "with_options", "close", "is_closed"}


def methods(client: AsyncOpenAI | OpenAI) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, a call with every required argument) for each public method of each resource, the client's own
    `get`, `post` and so on not among them.
    """
    yield from _of(client, "client", set())


def _of(owner: Any, path: str, seen: set[type]) -> Iterator[tuple[str, Callable[[], Any]]]:
    top = path == "client"
    for name in sorted(n for n in dir(type(owner)) if not n.startswith("_") and not n.startswith("with_")):
        attribute = inspect.getattr_static(type(owner), name)
        is_method = inspect.isfunction(attribute)
        if is_method and not top and name not in _SILENT:
            yield f"{path}.{name}", _call(getattr(owner, name))
        elif not is_method and hasattr(attribute, "func"):  # a cached property: a resource
            resource = getattr(owner, name)
            if (
                type(resource).__module__.startswith(("openai.resources", "disco"))
                and type(resource) not in seen
            ):
                yield from _of(resource, f"{path}.{name}", {*seen, type(resource)})


def _call(method: Callable[..., Any]) -> Callable[[], Any]:
    try:
        parameters = inspect.signature(method).parameters.values()
    except ValueError:
        parameters = ()
    required = [
        p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    # The SDK's overloads say what is required; the function behind them may have everything optional.
    given = {p.name: _ARGUMENTS.get(p.name, "x") for p in required}
    if "create" in method.__name__ and method.__qualname__.startswith("Disco"):
        given = {"messages": _ARGUMENTS["messages"], "model": "m"}
    return lambda: method(**given)
