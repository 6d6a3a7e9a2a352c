"""Reads calls while they are written: takes pieces of text, returns pieces of calls."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from disco.endpoints.llamacpp.tool_calls.call_formats import CallFormat

__all__ = ["CallDelta", "CallReader"]


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A new call if it has a name, else more of the arguments of the latest call."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


class CallReader:
    """Reads the text after a form's `open`, in pieces of any length.

    Arguments are passed on unchanged, as soon as they are written.
    Mutable: `index` of the latest call, `whole` (no call is incomplete), and all private attributes.

    Args:
        form: how the calls are written.
        spaced: there may be any blanks between the parts of the JSON.
    """

    def __init__(self, form: CallFormat, *, spaced: bool = False) -> None:
        self._form = form
        self._spaced = spaced
        self.index = -1
        self.whole = False
        self._state = "literal"
        self._expected, self._next = form.before, "name"  # the literal expected now, and what follows it
        self._name: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> list[CallDelta]:
        """Take the next piece of text.

        Raises:
            ValueError: the text does not have the form. The grammar rules that out.
        """
        out: list[CallDelta] = []
        at = 0
        while at < len(text):
            if self._spaced and not self._name and not self._depth and text[at].isspace():
                at += 1
            elif self._state == "literal":
                at = self._literal(text, at)
            elif self._state == "name":
                at = self._read_name(text, at, out)
            elif self._state == "arguments":
                at = self._read_arguments(text, at, out)
            else:
                self._go_on(text[at])
        return out

    def _go_on(self, char: str) -> None:
        """Read the first character behind a call: of another call, or of the end."""
        again, close = self._form.again, self._form.close
        if self._state == "behind" and again and char == again[0]:
            self.whole = False
            self._expect(again, "name")
        elif self._state == "behind" and close and char == close[0]:
            self._expect(close, "over")
        else:
            raise ValueError("there is text behind the calls")

    def _expect(self, literal: str, then: str) -> None:
        self._state, self._expected, self._next = "literal", literal, then

    def _literal(self, text: str, at: int) -> int:
        if self._spaced:
            self._expected = self._expected.lstrip()
            if self._expected and text[at] != self._expected[0]:
                raise ValueError(f"{self._expected!r} is missing where the form requires it")
            self._expected = self._expected[1:].lstrip()
            if not self._expected:
                self._state = self._next
            return at + 1
        taken = text[at : at + len(self._expected)]
        if not self._expected.startswith(taken):
            raise ValueError(f"{self._expected!r} is missing where the form requires it")
        self._expected = self._expected[len(taken) :]
        if not self._expected:
            self._state = self._next
        return at + len(taken)

    def _read_name(self, text: str, at: int, out: list[CallDelta]) -> int:
        # Names contain neither quotes nor escapes.
        opening = not self._name
        end = text.find('"', at + opening)
        self._name.append(text[at : end if end >= 0 else len(text)])
        if end < 0:
            return len(text)
        self.index += 1
        name = "".join(self._name).removeprefix('"')
        out.append(CallDelta(self.index, name=name, id=f"call_{uuid.uuid4().hex[:24]}"))
        self._name = []
        self._expect(self._form.between, "arguments")
        return end + 1

    def _read_arguments(self, text: str, at: int, out: list[CallDelta]) -> int:
        end = at
        while end < len(text):
            char = text[end]
            end += 1
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if not self._depth:
                    self.whole = True
                    self._expect(self._form.after, "behind")
                    break
        out.append(CallDelta(self.index, text[at:end]))
        return end
