"""A program on an emulated terminal: what a user types goes in, and the screen that the user would see comes out."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte

__all__ = ["EmulatedTerminal", "chat"]

ROOT = Path(__file__).parents[3]
PROGRAM = "import sys; from disco.cli import main; sys.exit(main())"
WITHIN_S = 60.0  # a busy machine loads a model in several seconds


class EmulatedTerminal:
    """A running program, and its screen. Mutable: the screen, as the program writes.

    Attributes:
        screen: `screen.display` has the lines; what has scrolled out at the top is in `screen.history.top`.
        sent: everything that the program wrote, escape sequences included.
    """

    def __init__(self, command: list[str], *, columns: int, rows: int, env: dict[str, str]) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._child = pexpect.spawn(
            command[0], command[1:], dimensions=(rows, columns), env=env, cwd=str(ROOT), timeout=WITHIN_S
        )
        self.sent = b""
        self._lines: list[str] | None = None  # of the screen as it is

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self._lines = None
        self._child.setwinsize(rows, columns)  # the program gets SIGWINCH

    @property
    def lines(self) -> list[str]:
        """All lines, those that have scrolled out included, without the spaces at their ends."""
        if self._lines is None:
            rows = [*self.screen.history.top, *(self.screen.buffer[at] for at in range(self.screen.lines))]
            texts = ("".join(row[at].data for at in range(max(row, default=-1) + 1)) for row in rows)
            self._lines = [text.rstrip() for text in texts]
        return self._lines

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def echoes(self) -> bool:
        """Whether the terminal itself shows keys, and takes Ctrl-C for a signal."""
        return bool(termios.tcgetattr(self._child.child_fd)[3] & (termios.ECHO | termios.ISIG))

    @property
    def is_ready(self) -> bool:
        """Whether the chat waits for a question: an empty prompt stands above the status line."""
        return [line for line in self.lines if line][-2:-1] == ["you:"]

    def ready(self) -> None:
        self.until(lambda: self.is_ready)

    def since(self, text: str) -> list[str]:
        """The lines below the last one that is this text."""
        lines = self.lines
        return lines[len(lines) - lines[::-1].index(text) :]

    @property
    def bar(self) -> str:
        """The last line that is not empty: the status line, while there is one."""
        return next((line for line in reversed(self.lines) if line), "")

    def until(self, what: Callable[[], object] | str, within_s: float = WITHIN_S) -> None:
        """Read what the program writes until `what()` holds, or until this text is on the screen."""
        holds = (lambda: what in self.text) if isinstance(what, str) else what
        deadline = time.monotonic() + within_s
        while not holds():
            self._read(0.1)
            if time.monotonic() > deadline:
                raise AssertionError(f"the screen does not come to that: {what}\n{self.text}")

    def _read(self, timeout_s: float) -> None:
        data = b""
        try:
            while more := self._child.read_nonblocking(65536, timeout_s):
                data, timeout_s = data + more, 0.0  # all that is there: the screen is looked at once
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            if not self._child.closed:
                self._child.close()
            raise AssertionError(f"the program has ended\n{self.text}") from None
        self.sent += data
        self._stream.feed(data)
        self._lines = None

    def ended(self) -> int:
        """Wait for the program's end, and return its exit status."""
        with contextlib.suppress(AssertionError):
            self.until(lambda: False)
        self._child.close()
        return self._child.exitstatus

    def close(self) -> None:
        self._child.close(force=True)


@contextlib.contextmanager
def chat(
    *arguments: str, columns: int = 80, rows: int = 24, server: str | None = None, **env: str
) -> Iterator[EmulatedTerminal]:
    """Run `disco chat` on an emulated terminal; `server`: the base URL of the server."""
    ours = {"NO_COLOR", "COLUMNS", "LINES"}  # what the terminal says counts, not what a test runner sets
    around = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_") and k not in ours}
    around |= {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "DISCO_STATE": "off", "DISCO_POWER": "off"}
    around |= {"DISCO_ATTACH": "off", "LC_ALL": "C.UTF-8"}
    if server is not None:
        around |= {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": server}
    command = [sys.executable, "-c", PROGRAM, "chat", *arguments]
    terminal = EmulatedTerminal(command, columns=columns, rows=rows, env={**around, **env})
    try:
        yield terminal
    finally:
        terminal.close()
