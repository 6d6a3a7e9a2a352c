"""All histories of a client, one for each task, model and kind of score; with a store they outlive the program."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from disco.judging.confidence import SequenceConfidence
from disco.judging.early_exit import ExitHistory
from disco.judging.history_store import HistoryKey, HistoryStore, StoredHistory
from disco.judging.label_prior import LabelPrior
from disco.judging.score_history import ScoreHistory

__all__ = ["MOST_TASKS", "JudgeBook"]

MOST_TASKS = 256
_SAVED_EVERY = 100  # scores, where the store does not say otherwise
_NOTHING = StoredHistory((), 0)


class JudgeBook:
    """The histories by key, made when they are first needed. Mutable: the histories, and what is not saved yet.

    Not safe for threads: one event loop uses it.

    Args:
        store: where histories last between runs; None: nowhere.
    """

    def __init__(self, store: HistoryStore | None = None) -> None:
        self._store = store
        self._stored: dict[HistoryKey, StoredHistory] = {} if store is None else dict(store.load())
        self._histories: dict[HistoryKey, ScoreHistory] = {}
        self._priors: dict[HistoryKey, LabelPrior] = {}
        self._classes: dict[HistoryKey, int] = {}  # checksum of the classes that the prior is about
        self._exits: dict[HistoryKey, ExitHistory] = {}
        self._tasks: set[str] = set()
        self._saved: dict[HistoryKey, int] = {}  # by key, `_seen` when it was saved
        self._saved_every = int(getattr(store, "saved_every", _SAVED_EVERY))

    def restore(self, stored: Mapping[HistoryKey, StoredHistory]) -> dict[HistoryKey, StoredHistory]:
        """Begin histories with these where they have not begun yet; return those that will.

        Args:
            stored: histories of earlier runs, by key.
        """
        taken = {key: history for key, history in stored.items() if key not in self._histories}
        self._stored.update(taken)
        return taken

    def history(self, key: HistoryKey, capacity: int) -> ScoreHistory:
        """Return the history of a key; `capacity` counts when it is made.

        Args:
            key: whose scores, and how they are made.
            capacity: how many scores the history keeps, where it is made now.

        Raises:
            ValueError: there are `MOST_TASKS` tasks already.
        """
        history = self._histories.get(key)
        if history is None:
            self.check_task(key.task)
            self._tasks.add(key.task)
            kept = self._stored.get(key, _NOTHING)
            history = ScoreHistory(capacity, kept.scores, seen=kept.seen)
            self._histories[key] = history
            self._saved[key] = history.seen
        return history

    def scores_of(self, task: str, model: str) -> int:
        """Return how many scores of free answers or classes are kept for a task and a model; makes no history."""
        kept = [len(h) for key, h in self._histories.items() if (key.task, key.model) == (task, model)]
        stored = [len(s.scores) for key, s in self._stored.items() if (key.task, key.model) == (task, model)]
        return max((*kept, *stored), default=0)

    def exits(self, key: HistoryKey, kind: SequenceConfidence, capacity: int) -> ExitHistory:
        """Return the history of a key whose answers may go up before they are complete; see `history`.

        Args:
            key: whose scores, and how they are made.
            kind: how log probabilities become a score.
            capacity: how many scores the history keeps, where it is made now.
        """
        exits = self._exits.get(key)
        if exits is None:
            scores = self.history(key, capacity)
            kept = self._stored.get(key, _NOTHING).exits
            exits = ExitHistory(kind, scores=scores, exits=kept)
            self._exits[key] = exits
        return exits

    def check_task(self, task: str) -> None:
        """Raise ValueError where a task is one too many: a history for each request would never learn anything."""
        if task not in self._tasks and len(self._tasks) >= MOST_TASKS:
            raise ValueError(
                f"There are {MOST_TASKS} tasks already, so there can be none named {task!r}. A task names a kind of "
                "request, such as 'triage', and not a single one: answers are compared with earlier ones of the task."
            )

    def prior(self, key: HistoryKey, classes: Sequence[str], capacity: int) -> LabelPrior:
        """Return what a model prefers among a task's classes. Where these have changed, the prior begins anew.

        Args:
            key: whose scores, and how they are made.
            classes: the texts of the classes.
            capacity: how many answers the prior is made of, where it is made now.
        """
        checksum = zlib.crc32("\0".join(classes).encode("utf-8", "surrogatepass"))
        prior = self._priors.get(key)
        if prior is None or self._classes[key] != checksum:
            kept = self._stored.get(key, _NOTHING)
            is_same = prior is None and kept.classes == checksum
            rows = [row for row in kept.labels if len(row) == len(classes)] if is_same else []
            prior = LabelPrior(len(classes), capacity, rows)
            self._priors[key], self._classes[key] = prior, checksum
        return prior

    def unsaved(self, *, often: bool = False) -> dict[HistoryKey, StoredHistory]:
        """Return what has changed since the last call, for the store; empty without a store.

        The caller saves it, in a thread where that must not block. `often`: only after every hundredth score, or
        as many as the store wants (`saved_every`).
        """
        if self._store is None:
            return {}
        seen = {key: self._seen(key) for key in self._histories}
        new = {key: count - self._saved.get(key, 0) for key, count in seen.items()}
        if often and sum(new.values()) < self._saved_every:
            return {}
        changed = {key: self._kept(key) for key, scores in new.items() if scores}
        self._saved.update({key: seen[key] for key in changed})
        return changed

    def _seen(self, key: HistoryKey) -> int:
        """Return how many answers a history has seen; of a highest tier, which is not judged, its label prior."""
        prior = self._priors.get(key)
        return self._histories[key].seen or (0 if prior is None else prior.seen)

    def _kept(self, key: HistoryKey) -> StoredHistory:
        history, prior = self._histories[key], self._priors.get(key)
        labels = () if prior is None else tuple(prior)
        exits = self._exits[key].exits if key in self._exits else ()
        added = 0 if prior is None else prior.seen
        return StoredHistory(tuple(history), history.seen, labels, self._classes.get(key, 0), exits, added)
