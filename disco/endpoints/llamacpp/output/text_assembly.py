"""Turns token pieces into text that may be shown: whole characters, and no part of a stop string.

The code here is deterministic and does no I/O; the worker and the tests feed it alike.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from disco.events import Delta

__all__ = ["TextAssembler"]


@dataclass(slots=True)
class _Group:
    """The smallest run of tokens that spells whole characters."""

    text: str = ""
    spelled: bytes = b""
    ids: list[int] = field(default_factory=list)
    exact: bool = True  # the ids spell `spelled` and no text before it
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)

    def delta(self, text: str | None = None) -> Delta:
        exact = self.exact and text is None and self.spelled == self.text.encode()
        return Delta(
            text=self.text if text is None else text,
            tokens=len(self.ids),
            ids=tuple(self.ids) if exact else None,
            logprobs={"content": self.logprobs, "refusal": None} if self.logprobs else None,
            logp=tuple(self.logp) if self.logp else None,
        )


class TextAssembler:
    """Turns token pieces into deltas whose ids spell exactly their text.

    A delta ends where the tokens so far spell whole characters and where no stop string can have begun.
    Bytes that are not UTF-8, which a model may write, are dropped.
    Mutable: `_decoder`, `_open`, `_held`, `_tail`, `_stops`, `stopped`, `stopped_by`, `beyond`.

    Attributes:
        stopped: whether a stop string is complete.
        stopped_by: that stop string.
        beyond: the bytes behind the stop string, of the tokens that completed it.

    Args:
        stops: the stop strings; none of them is ever released, whole or in part.
        before: the answer so far. A stop string may begin in that text.
        only_first: one of `stops` that counts only where nothing but blanks precedes it.
    """

    def __init__(self, stops: Sequence[str] = (), before: str = "", *, only_first: str | None = None) -> None:
        if only_first is not None and before.strip():
            stops = [stop for stop in stops if stop != only_first]
            only_first = None
        self._only_first = only_first
        self._stops = tuple(stop for stop in stops if stop)
        self._reach = max((len(stop) for stop in self._stops), default=1) - 1
        self._tail = before[-self._reach :] if self._reach else ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._open = _Group()
        self._held: list[_Group] = []
        self.stopped = False
        self.stopped_by = ""
        self.beyond = b""

    def push(
        self,
        token: int,
        piece: bytes,
        *,
        exact: bool = True,
        logprob: dict[str, Any] | None = None,
        logp: float | None = None,
    ) -> list[Delta]:
        """Take one token; return what may be shown now. Sets `stopped` once a stop string is complete.

        Args:
            token: the token's id.
            piece: the bytes that the token adds to the answer.
            exact: False when `piece` is only the end of what the token spells.
            logprob: an entry of `ChoiceLogprobs.content`, where the application asked for log probabilities.
            logp: the token's log probability, where disco itself asked for it.
        """
        group = self._open
        group.text += self._decoder.decode(piece)
        group.spelled += piece
        group.ids.append(token)
        group.exact = group.exact and exact
        if logprob is not None:
            group.logprobs.append(logprob)
        if logp is not None:
            group.logp.append(logp)
        if not group.text or self._decoder.getstate()[0]:
            return []
        self._open = _Group()
        if not self._stops:
            return [group.delta()]
        self._held.append(group)
        return self._release()

    def flush(self) -> list[Delta]:
        """Return the text that was held back, at the answer's end. An unfinished character is dropped."""
        if self.stopped:
            return []
        deltas = [group.delta() for group in self._held]
        self._held = []
        if self._open.text:
            # Whole characters of a token whose last bytes begin a character that was never finished.
            deltas.append(self._open.delta(self._open.text))
        elif self._open.ids and deltas:
            deltas[-1] = self._with_unseen(deltas[-1])
        return deltas

    def _with_unseen(self, delta: Delta) -> Delta:
        # Tokens without text still count; the ids would then no longer spell exactly the text.
        delta.tokens += len(self._open.ids)
        if delta.logp is not None:
            delta.logp += tuple(self._open.logp)
        delta.ids = None
        return delta

    def _release(self) -> list[Delta]:
        text = self._tail + "".join(group.text for group in self._held)
        shown = len(self._tail)
        if self._only_first is not None:
            self._forget_if_late(text)
        found = self._first_stop(text, shown)
        if found is not None:
            at, self.stopped_by = found
            self.stopped = True
            self.beyond = text[at + len(self.stopped_by) :].encode() + self._decoder.getstate()[0]
            return self._cut(at, shown)
        safe = self._first_possible_stop(text)
        deltas = []
        end = shown
        while self._held and end + len(self._held[0].text) <= safe:
            group = self._held.pop(0)
            end += len(group.text)
            deltas.append(group.delta())
        if end > shown:
            self._tail = text[max(0, end - self._reach) : end]
        return deltas

    def _forget_if_late(self, text: str) -> None:
        # Before the stop string is dropped, only blanks are released, so `text` lacks nothing that matters.
        begun, wanted = text.lstrip(), self._only_first or ""
        if not begun.startswith(wanted) and not wanted.startswith(begun):
            self._stops = tuple(stop for stop in self._stops if stop != wanted)
            self._only_first = None

    def _first_stop(self, text: str, shown: int) -> tuple[int, str] | None:
        """Return the position and the text of the stop string that is complete first; ties go to the longest.

        The result does not depend on the pieces in which the text arrives.
        """
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            at = text.find(stop, max(0, shown - len(stop) + 1))
            if at >= 0 and (best is None or (at + len(stop), at) < best[:2]):
                best = (at + len(stop), at, stop)
        return None if best is None else best[1:]

    def _first_possible_stop(self, text: str) -> int:
        for at in range(max(0, len(text) - self._reach), len(text)):
            rest = text[at:]
            if any(stop.startswith(rest) for stop in self._stops):
                return at
        return len(text)

    def _cut(self, at: int, shown: int) -> list[Delta]:
        deltas = []
        end = shown
        for group in self._held:
            begin, end = end, end + len(group.text)
            if end <= at:
                deltas.append(group.delta())
            elif begin < at:
                deltas.append(group.delta(group.text[: at - begin]))
        self._held = []
        return deltas
