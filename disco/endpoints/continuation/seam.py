"""The seam between what one writer wrote and what the next one writes.

A target was given `prefix.sent` and is expected to write on. Two things may come first: the sent text
again (some servers echo it), and `prefix.withheld`, which the reader has seen but the target was not
given. Both are swallowed here, whatever the pieces the target's text arrives in.

Whether the target echoes is knowledge, not a guess: configured, or proved by a probe (`echoes`).

- True: the sent text comes first and is swallowed, however short it is.
- False: whatever may be a continuation is one, and only the withheld text is swallowed.
- None, unknown: what repeats the whole sent text (16 characters or more) and then goes on otherwise is an echo, where
  the sent text does not repeat itself. Whatever else repeats the sent text may be an answer that says the same
  thing again (a row of equal signs, a refrain). It is passed on: text said twice can be seen, lost text cannot.

Whatever is known: what does not begin with the withheld text is no continuation. If it is the sent text and the
withheld text instead, it is an echo, or an answer that was begun anew with the same words, which is as good.

The report says whether the seam is proved. It is "unproved" when the target did what the knowledge does not explain,
and when without knowledge a repetition had to be judged by its looks.

What cannot be seen: a target that *restarts* its answer in other words looks like one that continues, and so does one
that repeats less than 16 characters without having been declared. Only a probe (see `probe.py`) says.
"""

from __future__ import annotations

from typing import Literal

from disco.endpoints.continuation.repetition import (
    MIN_CHARS,
    border_chars,
    common_chars,
    overlap_chars,
    repeats_itself,
)
from disco.events import SeamReport
from disco.request import Prefix

__all__ = ["Seam", "SeamMismatchError"]


class SeamMismatchError(Exception):
    """The target did not write on exactly where the source was cut."""


class Seam:
    """Passes on a target's text from where it is new to the reader. Pure: no I/O, no clock.

    Args:
        prefix: what the target continues.
        echoes: whether the target repeats the sent text; None: not known.
    """

    # Mutable: `passed`; _held, what is not decided yet; _head, the beginning of all that was written, as far as the
    # verdict needs it (_head_room more characters); _only_echo, an answer that is kept; the counts.
    __slots__ = (
        *("_echoes", "_head", "_head_room", "_held", "_only_echo", "_repeats", "_sent", "_withheld"),
        *("_swallowed_chars", "_written_chars", "passed"),
    )

    def __init__(self, prefix: Prefix, *, echoes: bool | None) -> None:
        self._sent, self._withheld = prefix.sent, prefix.withheld
        self._echoes = echoes if self._sent else False
        self._repeats = self._echoes is None and repeats_itself(self._sent)
        self._only_echo: bool | None = None
        self._held = ""
        self._head: list[str] = []
        self._head_room = 2 * len(self._sent)
        self._written_chars = self._swallowed_chars = 0
        self.passed = self._echoes is False and not self._withheld
        """True when everything from here on is new text."""

    def feed(self, text: str) -> str:
        """The part of `text`, and of text held back before it, that is new to the reader.

        Raises:
            SeamMismatchError: the withheld text was not reproduced.
        """
        self._written_chars += len(text)
        if self._head_room > 0:
            self._head.append(text)
            self._head_room -= len(text)
        if self.passed:
            return text
        self._held += text
        return self._decide(ended=False)

    def end(self) -> str:
        """Text held back that turns out to be no echo, at the end of the target's answer.

        Raises:
            SeamMismatchError: the answer ended within an echo, or before the withheld text was reproduced.
        """
        return "" if self.passed else self._decide(ended=True)

    @property
    def report(self) -> SeamReport:
        """The verdict on what has been written so far."""
        return SeamReport(self._verdict(), len(self._sent), self._written_chars, self._swallowed_chars)

    def _decide(self, *, ended: bool) -> str:
        held, sent, withheld = self._held, self._sent, self._withheld
        echo = sent + withheld
        may_continue = withheld.startswith(held[: len(withheld)])
        if not echo.startswith(held[: len(echo)]):
            return self._continues(ended=ended)
        if self._echoes is False and (may_continue or not self._can_only_be_echo):
            return self._continues(ended=ended)
        if self._echoes is None and may_continue:
            # So far it may be either.
            if len(held) < len(withheld) or len(sent) < MIN_CHARS or self._repeats:
                return self._continues(ended=ended)
            beyond = held[len(sent) :]
            if len(held) < len(echo):
                if not ended:
                    return ""
                if len(held) < MIN_CHARS:
                    return self._continues(ended=True)
            elif sent.startswith(beyond[: len(sent)]):
                # It may repeat the sent text once more: held back until it does, or does otherwise.
                undecided = len(beyond) < len(sent) and not ended
                return "" if undecided else self._continues(ended=ended)
        return self._is_echo(ended=ended)

    def _continues(self, *, ended: bool) -> str:
        """Treat what is held back as the continuation."""
        held, withheld = self._held, self._withheld
        if held.startswith(withheld):
            return self._pass_on(len(withheld))
        if not withheld.startswith(held):
            raise SeamMismatchError("the target did not reproduce the withheld text")
        if ended:
            raise SeamMismatchError("the answer ended before the withheld text")
        return ""

    def _is_echo(self, *, ended: bool) -> str:
        """Treat what is held back as the sent text and, behind it, the withheld text."""
        held, echo_chars = self._held, len(self._sent) + len(self._withheld)
        if len(held) >= echo_chars:
            return self._pass_on(echo_chars)
        if ended and (held or self._withheld):
            raise SeamMismatchError("the answer ended while it repeated what had been sent")
        return ""

    def _pass_on(self, swallowed_chars: int) -> str:
        text = self._held[swallowed_chars:]
        self._swallowed_chars = swallowed_chars
        self._held = ""
        self.passed = True
        return text

    def _verdict(self) -> Literal["continued", "echo", "unproved"]:
        sent = self._sent
        if not sent or not self._written_chars:
            return "continued"
        if self._swallowed_chars > len(self._withheld):
            return "echo" if self._echoes is True or self._can_only_be_echo else "unproved"
        if self._echoes is True:
            return "unproved"
        return "unproved" if self._is_doubtful("".join(self._head)) else "continued"

    @property
    def _can_only_be_echo(self) -> bool:
        """Whether what was swallowed is no continuation, and not the echo of a part of the sent text either."""
        if self._only_echo is None:
            withheld = self._withheld
            echo = self._sent + withheld
            self._only_echo = not echo.startswith(withheld) and border_chars(echo) <= len(withheld)
        return self._only_echo

    def _is_doubtful(self, wrote: str) -> bool:
        """Whether what went on may as well have been an echo, in whole or in part, or a new beginning."""
        sent = self._sent
        same = common_chars(sent, wrote)
        if self._echoes is None:
            repeated = same == len(sent) or same >= MIN_CHARS
            return repeated or overlap_chars(sent, wrote) > 0
        # It does not echo. If it began as the answer did and then went on otherwise, it did echo, or it began anew;
        # unless the answer repeats itself, or goes on repeating itself.
        if same < MIN_CHARS or repeats_itself(sent):
            return False
        beyond = wrote[same:] if same == len(sent) else ""
        if same < len(sent):
            return same < len(wrote)
        return not sent.startswith(beyond[: len(sent)])
