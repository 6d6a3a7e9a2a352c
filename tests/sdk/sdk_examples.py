"""Examples of what OpenAI's API answers, made from the types that the SDK reads the answers as.

The SDK's own mock server is made from OpenAI's description of its API, which comes with neither the package nor its
source. The SDK's methods say the same in another form: each names its path and the type of its answer.
"""

from __future__ import annotations

import ast
import datetime
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai.resources
import pydantic
from openai._legacy_response import HttpxBinaryResponseContent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseCompletedEvent, ResponseCreatedEvent, ResponseTextDeltaEvent

__all__ = ["Operation", "example", "operations"]

VERBS = {f"_{verb}": verb.upper() for verb in ("get", "post", "put", "patch", "delete")}
DEEPEST = 12  # types may contain themselves: from this depth on, lists and objects are left empty


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the API.

    Attributes:
        verb: the HTTP method.
        path: what the path must match, query included if the SDK writes one into it.
        answer: the type of the answer; None: an answer without a body.
        event: the type of a stream's events; None: the answer is never streamed.
    """

    verb: str
    path: re.Pattern[str]
    answer: Any
    event: Any

    def body(self) -> Any:
        """Return an example of the answer: bytes, or what JSON can express."""
        if self.answer is HttpxBinaryResponseContent:
            return b"binary"
        if self.answer is ChatCompletion:
            body = example(ChatCompletion)
            body["choices"][0]["message"]["content"] = "Hello"
            return body
        return example(self.answer) if self.answer is not None else {"text": "string"}

    def events(self) -> list[Any]:
        """Return an example of the streamed answer."""
        if self.event is ChatCompletionChunk:
            start, end = example(ChatCompletionChunk), example(ChatCompletionChunk)
            start["choices"][0].update(delta={"role": "assistant", "content": "Hello"}, finish_reason=None)
            return [start, end]
        if self.path.pattern == "/responses":
            return [
                example(e) for e in (ResponseCreatedEvent, ResponseTextDeltaEvent, ResponseCompletedEvent)
            ]
        return [example(self.event)]


def operations() -> list[Operation]:
    """Return the API's methods, as the SDK's synchronous resources call them."""
    return [operation for module in _modules() for operation in _operations(module)]


def _modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(openai.resources.__path__, "openai.resources."):
        yield importlib.import_module(found.name)


def _operations(module: types.ModuleType) -> Iterator[Operation]:
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if call.func.attr == "_get_api_list":
            answer, verb = given["page"], _text(given.get("method")) or "get"
        elif call.func.attr in VERBS and "cast_to" in given:
            answer, verb = given["cast_to"], VERBS[call.func.attr]
        else:
            continue
        path = _text(call.args[0])
        if path is None:
            continue
        streams = given.get("stream_cls")
        (event,) = (None,) if streams is None else typing.get_args(_value(streams, module)) or (None,)
        yield Operation(verb.upper(), _pattern(path), _value(answer, module), event)


def _value(node: ast.expr, module: types.ModuleType) -> Any:
    """Return the type that the node names; `cast(Any, X)` stands for X; None if only the running method knows it."""
    if isinstance(node, ast.Call):
        if not (isinstance(node.func, ast.Name) and node.func.id == "cast"):
            return None
        node = node.args[1]
    try:
        return eval(ast.unparse(node), vars(module))
    except NameError:
        return None


def _text(node: ast.expr | None) -> str | None:
    """Return the path that the node writes: a text, a formatted one, or `path_template(text, ...)`."""
    if isinstance(node, ast.Call):
        return _text(node.args[0])
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("[^/?]+".join(map(re.escape, re.split(r"\{[^}]*\}", path))))


def example(kind: Any, depth: int = 0) -> Any:
    """Return an example of the type, as JSON: only what must be there, each list with one member."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if hasattr(kind, "__value__"):  # `type X = ...`
        return example(kind.__value__, depth)
    if origin is typing.Annotated:
        return example(arguments[0], depth)
    if origin is typing.Literal:
        return arguments[0]
    if origin in (typing.Union, types.UnionType):
        return example(arguments[0], depth)
    if origin in (list, typing.Sequence) or kind is list:
        return [example(arguments[0], depth + 1)] if arguments and depth < DEEPEST else []
    if origin is dict or kind in (dict, object, Any, typing.Any):
        return {}
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return _object(kind, depth)
    if isinstance(kind, type) and issubclass(kind, datetime.datetime):
        return "2026-01-01T00:00:00Z"
    if isinstance(kind, type) and issubclass(kind, datetime.date):
        return "2026-01-01"
    return {str: "string", int: 0, float: 0.5, bool: True}.get(kind)


def _object(kind: type[pydantic.BaseModel], depth: int) -> dict[str, Any]:
    kind.model_rebuild()
    filled = {
        field.alias or name: example(field.annotation, depth + 1)
        for name, field in kind.model_fields.items()
        if depth < DEEPEST and (field.is_required() or field.default_factory is not None)
    }
    if "has_more" in kind.model_fields:
        filled["has_more"] = False  # else a page would have a next one
    return filled
