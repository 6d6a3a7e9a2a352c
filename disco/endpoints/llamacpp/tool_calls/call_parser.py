"""Reading calls as they are written: pieces of text in, pieces of calls out."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from disco.endpoints.llamacpp.tool_calls.call_formats import CallFormat

__all__ = ["CallDelta", "CallReader"]


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A new call, when it has a name, or more of the arguments of the latest one."""

    index: int
    arguments: str = ""
    name: str | None = None
    id: str | None = None


class CallReader:
    """Reads what follows a form's `open`, however it is cut into pieces.

    Arguments are passed on as they stand, and as soon as they do.
    Mutable: `index` of the latest call, `whole` (no call is half written), and all that is private.

    Args:
        form: how the calls are written.
    """

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self.index = -1
        self.whole = False
        self._state = "literal"
        self._expected, self._next = form.before, "name"  # the literal that stands here, and what follows it
        self._name: list[str] = []
        self._depth = 0
        self._in_string = self._escaped = False

    def feed(self, text: str) -> list[CallDelta]:
        """Take the next piece of text.

        Raises:
            ValueError: it is not of the form, which the grammar rules out.
        """
        out: list[CallDelta] = []
        at = 0
        while at < len(text):
            if self._state == "literal":
                at = self._literal(text, at)
            elif self._state == "name":
                at = self._read_name(text, at, out)
            elif self._state == "arguments":
                at = self._read_arguments(text, at, out)
            else:
                self._go_on(text[at])
        return out

    def _go_on(self, char: str) -> None:
        """Behind a call: another one, or the end."""
        again, close = self._form.again, self._form.close
        if self._state == "behind" and again and char == again[0]:
            self.whole = False
            self._expect(again, "name")
        elif self._state == "behind" and close and char == close[0]:
            self._expect(close, "over")
        else:
            raise ValueError("something stands behind the calls")

    def _expect(self, literal: str, then: str) -> None:
        self._state, self._expected, self._next = "literal", literal, then

    def _literal(self, text: str, at: int) -> int:
        taken = text[at : at + len(self._expected)]
        if not self._expected.startswith(taken):
            raise ValueError(f"{self._expected!r} does not stand where it must")
        self._expected = self._expected[len(taken) :]
        if not self._expected:
            self._state = self._next
        return at + len(taken)

    def _read_name(self, text: str, at: int, out: list[CallDelta]) -> int:
        # Names hold neither quotes nor escapes.
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
