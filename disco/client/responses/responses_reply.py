"""A routed answer in the format of the Responses API: items, parts, and an event for every step.

The events of a server that was asked by `/responses` are passed on as they came. For any other writer, the events are
made here; they continue the items of such a server where the answer has moved away from it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from openai.types.responses import ResponseTextDeltaEvent

from disco.client.chat.answer_ending import finish_reason, last_chunk, session_usage
from disco.client.live_driver import LiveSession
from disco.client.responses.responses_request import OWN_ITEM, RESPONSE_ID
from disco.endpoints.openai_api.call_pieces import whole_arguments
from disco.endpoints.openai_api.chunk_repair import text_beside_parts
from disco.endpoints.openai_api.chunk_template import remade
from disco.endpoints.openai_api.error_mapping import FAILED_EVENT
from disco.events import Delta, DeltaKind, ToolCallDelta
from disco.session.answer_rule import has_failed

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
_REFUSAL_DELTA = "response.refusal.delta"
_EMPTY_PART: Mapping[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
_EMPTY_REFUSAL: Mapping[str, Any] = {"type": "refusal", "refusal": ""}
# The fields of an event with a piece of text, where the server adds none of its own.
_PIECE = {"type", "sequence_number", "item_id", "output_index", "content_index", "delta", "logprobs"}
# Events with a piece of an item, and the item's kind.
_ITEM_OF: Mapping[str, str] = {
    _TEXT_DELTA: "message",
    _REFUSAL_DELTA: "message",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "function_call",
}


class ResponsesEncoder:
    """See `disco.client.chat.http_encoding.Encoder`.

    Mutable: the items so far, the one being written and its part, the number of the next event.
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
        self._items: dict[int, dict[str, Any]] = {}  # by their place in the answer
        self._at = -1  # the place of the item that is being written, or was last
        self._kind: str | None = None  # the kind of the item that is being written
        self._part: dict[str, Any] | None = None  # the message's part that is being written, without its text
        self._part_at = 0  # its place in the message
        self._text: list[str] = []  # the text, arguments or reasoning of the part or item so far
        self._call: int | None = None  # the model's index of the call being written
        self._calls: dict[int, int] = {}  # the places of the calls that were made here, by that index
        self._begun = False  # whether there was an event
        self._is_own = False  # whether any was made here
        self._status = "in_progress"  # of the whole response
        self._failed: dict[str, Any] | None = None  # the server's event that says why it gave up
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
            raw = delta.raw
            if (
                delta.kind is _TEXT
                and delta.text
                and self._kind == "message"
                and self._part is not None
                and self._part.get("type") == "output_text"
                and delta.logprobs is None
                and (self._goes_on(raw) if type(raw) is dict else not delta.refusal)
            ):
                if type(raw) is dict:
                    self._number = max(self._number, raw["sequence_number"])
                else:
                    self._is_own = True
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

    def ends_with(self, error: Exception) -> bool:
        """See `Encoder`: a server's `response.failed` ends an answer of which all is the server's."""
        event = vars(error).pop(FAILED_EVENT, None)
        if type(event) is dict and isinstance(event.get("response"), dict) and not self._is_own:
            self._failed = event
        return self._failed is not None

    def _steps(self, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        for delta in deltas:
            self._take(delta)
        return self._flush()

    def _last_steps(self, live: LiveSession) -> list[dict[str, Any]]:
        if (last := self._servers_last(live)) is not None:
            self._pass_on(last)
            return self._flush()
        self._begin()
        self._close()
        reason = finish_reason(live)
        why = _INCOMPLETE.get(reason)
        # The API has no word for an answer that failed at its server and is all there is of it.
        self._status = "incomplete" if why or has_failed(reason) else "completed"
        if not self._items:  # an empty answer still has one item
            self._open("message", {"role": "assistant", "content": []})
            self._close()
        if self._status == "incomplete":
            self._base["incomplete_details"] = {"reason": why} if why else None
            self._items[max(self._items)]["status"] = "incomplete"
        usage = session_usage(live)
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
        self._emit(f"response.{self._status}", response=self._response())
        return self._flush()

    def document(self, deltas: Sequence[Delta], live: LiveSession) -> bytes:
        """Return the `response` object."""
        for delta in deltas:
            self._take(delta)
        last = (self._servers_last(live) or {}).get("response")
        if isinstance(last, dict):
            # Some servers leave the items out of their last event; then they are in earlier ones.
            return json.dumps(last if last.get("output") or not self._items else self._filled(last)).encode()
        self._last_steps(live)
        return json.dumps(self._response()).encode()

    # ------------------------------------------------------------------ deltas

    def _begin(self) -> None:
        self._is_own = True
        if not self._begun:
            self._begun = True
            for step in ("created", "in_progress"):
                self._emit(f"response.{step}", response=self._response())

    def _take(self, delta: Delta) -> None:
        if type(delta.raw) is dict:
            event = delta.raw
            if delta.kind is _TEXT and event.get("delta") != delta.text:  # playback has divided the text
                event = {**event, "delta": delta.text}
            self._follow(event)
            self._pass_on(event)
            return
        self._begin()
        if delta.text:
            empty = _EMPTY_REFUSAL if delta.refusal else _EMPTY_PART
            self._write("message", delta.text, empty, logprobs=delta.logprobs)
        elif delta.kind is DeltaKind.TOOL and (text := text_beside_parts(delta.raw)):
            self._write("message", text, _EMPTY_PART)
        if delta.reasoning:
            self._write("reasoning", delta.reasoning)
        for call in delta.tool_calls:
            has_begun = call.index in self._calls
            if call.index != self._call or self._kind != "function_call":
                self._close()
                self._go_to(call)
            if has_begun and call.name:  # only now, or in pieces
                item = self._items[self._at]
                item["name"] = f"{item['name']}{call.name}"
            if call.arguments:
                self._write("function_call", call.arguments)

    def _go_to(self, call: ToolCallDelta) -> None:
        """Begin a call's item, or go on with it: pieces of several calls may come by turns."""
        self._call = call.index
        at = self._calls.get(call.index)
        if at is None:
            # The next request must name the call, so it has an id even where the server gives none.
            call_id = call.id or f"call{OWN_ITEM}{uuid.uuid4().hex}"
            self._open("function_call", {"call_id": call_id, "name": call.name or "", "arguments": ""})
            self._calls[call.index] = self._at
        else:
            item = self._items[at]
            self._write_item(at, item)
            self._text = [item["arguments"]]

    def _write(
        self,
        kind: str,
        text: str,
        empty: Mapping[str, Any] = _EMPTY_PART,
        *,
        logprobs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a piece of an item; of a message, into a part of the kind of `empty`."""
        if self._kind != kind:
            self._close()
            begun: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
            self._open(kind, {**begun, "content": []})
        if kind == "message" and (self._part is None or self._part.get("type") != empty["type"]):
            self._close_part()
            self._part = dict(empty)
            so_far = self._items[self._at].get("content")
            self._part_at = len(so_far) if isinstance(so_far, list) else 0
            self._emit_part("added", self._part)
        self._text.append(text)
        if kind == "message" and empty is _EMPTY_REFUSAL:
            self._emit_here(_REFUSAL_DELTA, content_index=self._part_at, delta=text)
        elif kind == "message":
            probs = list((logprobs or {}).get("content") or ())
            self._emit_here(_TEXT_DELTA, content_index=self._part_at, delta=text, logprobs=probs)
        elif kind == "function_call":
            self._emit_here("response.function_call_arguments.delta", delta=text)
        else:
            self._emit_here("response.reasoning_text.delta", content_index=0, delta=text)

    def _open(self, kind: str, fields: Mapping[str, Any]) -> None:
        prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}[kind]
        item = {
            "id": f"{prefix}{OWN_ITEM}{uuid.uuid4().hex}",
            "type": kind,
            "status": "in_progress",
            **fields,
        }
        self._write_item(max(self._items, default=-1) + 1, item)
        self._emit("response.output_item.added", output_index=self._at, item=dict(item))

    def _write_item(self, index: int, item: dict[str, Any]) -> None:
        self._items[index] = item
        self._at, self._kind, self._part, self._text = index, str(item.get("type")), None, []

    def _close(self) -> None:
        """End the item that is being written, if there is one."""
        kind, self._kind = self._kind, None
        if kind is None:
            return
        item, text = self._items[self._at], "".join(self._text)
        item["status"] = "completed"
        if kind == "message":
            self._close_part()
        elif kind == "function_call":
            text = whole_arguments(text)
            item["arguments"] = text
            self._emit_here("response.function_call_arguments.done", name=item.get("name"), arguments=text)
        elif kind == "reasoning" and self._text:
            item["content"] = [{"type": "reasoning_text", "text": text}]
            self._emit_here("response.reasoning_text.done", content_index=0, text=text)
        self._emit("response.output_item.done", output_index=self._at, item=dict(item))

    def _close_part(self) -> None:
        """End the message's part that is being written, if there is one."""
        part, text = self._part, "".join(self._text)
        if part is None:
            return
        if part.get("type") == "refusal":
            part = {**part, "refusal": text}
            self._emit_here("response.refusal.done", content_index=self._part_at, refusal=text)
        else:
            part = {**part, "text": text}
            self._emit_here("response.output_text.done", content_index=self._part_at, text=text, logprobs=[])
        self._add_part(self._items[self._at], part)
        self._emit_part("done", part)
        self._part, self._text = None, []

    @staticmethod
    def _add_part(item: dict[str, Any], part: Mapping[str, Any]) -> None:
        so_far = item.get("content")
        item["content"] = [*so_far, part] if isinstance(so_far, list) else [part]

    # ------------------------------------------------------------------ a server's own events

    def _servers_last(self, live: LiveSession) -> dict[str, Any] | None:
        """Return the last event of a server that wrote the whole answer; None for any other answer."""
        if self._failed is not None:
            return self._failed
        last = last_chunk(live)
        cut = finish_reason(live) in _INCOMPLETE
        return last if type(last) is dict and (last["type"] == "response.incomplete") == cut else None

    def _pass_on(self, event: dict[str, Any]) -> None:
        """Give a server's event to the application, with the next number where its own is taken."""
        given = event.get("sequence_number")
        if type(given) is int and given < self._number:
            event = {**event, "sequence_number": self._number}
        self._number = max(self._number, given if type(given) is int else 0) + 1
        self._begun = True
        self._out.append(event)

    def _follow(self, event: Mapping[str, Any]) -> None:
        """Note where the answer stands after a server's event, so that another writer can go on there."""
        kind, index = str(event.get("type")), event.get("output_index")
        response, item, part, text = (event.get(name) for name in ("response", "item", "part", "delta"))
        if isinstance(response, dict):
            self._base |= {k: v for k, v in response.items() if k not in ("status", "output", "usage")}
        if type(index) is not int:
            return
        if kind == "response.output_item.done" and isinstance(item, dict):
            self._items[index] = dict(item)
            self._kind = None if index == self._at else self._kind
        elif kind == "response.output_item.added" and isinstance(item, dict):
            self._write_item(index, dict(item))
        elif kind in _ITEM_OF and index not in self._items:  # the server has not announced the item
            made = {"id": event.get("item_id"), "type": _ITEM_OF[kind], "status": "in_progress"}
            self._write_item(index, {**made, "role": "assistant", "content": []})
        if index != self._at:
            return
        at = event.get("content_index")
        if kind in (_TEXT_DELTA, _REFUSAL_DELTA, "response.content_part.added") and (
            self._part is None or at != self._part_at
        ):
            empty = _EMPTY_REFUSAL if kind == _REFUSAL_DELTA else _EMPTY_PART
            self._part = dict(part) if isinstance(part, dict) else dict(empty)
            self._part_at, self._text = at if type(at) is int else 0, []
        elif kind == "response.content_part.done" and isinstance(part, dict) and index in self._items:
            self._add_part(self._items[index], part)
            self._part, self._text = None, []
        if kind in _ITEM_OF and isinstance(text, str):
            self._text.append(text)

    def _goes_on(self, event: Mapping[str, Any]) -> bool:
        """Return whether a server's event is a plain piece of text of the part that is being written."""
        return (
            event.keys() == _PIECE
            and event["type"] == _TEXT_DELTA
            and event["logprobs"] == []
            and type(event["sequence_number"]) is int
            and event["output_index"] == self._at
            and event["content_index"] == self._part_at
            and event["item_id"] == self._items[self._at].get("id")
        )

    def _filled(self, response: Mapping[str, Any]) -> dict[str, Any]:
        return {**response, "output": self._output()}

    # ------------------------------------------------------------------ events

    def _emit_part(self, step: str, part: Mapping[str, Any]) -> None:
        self._emit_here(f"response.content_part.{step}", content_index=self._part_at, part=part)

    def _emit_here(self, kind: str, **fields: Any) -> None:
        self._emit(kind, item_id=self._items[self._at].get("id"), output_index=self._at, **fields)

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
        item_id = self._items[self._at].get("id")
        if like is None or like.item_id != item_id or like.content_index != self._part_at:
            self._text_delta = like = ResponseTextDeltaEvent.construct(
                type=_TEXT_DELTA,
                sequence_number=number,
                item_id=item_id,
                output_index=self._at,
                content_index=self._part_at,
                delta=text,
                logprobs=[],
            )
        fields = {**vars(like), "delta": text, "sequence_number": number, "logprobs": []}
        made: ResponseTextDeltaEvent = remade(like, fields)
        return made

    def _response(self) -> dict[str, Any]:
        return {**self._base, "status": self._status, "output": self._output()}

    def _output(self) -> list[dict[str, Any]]:
        return [dict(self._items[index]) for index in sorted(self._items)]


def _detail(details: object, name: str) -> int:
    """Return a count of the server's; 0 where the server gives none."""
    value = getattr(details, name, None)
    return value if isinstance(value, int) else 0


def _line(event: Mapping[str, Any]) -> bytes:
    kind = event.get("type")
    named = f"event: {kind}\n" if isinstance(kind, str) and kind.isprintable() else ""
    return f"{named}data: {json.dumps(event)}\n\n".encode()
