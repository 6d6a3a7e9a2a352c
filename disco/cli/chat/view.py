"""What a chat needs of the place where it is shown: a terminal, or a pipe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

__all__ = ["AnswerView", "View"]


class AnswerView(Protocol):
    """Where an answer is shown while it is written."""

    def write(self, text: str, endpoint: str) -> None:
        """Show a piece of the answer, written by this endpoint."""
        ...

    def remark(self, text: str) -> None:
        """Show a line of the chat's own below the text so far; the answer goes on behind it."""
        ...


class View(Protocol):
    """Where a chat is shown.

    Attributes:
        is_live: whether the status is shown while a question is typed and while an answer is written.
    """

    is_live: bool

    def open(self) -> AbstractContextManager[object]:
        """Keep the terminal, if there is one, in the state that the chat needs until the block ends."""
        ...

    async def question(self) -> str:
        """Return what the user types next, of one or several lines.

        Raises:
            EOFError: the user ends the chat.
        """
        ...

    def answering(self, on_stop: Callable[[], None]) -> AbstractAsyncContextManager[AnswerView]:
        """Show an answer until the block ends; `on_stop` is called when the user wants no more of it."""
        ...

    def note(self, text: str) -> None:
        """Show a line, whatever is going on: a warning, for instance."""
        ...
