"""A routed answer in the format of the Responses API: items, parts, and an event for every step."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from openai.types.responses import ResponseTextDeltaEvent

from disco.client.chat.answer_stream import answer_usage, finish_reason
from disco.client.live_driver import LiveSession
from disco.client.responses.responses_request import RESPONSE_ID
from disco.endpoints.openai_api.chunk_template import remade
from disco.events import Delta, DeltaKind

__all__ = ["ResponsesEncoder"]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# Fields of the request that the API repeats in its answer, with the API's default for fields not given.
_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_TEXT = DeltaKind.TEXT
_TEXT_DELTA = "response.output_text.delta"


class ResponsesEncoder:
    """See `disco.client.chat.http_encoding.Encoder`.

    Mutable: the items so far, the one being written, the number of the next event.
    """

    def __init__(self, body: Mapping[str, Any], model: str) -> None:
        """Take the request's body; the answer repeats parts of it."""
        self._base = {
            "id": f"{RESPONSE_ID}{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "error": None,
            "incomplete_details": None,
            "previous_response_id": None,
            "reasoning": {"effort": (body.get("reasoning") or {}).get("effort"), "summary": None},
            **{k: default if body.get(k) is None else body[k] for k, default in _ECHOED.items()},
        }
        # --- mutable
        self._items: list[dict[str, Any]] = []
        self._kind: str | None = None  # kind of the last item, which is being written
        self._text: list[str] = []  # the last item's text, arguments or reasoning so far
        self._call: int | None = None  # the model's index of the call being written
        self._number = 0
        self._out: list[dict[str, Any]] = []
        self._text_delta: ResponseTextDeltaEvent | None = (
            None  # an event of this item, the template for the next ones
        )

    def batch(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events for these deltas."""
        return b"".join(map(_line, self._steps(deltas)))

    def end(self, live: LiveSession) -> bytes:
        """Return the end of the last item and the whole response."""
        return b"".join(map(_line, self._last_steps(live)))

    def objects(self, deltas: Sequence[Delta]) -> list[Any]:
        """As `batch`: models for pieces of text, which are most of the events, and dicts for the others."""
        made: list[Any] = []
        for delta in deltas:
            if self._kind == "message" and delta.kind is _TEXT and delta.text and delta.logprobs is None:
                self._text.append(delta.text)
                made.append(self._text_model(delta.text))
            else:
                made += self._steps([delta])
        return made

    def made(self, item: Any) -> Any:
        """Return the item, which is already made."""
        return item

    def last_objects(self, live: LiveSession) -> list[Any]:
        """As `end`: the content of the events' JSON."""
        return self._last_steps(live)

    def _steps(self, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        if not self._number:
            for step in ("created", "in_progress"):
                self._emit(f"response.{step}", response=self._response("in_progress"))
        for delta in deltas:
            self._take(delta)
        return self._flush()

    def _last_steps(self, live: LiveSession) -> list[dict[str, Any]]:
        if not self._number:
            self._out = self._steps(())
        self._close()
        reason = finish_reason(live)
        status = "incomplete" if reason in _INCOMPLETE else "completed"
        if not self._items:  # an empty answer still has one item
            self._open("message", {"role": "assistant", "content": []})
            self._close()
        if status == "incomplete":
            self._base["incomplete_details"] = {"reason": _INCOMPLETE[reason]}
            self._items[-1]["status"] = "incomplete"
        usage = answer_usage(live)
        self._base["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": _detail(usage.prompt_tokens_details, "cached_tokens"),
                "cache_write_tokens": _detail(usage.prompt_tokens_details, "cache_write_tokens"),
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {
                "reasoning_tokens": _detail(usage.completion_tokens_details, "reasoning_tokens")
            },
            "total_tokens": usage.total_tokens,
        }
        self._base["completed_at"] = int(time.time())
        self._emit(f"response.{status}", response=self._response(status))
        return self._flush()

    def document(self, deltas: Sequence[Delta], live: LiveSession) -> bytes:
        """Return the `response` object."""
        self.batch(deltas)
        self.end(live)
        status = "incomplete" if self._base["incomplete_details"] else "completed"
        return json.dumps(self._response(status)).encode()

    # ------------------------------------------------------------------ deltas

    def _take(self, delta: Delta) -> None:
        if delta.text:
            self._write("message", delta.text, logprobs=delta.logprobs)
        if delta.reasoning:
            self._write("reasoning", delta.reasoning)
        for call in delta.tool_calls:
            if call.index != self._call or self._kind != "function_call":
                self._close()
                self._call = call.index
                self._open("function_call", {"call_id": call.id, "name": call.name, "arguments": ""})
            if call.arguments:
                self._write("function_call", call.arguments)

    def _write(self, kind: str, text: str, *, logprobs: Mapping[str, Any] | None = None) -> None:
        if self._kind != kind:
            self._close()
            if kind == "message":
                self._open(kind, {"role": "assistant", "content": []})
                self._part("added", {"type": "output_text", "text": "", "annotations": [], "logprobs": []})
            else:
                self._open(kind, {"summary": [], "content": []})
        self._text.append(text)
        if kind == "message":
            probs = list((logprobs or {}).get("content") or ())
            self._emit_here(_TEXT_DELTA, content_index=0, delta=text, logprobs=probs)
        elif kind == "function_call":
            self._emit_here("response.function_call_arguments.delta", delta=text)
        else:
            self._emit_here("response.reasoning_text.delta", content_index=0, delta=text)

    def _open(self, kind: str, fields: Mapping[str, Any]) -> None:
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[kind]
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._items.append(item)
        self._kind = kind
        self._text = []
        self._emit("response.output_item.added", output_index=len(self._items) - 1, item=dict(item))

    def _close(self) -> None:
        """End the item that is being written, if there is one."""
        kind, self._kind = self._kind, None
        if kind is None:
            return
        item, text = self._items[-1], "".join(self._text)
        item["status"] = "completed"
        if kind == "message" and self._text:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item["content"] = [part]
            self._emit_here("response.output_text.done", content_index=0, text=text, logprobs=[])
            self._part("done", part)
        elif kind == "function_call":
            item["arguments"] = text
            self._emit_here("response.function_call_arguments.done", name=item["name"], arguments=text)
        elif kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": text}]
            self._emit_here("response.reasoning_text.done", content_index=0, text=text)
        self._emit("response.output_item.done", output_index=len(self._items) - 1, item=dict(item))

    # ------------------------------------------------------------------ events

    def _part(self, step: str, part: Mapping[str, Any]) -> None:
        self._emit_here(f"response.content_part.{step}", content_index=0, part=part)

    def _emit_here(self, kind: str, **fields: Any) -> None:
        self._emit(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        self._out.append(event)

    def _flush(self) -> list[dict[str, Any]]:
        out, self._out = self._out, []
        return out

    def _text_model(self, text: str) -> ResponseTextDeltaEvent:
        """Return the event for a piece of the message that is being written."""
        like, number = self._text_delta, self._number
        self._number += 1
        if like is None or like.item_id != self._items[-1]["id"]:
            self._text_delta = like = ResponseTextDeltaEvent.construct(
                type=_TEXT_DELTA,
                sequence_number=number,
                item_id=self._items[-1]["id"],
                output_index=len(self._items) - 1,
                content_index=0,
                delta=text,
                logprobs=[],
            )
        fields = {**vars(like), "delta": text, "sequence_number": number, "logprobs": []}
        made: ResponseTextDeltaEvent = remade(like, fields)
        return made

    def _response(self, status: str) -> dict[str, Any]:
        return {**self._base, "status": status, "output": [dict(item) for item in self._items]}


def _detail(details: object, name: str) -> int:
    """Return a count of the server's; 0 where the server gives none."""
    value = getattr(details, name, None)
    return value if isinstance(value, int) else 0


def _line(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
