"""A chat line by line, for pipes and for terminals that cannot move their cursor."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import anyio
import anyio.to_thread

from disco.cli.console import Screen

__all__ = ["PlainView"]


class PlainView:
    """Reads lines from standard input and prints answers as they come; see `View`.

    Args:
        screen: where answers are printed.
        prompt: printed before each question; empty for a pipe.
    """

    is_live = False

    def __init__(self, screen: Screen, prompt: str) -> None:
        self._screen = screen
        self._prompt = prompt

    def open(self) -> AbstractContextManager[None]:
        """See `View.open`. Nothing is to be done."""
        return nullcontext()

    async def question(self) -> str:
        """See `View.question`. A line that ends in a backslash goes on in the next one."""
        lines = [await self._line(self._prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(await self._line("... " if self._prompt else ""))
        return "\n".join(lines)

    async def _line(self, prompt: str) -> str:
        if sys.stdin is None or sys.stdout is None:  # closed, which `input` does not take for the end
            raise EOFError
        if (
            prompt and sys.platform != "win32"
        ):  # not in a thread, which Ctrl-C would leave to wait for another line
            print(prompt, end="", flush=True)
            await anyio.wait_readable(sys.stdin)  # a terminal gives whole lines
            return input()  # noqa: ASYNC250 - the line is there
        return await anyio.to_thread.run_sync(input, prompt, abandon_on_cancel=True)

    @asynccontextmanager
    async def answering(self, on_stop: Callable[[], None]) -> AsyncIterator[PlainView]:
        """See `View.answering`. Ctrl-C stops the answer at a terminal; in a pipe, it ends the program."""
        if self._prompt and sys.platform != "win32":  # Windows has no such receiver
            async with anyio.create_task_group() as group:
                await group.start(_on_interrupt, on_stop)
                yield self
                group.cancel_scope.cancel()
        else:
            yield self
        self._screen.flush_line()

    def write(self, text: str, endpoint: str) -> None:
        """See `AnswerView.write`."""
        self._screen.stream(text, endpoint)

    def remark(self, text: str) -> None:
        """See `AnswerView.remark`."""
        self._screen.line(text, style="dim")

    def note(self, text: str) -> None:
        """See `View.note`."""
        self._screen.line(text, style="yellow")


async def _on_interrupt(on_stop: Callable[[], None], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            on_stop()
