"""What the reference documents: the public names that its API pages show, and what their docstrings leave out."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import disco

API = Path(__file__).parents[2] / "docs" / "reference" / "api"
# Raised to say that something is not there, or for mypy; nobody catches these.
OWN_MATTER = {
    "AttributeError",
    "NotImplementedError",
    "StopAsyncIteration",
    "StopIteration",
    "AssertionError",
}
# What says of a number how it is to be read, in its name or in its description.
UNIT = re.compile(
    r"(^|_)(s|at|days|tokens|usd|tps|flops|bytes|mib|chars|share|ms|j|mflop|mb|seed|port|in|out|rows|requests|crc32)(_|$)"
)
UNIT_WORDS = re.compile(
    r"\b(s|ms|seconds?|tokens?|USD|FLOPs|J|joules?|bytes|MiB|characters?|spaces|rows?|requests?|answers?|drafts?|rounds"
    r"|observations?|shares?|numbers?|count|how (many|often)|most|least|times|changes|probabilit(y|ies)"
    r"|factor|ratio|multiplies|multiplied|index|rank|seed|level|quantile|scores?|lengths?|port|status|width|weights?"
    r"|deviation|mean|0 to 1)\b|\[0, 1\]|10⁶"
)


def modules() -> list[str]:
    """The modules and names that the pages of the API show."""
    return [
        name
        for page in sorted(API.glob("*.md"))
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


@functools.cache
def public() -> dict[str, Any]:
    """Every class and function of disco that the pages show, by its name there; each once."""
    found: dict[Any, str] = {}
    for shown in modules():
        module, _, name = shown.rpartition(".")
        named = getattr(importlib.import_module(module), name, None)
        names = [name] if inspect.isclass(named) or inspect.isfunction(named) else None
        home = importlib.import_module(module if names else shown)
        for each in names or home.__all__:
            it = getattr(home, each)
            if (inspect.isclass(it) or inspect.isfunction(it)) and it.__module__.startswith("disco"):
                found.setdefault(it, f"{home.__name__}.{each}")
    return {name: it for it, name in found.items()}


def gaps() -> Iterator[str]:
    """What the docstrings of the public names leave out, one sentence each."""
    for name, it in public().items():
        if inspect.isfunction(it):
            yield from _of_function(name, it)
            continue
        text = it.__dict__.get("__doc__") or ""
        if not text or text.startswith(f"{it.__name__}("):
            yield f"{name} has no docstring"
            continue
        yield from _of_values(name, text, dict(_values(it)))
        for member, value in it.__dict__.items():
            function = getattr(value, "__func__", value)
            if member.startswith("_"):
                continue
            if isinstance(value, property) and not inspect.getdoc(value):
                yield f"{name}.{member} has no docstring"
            ours = inspect.isfunction(function) and function.__module__.startswith("disco")
            if ours and (function.__doc__ or not _keeps_a_contract(member)):
                yield from _of_function(f"{name}.{member}", function)


def _values(it: type) -> Iterator[tuple[str, Any]]:
    """What an instance is made of: the fields of a dataclass, or the arguments of its own constructor."""
    if dataclasses.is_dataclass(it):
        own = inspect.get_annotations(it)
        yield from (
            (f.name, f.type) for f in dataclasses.fields(it) if f.name in own and not f.name.startswith("_")
        )
    elif "__init__" in it.__dict__ and not issubclass(it, BaseException):
        said = set(re.findall(r"\w+", inspect.getdoc(it.__init__) or ""))
        for above in it.__mro__[
            1:
        ]:  # a drop-in client takes what the SDK's class takes, and names that class
            if above.__module__.split(".")[0] == "openai" and f"`{above.__name__}`" in (it.__doc__ or ""):
                said |= set(inspect.signature(above.__init__).parameters)
        for name, other in (("AsyncDisco", disco.AsyncDisco), ("Disco", disco.Disco)):
            if f"the arguments of `{name}`" in (it.__doc__ or ""):
                said |= set(inspect.signature(other.__init__).parameters)
        yield from ((p.name, p.annotation) for p in _parameters(it.__init__) if p.name not in said)


def _keeps_a_contract(member: str) -> bool:
    """Whether a public class (often a protocol, which nobody extends) documents a method of that name."""
    return any(
        member in it.__dict__
        and getattr(it.__dict__[member], "__doc__", None)  # None has a docstring from 3.13 on
        for it in public().values()
        if inspect.isclass(it)
    )


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    skipped = ("self", "cls", "args", "kwargs")
    found = inspect.signature(function).parameters.values()
    return [p for p in found if p.name not in skipped and not p.name.startswith("_")]


def _of_function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    text = inspect.getdoc(function) or ""
    if not text:
        yield f"{name} has no docstring"
        return
    yield from _of_values(name, text, {p.name: p.annotation for p in _parameters(function)})
    missing = {error for error in _raised(function) if error not in text}
    if missing:
        yield f"{name} does not say that it raises {', '.join(sorted(missing))}"


def described(text: str) -> dict[str, str]:
    """The entries of a docstring's sections, by name."""
    entries = re.findall(
        r"^ {4}(\w+(?:,\s+\w+)*):\s+(.*(?:\n {8,}.*)*)", inspect.cleandoc(text), re.MULTILINE
    )
    return {name: meaning for names, meaning in entries for name in re.split(r",\s+", names)}


def _of_values(name: str, text: str, values: dict[str, Any]) -> Iterator[str]:
    if re.search(r"(^(See|As)|; see) `\w+\.\w+`", text):  # what is named there says it
        return
    entries = described(text)
    # Of one or two, a sentence may speak; more need an entry each.
    spoken = set(re.findall(r"\w+", text)) if len(values) <= 2 else set(re.findall(r"`(\w+)", text))
    if missing := [value for value in values if value not in entries and value not in spoken]:
        yield f"{name} does not describe {', '.join(missing)}"
    for value, kind in values.items():
        is_number = re.fullmatch(
            r"(int|float)( \| None)?", kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        )
        if is_number and not UNIT.search(value) and not UNIT_WORDS.search(entries.get(value, text)):
            yield f"{name} gives no unit of {value}"


def _raised(function: Callable[..., Any]) -> set[str]:
    """The errors that stand behind a `raise` in the function itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    errors = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise) and n.exc is not None]
    names = {
        ast.unparse(error.func if isinstance(error, ast.Call) else error).split(".")[-1] for error in errors
    }
    return {name for name in names if name[:1].isupper()} - OWN_MATTER
