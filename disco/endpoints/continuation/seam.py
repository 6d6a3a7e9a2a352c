"""The seam between what one writer wrote and what the next one writes.

A target was given `prefix.sent` and is expected to write on. Two things may come first: the sent text
again (some servers echo it), and `prefix.withheld`, which the reader has seen but the target was not
given. Both are swallowed here, whatever the pieces the target's text arrives in.

What cannot be told apart: a target that *restarts* its answer in other words looks like one that continues;
only a probe of the method (see `probe.py`) says which. And a continuation that by chance repeats the whole
sent text (a refrain) looks like an echo; it is taken for one.
"""

from __future__ import annotations

from disco.request import Prefix

__all__ = ["MIN_ECHO_CHARS", "Seam", "SeamMismatchError"]

MIN_ECHO_CHARS = 16
"""A sent text shorter than this is no evidence: "The" may well begin the next sentence, too."""


class SeamMismatchError(Exception):
    """The target did not write on exactly where the source was cut."""


class Seam:
    """Passes on a target's text from where it is new to the reader. Pure: no I/O, no clock.

    Args:
        prefix: what the target continues.
        may_echo: the target may repeat the sent text; watched for when it has `MIN_ECHO_CHARS`.
        echoes: the target is known to repeat the sent text; then shorter ones are watched for as well.
    """

    # Mutable: _echo and _withheld, what is still to be swallowed; _held, what may yet turn out an echo.
    __slots__ = ("_echo", "_held", "_withheld")

    def __init__(self, prefix: Prefix, *, may_echo: bool, echoes: bool = False) -> None:
        watched = echoes or (may_echo and len(prefix.sent) >= MIN_ECHO_CHARS)
        self._echo = prefix.sent if watched else ""
        self._withheld = prefix.withheld
        self._held = ""

    @property
    def passed(self) -> bool:
        """True when everything from here on is new text."""
        return not self._echo and not self._withheld

    def feed(self, text: str) -> str:
        """The part of `text`, and of text held back before it, that is new to the reader.

        Raises:
            SeamMismatchError: the withheld text was not reproduced.
        """
        if self._echo:
            self._held += text
            if self._held.startswith(self._echo):
                text = self._held[len(self._echo) :]
            elif self._echo.startswith(self._held):
                return ""
            else:
                text = self._held
            self._echo = self._held = ""
        return self._swallow_withheld(text)

    def end(self) -> str:
        """Text held back that turns out to be no echo, at the end of the target's answer.

        Raises:
            SeamMismatchError: the answer ended within an echo, or before the withheld text was reproduced.
        """
        held, echo = self._held, self._echo
        self._held = self._echo = ""
        if echo and len(held) >= MIN_ECHO_CHARS:
            raise SeamMismatchError("the answer ended while it repeated what had been sent")
        text = self._swallow_withheld(held)
        if self._withheld:
            raise SeamMismatchError("the answer ended before the withheld text")
        return text

    def _swallow_withheld(self, text: str) -> str:
        expected = self._withheld
        if not expected or not text:
            return text
        if text.startswith(expected):
            self._withheld = ""
            return text[len(expected) :]
        if expected.startswith(text):
            self._withheld = expected[len(text) :]
            return ""
        raise SeamMismatchError("the target did not reproduce the withheld text")
