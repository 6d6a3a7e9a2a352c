"""The Responses API of `weather_server`: the same answers in the other form."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any

__all__ = ["as_chat", "response", "response_events"]

NUMBERS = count(1)  # every response has an id of its own: instruments put those with one id together
MADE = {"object": "response", "created_at": 1, "model": "m-1", "parallel_tool_calls": True}
USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 25,
}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """Return as much of the request as the answer follows from, in the form of a chat completion's."""
    given = body["input"] if isinstance(body["input"], list) else [{}]
    role = "tool" if given[-1].get("type") == "function_call_output" else "user"
    wanted = (body.get("text") or {}).get("format") or {}
    return {
        "messages": [{"role": role}],
        "tools": [{"function": tool} for tool in body.get("tools") or [] if tool["type"] == "function"],
        "tool_choice": body.get("tool_choice", "auto"),
        "response_format": {"type": wanted["type"], "json_schema": wanted} if "schema" in wanted else None,
    }


def response(body: dict[str, Any], message: dict[str, Any]) -> str:
    """Return the answer as one document."""
    return json.dumps(_made(body, "completed", [_item(message)], id=_new_id(), usage=USAGE))


def response_events(body: dict[str, Any], message: dict[str, Any]) -> str:
    """Return the answer as server-sent events."""
    item, own = _item(message), _new_id()
    in_progress = {
        **item,
        "status": "in_progress",
        **({"arguments": ""} if "arguments" in item else {"content": []}),
    }
    where = {"item_id": item["id"], "output_index": 0}
    events = [("response.created", {"response": _made(body, "in_progress", [], id=own)})]
    events.append(("response.output_item.added", {"output_index": 0, "item": in_progress}))
    if "arguments" in item:
        kind = "response.function_call_arguments"
        events += [(f"{kind}.delta", {**where, "delta": piece}) for piece in _pieces(item["arguments"])]
        events.append((f"{kind}.done", {**where, "name": item["name"], "arguments": item["arguments"]}))
    else:
        where, (part,) = {**where, "content_index": 0}, item["content"]
        said = {**where, "logprobs": []}
        events.append(("response.content_part.added", {**where, "part": {**part, "text": ""}}))
        events += [
            ("response.output_text.delta", {**said, "delta": piece}) for piece in _pieces(part["text"])
        ]
        events.append(("response.output_text.done", {**said, "text": part["text"]}))
        events.append(("response.content_part.done", {**where, "part": part}))
    events.append(("response.output_item.done", {"output_index": 0, "item": item}))
    events.append(("response.completed", {"response": _made(body, "completed", [item], id=own, usage=USAGE)}))
    return "".join(
        f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **event})}\n\n"
        for number, (kind, event) in enumerate(events)
    )


def _new_id() -> str:
    return f"resp_{next(NUMBERS)}"


def _made(body: dict[str, Any], status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    asked = {"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice", "auto")}
    return {**MADE, "status": status, "output": output, **asked, **more}


def _item(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" in message:
        function = message["tool_calls"][0]["function"]
        return {"id": "fc_1", "type": "function_call", "call_id": "call_1", "status": "completed", **function}
    part = {"type": "output_text", "text": message["content"], "annotations": [], "logprobs": []}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def _pieces(text: str) -> list[str]:
    return re.findall(".{1,6}", text)
