"""Turns token pieces into text that may be shown: whole characters, and no part of a stop string.

The code here is deterministic and does no I/O; the worker and the tests feed it alike.
"""

from __future__ import annotations

import codecs
from collections import deque
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


class _Search:
    """Looks for one stop string, character by character, after Knuth, Morris and Pratt.

    A character costs the same however long the stop string is. Mutable: `begun`.

    Attributes:
        stop: the stop string.
        begun: how many of its characters the text so far ends with.
    """

    __slots__ = ("_shorter", "begun", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.begun = 0
        # By the length of a beginning of `stop`: the length of the longest shorter one that it ends with.
        self._shorter = [0, 0]
        for char in stop[1:]:
            length = self._shorter[-1]
            while length and stop[length] != char:
                length = self._shorter[length]
            self._shorter.append(length + (stop[length] == char))

    def push(self, char: str) -> bool:
        """Take the next character; return whether the stop string is complete with it."""
        stop, begun = self.stop, self.begun
        if begun == len(stop):
            begun = self._shorter[begun]
        while begun and stop[begun] != char:
            begun = self._shorter[begun]
        self.begun = begun + (stop[begun] == char)
        return self.begun == len(stop)


class TextAssembler:
    """Turns token pieces into deltas whose ids spell exactly their text.

    A delta ends where the tokens so far spell whole characters and where no stop string can have begun.
    Bytes that are not UTF-8, which a model may write, are dropped. A token costs time in proportion to its own
    characters and to the number of stop strings, not to their length or to the text that is held back.
    Mutable: `_decoder`, `_open`, `_held` and `_held_chars`, `_searches`, `_only_first` and `_leading` (the answer's
    first characters, blanks apart), `stopped`, `stopped_by`, `beyond`.

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
        self._only_first, self._leading = only_first, ""
        self._searches = [_Search(stop) for stop in stops if stop]
        reach = max((len(one.stop) for one in self._searches), default=1) - 1
        for char in before[-reach:] if reach else "":
            for search in self._searches:
                search.push(char)
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._open = _Group()
        self._held: deque[_Group] = deque()
        self._held_chars = 0
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
        if self._only_first is not None:
            self._forget_if_late(group.text)
        if not self._searches and not self._held:
            return [group.delta()]
        self._held.append(group)
        self._held_chars += len(group.text)
        behind = self._look_for_stops(group.text)
        if behind is None:
            return self._release()
        return self._cut(self._held_chars - behind - len(self.stopped_by))

    def flush(self) -> list[Delta]:
        """Return the text that was held back, at the answer's end. An unfinished character is dropped."""
        if self.stopped:
            return []
        deltas = [group.delta() for group in self._held]
        self._held.clear()
        self._held_chars = 0
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

    def _forget_if_late(self, text: str) -> None:
        """Drop the stop string that counts only at the beginning, once something else stands there."""
        wanted = self._only_first or ""
        self._leading = (self._leading + text).lstrip()[: len(wanted)]
        if not wanted.startswith(self._leading):
            self._searches = [search for search in self._searches if search.stop != wanted]
            self._only_first = None

    def _look_for_stops(self, text: str) -> int | None:
        """Search the newest text for the stop string that is complete first; of two, the longer one.

        Returns:
            How many characters of the text are behind it; None where there is none.
        """
        for end, char in enumerate(text, start=1):
            complete = [search.stop for search in self._searches if search.push(char)]
            if complete:
                self.stopped, self.stopped_by = True, max(complete, key=len)
                self.beyond = text[end:].encode() + self._decoder.getstate()[0]
                return len(text) - end
        return None

    def _release(self) -> list[Delta]:
        """Return what is held back and in which no stop string can have begun."""
        unsafe = max((search.begun for search in self._searches), default=0)
        deltas = []
        while self._held and self._held_chars - len(self._held[0].text) >= unsafe:
            group = self._held.popleft()
            self._held_chars -= len(group.text)
            deltas.append(group.delta())
        return deltas

    def _cut(self, length: int) -> list[Delta]:
        """Return the first so many characters of what is held back, and drop the rest."""
        deltas = []
        end = 0
        for group in self._held:
            begin, end = end, end + len(group.text)
            if end <= length:
                deltas.append(group.delta())
            elif begin < length:
                deltas.append(group.delta(group.text[: length - begin]))
        self._held.clear()
        self._held_chars = 0
        return deltas
