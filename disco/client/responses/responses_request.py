"""From requests of the Responses API to chat requests: text, images, function tools and structured output.

A request that has no counterpart in a chat (a stored conversation, a tool that runs at the vendor's, files) is not
translated. It goes to the server unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disco.errors import NoEndpointError

__all__ = ["OWN_ITEM", "RESPONSE_ID", "chat_body", "server_body", "untranslated"]

RESPONSE_ID = "resp_disco_"
"""The start of the id of every response made here, so that a later reference to the response is recognised."""
OWN_ITEM = "_disco_"
"""A part of the id of every item made here, which no server knows."""

# Parameters with the same name and meaning in a chat.
_SAME = frozenset(
    """
    metadata model parallel_tool_calls prompt_cache_key prompt_cache_retention safety_identifier service_tier stream
    temperature top_logprobs top_p user
    """.split()  # noqa: SIM905 - a line each otherwise
)
# Values of other parameters that do not ask for anything a chat lacks.
_HARMLESS: Mapping[str, Sequence[object]] = {
    "store": (None, False, True),  # disco stores no responses, so later references are refused
    "truncation": (None, "disabled"),
    "background": (None, False),
    "include": (None, [], ["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
    "previous_response_id": (None,),
    "conversation": (None,),
    "prompt": (None,),
    "max_tool_calls": (None,),
}
_PARTS = {"input_text": "text", "output_text": "text", "text": "text"}


class _NotAChat(Exception):
    """The request has no counterpart in a chat: only the server can answer it. Its argument: the field's name."""


def chat_body(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the equivalent `/chat/completions` body; None if there is none.

    Raises:
        NoEndpointError: the request refers to an earlier response that disco made and did not store.
    """
    earlier = body.get("previous_response_id")
    if isinstance(earlier, str) and earlier.startswith(RESPONSE_ID):
        raise NoEndpointError(
            "previous_response_id names a response that disco made, but disco stores no conversations. Pass the "
            "earlier items in input (response.output can be appended to it as it is)."
        )
    try:
        return _chat_body(body)
    except _NotAChat:
        return None


def untranslated(body: Mapping[str, Any]) -> str | None:
    """Return the field by which a request has no counterpart in a chat; None: it has one."""
    try:
        _chat_body(body)
    except _NotAChat as error:
        return str(error)
    return None


def server_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body for a server's own `/responses`: without `stream`, and without references to disco's items.

    A server looks up the reasoning items of its input by their ids, and refuses those that it did not write.
    """
    asked = {name: value for name, value in body.items() if name != "stream"}
    if isinstance(asked.get("input"), list):
        asked["input"] = [made for item in asked["input"] if (made := _for_server(item)) is not None]
    return asked


def _for_server(item: Any) -> Any:
    """Return an item of the input as a server may get it; None for an item to leave out."""
    if not isinstance(item, dict) or OWN_ITEM not in str(item.get("id")):
        return item
    return None if item.get("type") == "reasoning" else {k: v for k, v in item.items() if k != "id"}


def _chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    chat: dict[str, Any] = {}
    name = "input"
    try:
        chat["messages"] = _messages(body.get("instructions"), body.get("input"))
        for name, value in body.items():
            if name not in ("instructions", "input", "stream_options") and value is not None:
                _translate(name, value, chat)
    except _NotAChat:
        raise _NotAChat(name) from None
    if body.get("top_logprobs") or body.get("include") == ["message.output_text.logprobs"]:
        chat["logprobs"] = True
    return chat


def _translate(name: str, value: Any, chat: dict[str, Any]) -> None:
    """Add to a chat what a field of a response asks for."""
    if name in _SAME:
        chat[name] = value
    elif name == "max_output_tokens":
        chat["max_completion_tokens"] = value
    elif name == "reasoning" and isinstance(value, Mapping) and set(value) <= {"effort", "summary"}:
        if value.get("effort") is not None:
            chat["reasoning_effort"] = value["effort"]
    elif name == "text" and isinstance(value, Mapping):
        chat.update(_text(value))
    elif name == "tools" and isinstance(value, Sequence):
        if value:
            chat["tools"] = [_tool(tool) for tool in value]
    elif name == "tool_choice":
        chat["tool_choice"] = _tool_choice(value)
    elif value not in _HARMLESS.get(name, ()):
        raise _NotAChat


def _messages(instructions: object, given: object) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if isinstance(instructions, str):
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, Sequence):
        raise _NotAChat
    for item in given:
        if not isinstance(item, Mapping):
            raise _NotAChat
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _content(output)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind != "reasoning":  # a chat does not send reasoning back either
            raise _NotAChat
    return messages


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Add a tool call. Calls of one turn belong to one message of the assistant."""
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant":
        last.setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _content(content: object) -> Any:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _NotAChat
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _PARTS:
            parts.append({"type": "text", "text": part.get("text", "")})
        elif kind == "refusal":
            parts.append({"type": "refusal", "refusal": part.get("refusal", "")})
        elif kind == "input_image" and part.get("image_url"):
            image = {"url": part["image_url"], **({"detail": part["detail"]} if part.get("detail") else {})}
            parts.append({"type": "image_url", "image_url": image})
        else:
            raise _NotAChat
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _text(value: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if value.get("verbosity") is not None:
        out["verbosity"] = value["verbosity"]
    wanted = value.get("format")
    if wanted is not None and not isinstance(wanted, Mapping):
        raise _NotAChat
    if wanted is not None and wanted.get("type") == "json_schema":
        schema = {k: v for k, v in wanted.items() if k != "type" and v is not None}
        out["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted is not None and wanted.get("type") == "json_object":
        out["response_format"] = {"type": "json_object"}
    return out


def _tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise _NotAChat
    function = {k: v for k, v in tool.items() if k != "type" and v is not None}
    return {"type": "function", "function": function}


def _tool_choice(value: object) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value.get("type") == "function":
        return {"type": "function", "function": {"name": value.get("name")}}
    raise _NotAChat
