"""Saves the histories of scores while the client runs and when it closes."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import anyio.to_thread

from disco.endpoints.background_tasks import BackgroundTasks
from disco.judging import HistoryKey, HistoryStore, JudgeBook, StoredHistory
from disco.telemetry.log_lines import LOG

__all__ = ["HistorySaving"]


class HistorySaving:
    """Saves what a book has not saved yet, in a thread: a store may write its file as a whole.

    A store that says that it never waits (`waits`) is called at once: two threads may save in another order.
    """

    def __init__(self, book: JudgeBook, store: HistoryStore | None, host: BackgroundTasks) -> None:
        self._book, self._store, self._host = book, store, host

    def now_and_then(self) -> None:
        """Save in the background, after every hundredth score, or as often as the store wants."""
        changed = self._book.unsaved(often=True)
        if changed and not getattr(self._store, "waits", True):
            assert self._store is not None
            self._store.save(changed)
        elif changed and self._host.is_open:
            self._host.start_soon(self._save, changed)

    async def at_the_end(self) -> None:
        """Save all that is left."""
        if changed := self._book.unsaved():
            await self._save(changed)

    async def _save(self, changed: Mapping[HistoryKey, StoredHistory]) -> None:
        assert self._store is not None
        try:
            # Shielded: the book takes these as saved, and a client that is closed ends its background tasks.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.save, changed)
        except Exception as error:  # noqa: BLE001 - a store of the application's must not end the client's answers
            LOG.error("The histories of scores could not be saved: %s.", type(error).__name__)
