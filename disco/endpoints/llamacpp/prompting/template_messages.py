"""Messages in the form of chat templates: strings for content, and one of two forms for calls and their results.

A template that knows tools receives calls and results unchanged. For any other template they become text in the
generic form, which the system message explains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.refusals import malformed, unserved
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, CallFormat
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools

__all__ = ["as_text", "for_template", "mention_tools", "plain_messages"]

# Shown to models whose template knows no tools. The wording is the one that models with tools are trained on.
_INSTRUCTION = """\
You can call these functions:
<tools>
{functions}
</tools>
To call one, write its name and arguments as JSON, in exactly this form:
{example}
If no function helps, answer the user in plain text."""


def plain_messages(messages: Sequence[Mapping[str, Any]], *, endpoint: str) -> list[dict[str, Any]]:
    """Return messages with one string for content, and with checked `tool_calls`, `tool_call_id` and `name`.

    Raises:
        EndpointFailure: UNSERVED for content that is not text and for functions of the older kind, BAD_REQUEST
            for calls that are malformed.
    """
    plain = []
    for message in messages:
        role = message.get("role")
        if role == "function" or message.get("function_call"):
            raise unserved(
                f"Endpoint {endpoint!r} (llama.cpp) serves tools, not function_call and the role function. Use tools.",
                "messages",
            )
        # Templates know this role by its older name.
        made = {"role": "system" if role == "developer" else role, "content": _text(message, endpoint)}
        if message.get("tool_calls"):
            made["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        if role == "tool":
            made["tool_call_id"] = str(message.get("tool_call_id") or "")
        plain.append(made)
    return plain


def _text(message: Mapping[str, Any], endpoint: str) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "refusal"):
            raise unserved(
                f"Endpoint {endpoint!r} (disco's own engine) reads text only. For images, run the model by "
                'runtime="llama-server" with mmproj="mmproj.gguf", or configure a server that serves them.',
                "messages",
            )
        parts.append(str(part.get(kind, "")))
    return "".join(parts)


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise malformed("A tool call in the messages has no function with a name.", "messages")
    arguments: Any = function.get("arguments") or "{}"
    if not isinstance(arguments, str):
        raise malformed("The arguments of a tool call in the messages are not a string.", "messages")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def mention_tools(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the conversation holds calls or results of calls."""
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def for_template(messages: Sequence[Mapping[str, Any]], form: CallFormat) -> list[dict[str, Any]]:
    """Return the conversation for a template that knows tools: it gets arguments as objects, not as strings."""

    def adapted(message: Mapping[str, Any]) -> dict[str, Any]:
        made = dict(message)
        if "tool_calls" in message:
            made["tool_calls"] = [_adapted_call(call, form) for call in message["tool_calls"]]
        if "tool_call_id" in message:
            made["tool_call_id"] = _identifier(message["tool_call_id"], form)
        return made

    return [adapted(message) for message in messages]


def _adapted_call(call: Mapping[str, Any], form: CallFormat) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:  # the arguments of an answer that was cut off
        arguments = function["arguments"]
    return {
        "id": _identifier(call["id"], form),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _identifier(given: str, form: CallFormat) -> str:
    if form.id_chars is None or len(given) == form.id_chars:
        return given
    return hashlib.sha256(given.encode("utf-8", "replace")).hexdigest()[: form.id_chars]


def as_text(messages: Sequence[Mapping[str, Any]], tools: Tools | None) -> list[dict[str, Any]]:
    """Return the conversation for a template that knows no tools: roles and plain text only."""
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    merging = False  # one message for the results of a turn's calls: many templates need turns to alternate
    for message in messages:
        if message["role"] == "tool":
            name = names.get(message["tool_call_id"], "the function")
            text = f"Result of {name}: {message['content']}"
            if merging:
                out[-1]["content"] += f"\n{text}"
            else:
                out.append({"role": "user", "content": text})
            merging = True
            continue
        merging = False
        parts = [message["content"]] if message["content"] else []
        for call in message.get("tool_calls", ()):
            function = call["function"]
            names[call["id"]] = function["name"]
            if tools is None:
                # In the call's own form, a model would take it for an example of how to answer.
                parts.append(f"I call {function['name']} with {function['arguments']}.")
            else:
                parts.append(GENERIC.written(function["name"], function["arguments"]))
        out.append({"role": message["role"], "content": "\n".join(parts)})
    return out if tools is None else _explained(out, tools)


def _explained(messages: list[dict[str, Any]], tools: Tools) -> list[dict[str, Any]]:
    functions = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools.offered)
    example = GENERIC.written("the function's name", '{"an argument": "its value"}')
    text = _INSTRUCTION.format(functions=functions, example=example)
    if messages and messages[0]["role"] == "system":
        first = messages[0]["content"]
        return [{"role": "system", "content": f"{first}\n\n{text}" if first else text}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
