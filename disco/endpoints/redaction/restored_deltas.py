"""The deltas of an answer with the originals put back: in texts, and in a vendor's own chunks and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from openai.types.chat.chat_completion_chunk import ChoiceLogprobs

from disco.endpoints.openai_api.chunk_template import TemplateChunk
from disco.endpoints.redaction.restored_events import RestoredEvents
from disco.endpoints.redaction.restored_text import HeldText, Restorer
from disco.events import Delta, DeltaKind, ToolCallDelta

__all__ = ["RestoredDeltas"]

_Path = tuple[Any, ...]
_TEXT = DeltaKind.TEXT


class RestoredDeltas:
    """Puts the originals back into the deltas of one attempt.

    Text that may be the beginning of a placeholder waits for the next delta, with its tokens and log probabilities.
    Log probabilities stay those of the tokens that the server wrote.

    Args:
        restorer: puts the originals back.
        is_json: whether the answer's text is JSON.
    """

    # Mutable: _texts, by their place in the answer; _waiting, the delta whose whole text is held.
    __slots__ = ("_events", "_is_json", "_restorer", "_texts", "_waiting")

    def __init__(self, restorer: Restorer, *, is_json: bool) -> None:
        self._restorer = restorer
        self._is_json = is_json
        self._events = RestoredEvents(restorer, is_json=is_json)
        self._texts: dict[_Path, HeldText] = {}
        self._waiting: Delta | None = None

    def pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas with their originals, less what is held back."""
        passed: list[Delta] = []
        for delta in deltas:
            if type(delta.raw) is dict:
                passed += self._events.pass_on(delta)
            elif delta.kind is _TEXT:
                passed += self._rest_of("reasoning", "call")
                passed += self._text(delta)
            elif delta.kind is DeltaKind.ROLE:
                passed.append(self._with_raw(delta))
            else:
                passed += self._rest_of("text")
                passed.append(self._other(delta))
        return passed

    def end(self) -> list[Delta]:
        """Return what is held back, at the end of the answer."""
        return [*self._events.end(), *self._rest_of("text", "reasoning", "call")]

    def last(self, raw: Any) -> Any:
        """Return the vendor's last chunk or event with the originals."""
        return self._events.whole(raw) if type(raw) is dict else raw

    def _text_at(self, *path: Any, is_json: bool = False) -> HeldText:
        found = self._texts.get(path)
        if found is None:
            found = self._texts[path] = HeldText(self._restorer, is_json=is_json)
        return found

    def _text(self, delta: Delta) -> list[Delta]:
        held = self._text_at("text", is_json=self._is_json)
        text = held.feed(delta.text)
        if text == delta.text and self._waiting is None and delta.ids is None:
            return [delta]
        whole = _joined(self._waiting, delta)
        if not text:
            self._waiting = whole
            return []
        # What is held is a part of this delta's text; its token counts here.
        self._waiting = None
        return [_with_text(whole, text)]

    def _other(self, delta: Delta) -> Delta:
        """Return a delta with reasoning or calls."""
        reasoning = self._text_at("reasoning").feed(delta.reasoning) if delta.reasoning else ""
        calls = tuple(
            replace(call, arguments=self._text_at("call", call.index, is_json=True).feed(call.arguments))
            for call in delta.tool_calls
        )
        return self._with_raw(replace(delta, ids=None, reasoning=reasoning, tool_calls=calls))

    def _with_raw(self, delta: Delta) -> Delta:
        raw = delta.raw.made() if type(delta.raw) is TemplateChunk else delta.raw
        if raw is None:
            return delta
        choices = []
        for choice in raw.choices:
            kept = choice.delta.model_dump(exclude_unset=True, warnings=False)
            restored = {
                name: self._walked(value, ("raw", choice.index, name)) for name, value in kept.items()
            }
            choices.append(choice.model_copy(update={"delta": type(choice.delta).construct(**restored)}))
        return replace(delta, raw=raw.model_copy(update={"choices": choices}))

    def _walked(self, value: Any, path: _Path) -> Any:
        """Return the JSON of a chunk's field; its texts go on from those at the same place in earlier chunks."""
        if isinstance(value, str):
            is_json = path[-1] == "arguments" or (path[-1] == "content" and self._is_json)
            return self._text_at(*path, is_json=is_json).feed(value)
        if isinstance(value, dict):
            return {name: self._walked(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self._walked(item, (*path, _number_of(item, at))) for at, item in enumerate(value)]
        return value

    def _rest_of(self, *kinds: str) -> list[Delta]:
        """Return what is held back of texts of these kinds, where something else follows."""
        rest: list[Delta] = []
        for path, held in self._texts.items():
            if path[0] not in kinds or not held.held:
                continue
            text = held.end()
            if path[0] == "text":
                waiting, self._waiting = self._waiting, None
                rest.append(_with_text(waiting or Delta("", 0), text))
            elif path[0] == "reasoning":
                rest.append(Delta("", 0, DeltaKind.REASONING, reasoning=text))
            else:
                rest.append(Delta("", 0, DeltaKind.TOOL, tool_calls=(ToolCallDelta(path[1], text),)))
        return rest


def _number_of(item: Any, at: int) -> int:
    number = item.get("index") if isinstance(item, dict) else None
    return number if isinstance(number, int) else at


def _joined(first: Delta | None, second: Delta) -> Delta:
    """Return the second delta with the tokens of the first, of which the reader has nothing."""
    if first is None:
        return replace(second, ids=None)
    if first.logp is None or second.logp is None:
        logp = first.logp if not second.tokens else second.logp if not first.tokens else None
    else:
        logp = first.logp + second.logp
    return replace(
        second,
        tokens=first.tokens + second.tokens,
        ids=None,
        logprobs=_joined_logprobs(first.logprobs, second.logprobs),
        logp=logp,
        label_scores=second.label_scores if first.label_scores is None else first.label_scores,
        raw=first.raw if second.raw is None else second.raw,
    )


def _joined_logprobs(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return second if first is None else first
    lists = {name: [*(first.get(name) or ()), *(second.get(name) or ())] for name in ("content", "refusal")}
    return {**second, **{name: entries or None for name, entries in lists.items()}}


def _with_text(delta: Delta, text: str) -> Delta:
    """Return a delta with another text, in its vendor's chunk, too."""
    raw = delta.raw.made() if type(delta.raw) is TemplateChunk else delta.raw
    if raw is not None:
        choice = raw.choices[0]
        name = "refusal" if delta.refusal else "content"
        changed: dict[str, Any] = {"delta": choice.delta.model_copy(update={name: text})}
        if delta.logprobs is not None:
            changed["logprobs"] = ChoiceLogprobs.construct(**delta.logprobs)
        raw = raw.model_copy(update={"choices": [choice.model_copy(update=changed)]})
    return replace(delta, text=text, raw=raw)
