"""The seam between the text of one writer and the text of the next.

A target was given `prefix.sent` and is expected to continue it. Two texts may come before the continuation: the sent
text again (some servers echo it), and `prefix.withheld`, which the reader has seen but the target was not given. Both
are removed here, no matter into which pieces the target's text is split.

Whether the target echoes is never guessed: it is configured, or proved by a probe (`echoes`).

- True: the sent text comes first and is removed, however short it is.
- False: all text that may be a continuation is taken for one, and only the withheld text is removed.
- None, unknown: text that repeats the whole sent text (16 characters or more) and then differs is an echo, if the sent
  text does not repeat itself. Any other repetition of the sent text may be an answer that says the same thing again
  (a row of equal signs, a refrain). It is passed on: the reader can see repeated text, but lost text is gone.

In all three cases, text that does not begin with the withheld text is no continuation. If it is the sent text and the
withheld text instead, it is an echo, or a new answer that begins with the same words. A new answer is as good then.

The report says whether the seam is proved. It is "unproved" when `echoes` does not explain what the target wrote, and
when `echoes` is None and a repetition had to be judged by its text alone.

Two errors cannot be detected: a target that *restarts* its answer in other words looks like one that continues, and
so does a target that repeats less than 16 characters while `echoes` is unknown. Only a probe (see `probe.py`) can
tell.
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
    """The target did not continue exactly where the source was cut."""


class Seam:
    """Passes on a target's text from the point where it is new to the reader. Pure: no I/O, no clock.

    Args:
        prefix: the text that the target continues.
        echoes: whether the target repeats the sent text; None when that is not known.
    """

    # Mutable: `passed`; _held, text that is not decided yet; _head, the beginning of all text written, as far as the
    # verdict needs it (_head_room more characters); _only_echo, a cached result; the counts.
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
        """Return the part of `text`, and of text held back before it, that is new to the reader.

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
        """Return the held-back text that turns out to be no echo, at the end of the target's answer.

        Raises:
            SeamMismatchError: the answer ended within an echo, or before the withheld text was reproduced.
        """
        return "" if self.passed else self._decide(ended=True)

    @property
    def report(self) -> SeamReport:
        """Return the verdict on the text written so far."""
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
            # The text so far may be an echo or a continuation.
            if len(held) < len(withheld) or len(sent) < MIN_CHARS or self._repeats:
                return self._continues(ended=ended)
            beyond = held[len(sent) :]
            if len(held) < len(echo):
                if not ended:
                    return ""
                if len(held) < MIN_CHARS:
                    return self._continues(ended=True)
            elif sent.startswith(beyond[: len(sent)]):
                # The text may repeat the sent text once more: hold it back until it does, or differs.
                undecided = len(beyond) < len(sent) and not ended
                return "" if undecided else self._continues(ended=ended)
        return self._is_echo(ended=ended)

    def _continues(self, *, ended: bool) -> str:
        """Treat the held-back text as the continuation."""
        held, withheld = self._held, self._withheld
        if held.startswith(withheld):
            return self._pass_on(len(withheld))
        if not withheld.startswith(held):
            raise SeamMismatchError("the target did not reproduce the withheld text")
        if ended:
            raise SeamMismatchError("the answer ended before the withheld text")
        return ""

    def _is_echo(self, *, ended: bool) -> str:
        """Treat the held-back text as the sent text followed by the withheld text."""
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
        """Whether the removed text can be neither a continuation nor the echo of only a part of the sent text."""
        if self._only_echo is None:
            withheld = self._withheld
            echo = self._sent + withheld
            self._only_echo = not echo.startswith(withheld) and border_chars(echo) <= len(withheld)
        return self._only_echo

    def _is_doubtful(self, wrote: str) -> bool:
        """Whether the text passed on may have been an echo, in whole or in part, or a new beginning."""
        sent = self._sent
        same = common_chars(sent, wrote)
        if self._echoes is None:
            repeated = same == len(sent) or same >= MIN_CHARS
            return repeated or overlap_chars(sent, wrote) > 0
        # The target is known not to echo. If its text began as the answer did and then differed, it did echo, or it
        # began anew; unless the answer repeats itself, or the target's text continues the repetition.
        if same < MIN_CHARS or repeats_itself(sent):
            return False
        beyond = wrote[same:] if same == len(sent) else ""
        if same < len(sent):
            return same < len(wrote)
        return not sent.startswith(beyond[: len(sent)])
