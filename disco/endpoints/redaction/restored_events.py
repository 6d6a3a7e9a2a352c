"""The events of the Responses API with the originals put back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from disco.endpoints.redaction.restored_text import HeldText, Restorer, restored_tree
from disco.events import Delta, DeltaKind

__all__ = ["RestoredEvents"]

_PIECE = ".delta"
# Events behind which a text does not go on: a part or an item ends, or another one begins.
_BORDERS = (".done", ".added")
_OUTPUT_TEXT = "response.output_text"


class RestoredEvents:
    """Puts the originals back into events: dicts, in `Delta.raw`.

    Args:
        restorer: puts the originals back.
        is_json: whether the answer's text is JSON.
    """

    # Mutable: _texts, by kind of event and place, each with the last delta; _tokens and _logprobs, of events whose
    # whole text is held.
    __slots__ = ("_is_json", "_logprobs", "_restorer", "_texts", "_tokens")

    def __init__(self, restorer: Restorer, *, is_json: bool) -> None:
        self._restorer = restorer
        self._is_json = is_json
        self._texts: dict[tuple[Any, ...], tuple[HeldText, Delta]] = {}
        self._tokens = 0
        self._logprobs: list[Any] = []

    def pass_on(self, delta: Delta) -> list[Delta]:
        """Return the deltas of one event: none while its text is held, and before a border what was held."""
        event = delta.raw
        kind = str(event.get("type"))
        if kind.endswith(_PIECE) and isinstance(event.get("delta"), str):
            return self._piece(kind, delta)
        before = self.end() if kind.endswith(_BORDERS) else []
        return [*before, replace(delta, ids=None, raw=self.whole(event))]

    def end(self) -> list[Delta]:
        """Return what is held back, at the end of the answer or of an item."""
        rest = [
            self._with_piece(replace(last, tokens=0, raw={**last.raw, "logprobs": []}), text.end())
            for text, last in self._texts.values()
            if text.held
        ]
        self._texts = {}
        return rest

    def whole(self, event: dict[str, Any]) -> Any:
        """Return an event that holds whole texts only."""

        def restore(text: str, name: str) -> str:
            is_json = name == "arguments" or (name == "text" and self._is_json)
            return self._restorer.whole(text, is_json=is_json)

        return restored_tree(event, restore)

    def _piece(self, kind: str, delta: Delta) -> list[Delta]:
        event = delta.raw
        place = (kind, event.get("output_index"), event.get("content_index"), event.get("summary_index"))
        is_json = "arguments" in kind or (self._is_json and kind.startswith(_OUTPUT_TEXT))
        held = self._texts[place][0] if place in self._texts else HeldText(self._restorer, is_json=is_json)
        self._texts[place] = held, delta
        # The delta's own text holds whole characters only; the event's may hold half of one.
        text = held.feed(delta.text or delta.reasoning or event["delta"])
        if not text and event["delta"]:
            self._tokens += delta.tokens
            self._logprobs += event.get("logprobs") or ()
            return []
        return [self._with_piece(delta, text)]

    def _with_piece(self, delta: Delta, text: str) -> Delta:
        """Return a delta with another text, and with what the events before it had besides their held text."""
        raw = {**delta.raw, "delta": text}
        if self._logprobs:
            raw["logprobs"] = [*self._logprobs, *(raw.get("logprobs") or ())]
        tokens, self._tokens, self._logprobs = delta.tokens + self._tokens, 0, []
        made = replace(delta, tokens=tokens, ids=None, raw=raw)
        if delta.kind is DeltaKind.TEXT:
            made.text = text
        elif delta.kind is DeltaKind.REASONING:
            made.reasoning = text
        return made
