"""Reads the events of the Responses API into deltas; every event reaches the application through a delta's `raw`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disco.endpoints.openai_api.chunk_reader import ChunkReader
from disco.endpoints.openai_api.chunk_repair import ServerReportedError, usage_from
from disco.events import Delta, DeltaKind, ToolCallDelta

__all__ = ["TEXT_DELTA", "ResponseReader", "field_of"]

TEXT_DELTA = "response.output_text.delta"
_REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
# Content that only `raw` has: it does not continue a text, so an answer with it is not migrated.
_ARGUMENTS = "response.function_call_arguments.delta"
_OPAQUE_DELTAS = (
    _ARGUMENTS,
    "response.custom_tool_call_input.delta",
    "response.refusal.delta",
)
_ENDS = ("response.completed", "response.incomplete", "response.cancelled")
_NO_CONTENT_ITSELF = ("message", "reasoning")  # items that begin empty
_OF_A_PART = (
    "response.content_part.",
    "response.output_text.",
    "response.refusal.",
    "response.reasoning_text.",
)


class ResponseReader(ChunkReader):
    """Reads events such as `response.output_text.delta`. `raw` of a delta is the event: a dict, its JSON.

    Where a server does not say to which item and part an event belongs, as llama-server does not, `raw` says so all the
    same: whoever goes on with the answer, and the SDK's own helpers, need it.

    The last event becomes no delta: it is kept in `finish_raw`.
    """

    __slots__ = ("_has_told_calls", "_in_pieces", "_places")

    def __init__(self) -> None:
        super().__init__()
        self._has_told_calls = False
        self._in_pieces: set[int] = set()  # places of the calls whose arguments have come in pieces
        self._places: dict[object, int] = {}  # of the items that came without one, by their ids

    def _read(self, events: list[bytes], deltas: list[Delta]) -> None:
        for data in events:
            event = self._json(data)
            if self.done:
                return
            if not event:
                continue
            kind = event.get("type")
            if "output_index" not in event and ("item_id" in event or "item" in event):
                event = self._placed(str(kind), event)
            if kind in _ENDS:
                self._end(event)
            elif kind == "response.failed":
                raise ServerReportedError(field_of(event.get("response"), "error"), event)
            elif (delta := self._delta(kind, event)) is not None:
                self._has_told_calls |= bool(delta.tool_calls)
                self.tokens += delta.tokens
                deltas.append(delta)

    def _placed(self, kind: str, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with its place in the answer: items come in order, and each has one part."""
        item = event.get("item")
        # llama-server's calls have no id of their own; their pieces name the call's.
        known = event.get("item_id") or field_of(item, "id") or field_of(item, "call_id")
        place = self._places.setdefault(known, len(self._places))
        return {
            **event,
            "output_index": place,
            **({"content_index": 0} if kind.startswith(_OF_A_PART) else {}),
        }

    def _delta(self, kind: object, event: dict[str, Any]) -> Delta | None:
        """Return the delta of an event that is not the last; None for half a character."""
        text = event.get("delta")
        if kind in (TEXT_DELTA, *_REASONING_DELTAS) and isinstance(text, str) and text:
            if self._halves or not text.isascii():
                text = self._halves.joined({str(kind): text}, 0, ends=False)[str(kind)]
                if not text:
                    return None
            if kind == TEXT_DELTA:
                return Delta(text, raw=event)
            return Delta("", 1, DeltaKind.REASONING, raw=event, reasoning=text)
        if self._is_content(kind, event):
            return Delta("", 1, DeltaKind.TOOL, raw=event, tool_calls=self._pieces(kind, event))
        pieces = self._pieces(kind, event)
        return Delta("", 0, DeltaKind.TOOL if pieces else DeltaKind.ROLE, raw=event, tool_calls=pieces)

    def _pieces(self, kind: object, event: Mapping[str, Any]) -> tuple[ToolCallDelta, ...]:
        """Return the piece of a function call that an event has; its arguments come in pieces, or all at its end."""
        index, item = event.get("output_index"), event.get("item")
        if type(index) is not int:
            return ()
        if kind == _ARGUMENTS and isinstance(event.get("delta"), str):
            self._in_pieces.add(index)
            return (ToolCallDelta(index, event["delta"]),)
        if field_of(item, "type") != "function_call":
            return ()
        if kind == "response.output_item.added":
            return (ToolCallDelta(index, "", field_of(item, "call_id"), field_of(item, "name")),)
        arguments = field_of(item, "arguments")
        is_last = kind == "response.output_item.done" and index not in self._in_pieces
        return (ToolCallDelta(index, arguments),) if is_last and isinstance(arguments, str) else ()

    def _is_content(self, kind: object, event: Mapping[str, Any]) -> bool:
        if kind in _OPAQUE_DELTAS:
            return bool(event.get("delta"))
        item = event.get("item")
        item_kind = field_of(item, "type")
        if kind == "response.output_item.added":
            if item_kind == "function_call":
                self._implied = "tool_calls"
            return item_kind not in _NO_CONTENT_ITSELF
        # A whole message whose text no earlier event had.
        return kind == "response.output_item.done" and not self.tokens and bool(field_of(item, "content"))

    def _end(self, event: dict[str, Any]) -> None:
        response = event.get("response")
        status = field_of(response, "status")
        if status == "failed":
            raise ServerReportedError(field_of(response, "error"))
        self.usage = usage_from(field_of(response, "usage"))
        if event["type"] == "response.incomplete":
            why = field_of(field_of(response, "incomplete_details"), "reason")
            reason = "content_filter" if why == "content_filter" else "length"
        elif status == "cancelled":
            reason = status
        else:
            reason = self._implied or "stop"
        self._ended(reason, 0)
        self.finish_raw = event
        output = field_of(response, "output")
        items = output if isinstance(output, list) else []
        self.ends_with_content = not self.tokens and any(map(_has_content, items))
        if not self._has_told_calls:
            self.last_calls = tuple(
                ToolCallDelta(at, arguments, field_of(item, "call_id"), field_of(item, "name"))
                for at, item in enumerate(items)
                if field_of(item, "type") == "function_call"
                and isinstance(arguments := field_of(item, "arguments"), str)
            )
        self.done = True


def _has_content(item: object) -> bool:
    """Whether an item of a response is more than the frame of a message, or thoughts."""
    kind = field_of(item, "type")
    if kind not in _NO_CONTENT_ITSELF:
        return isinstance(kind, str)
    parts = field_of(item, "content") if kind == "message" else None
    return isinstance(parts, list) and any(field_of(p, "text") or field_of(p, "refusal") for p in parts)


def field_of(value: object, name: str) -> Any:
    """Return a field of a JSON object; None for any other value."""
    return value.get(name) if isinstance(value, Mapping) else None
