"""What the live page shows: the answers that are being written, the last ones that were, and sums of all.

Numbers, names of models and endpoints, and classes of failures. Texts only where the owner of the server asked for
them. Everything is bounded: a number of answers, so many characters of a text, sums by the names in the configuration.
While nobody watches, an answer costs some sums, and its route record is kept without the times of its tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Final

from disco.client.live_driver import LiveSession
from disco.client.session_watch import sessions_told
from disco.cost import Phase
from disco.server.live_page.answer_facts import finished_facts, running_facts
from disco.server.live_page.answer_text import AnswerText, prompt_text
from disco.session.records.route_record import RouteRecord

__all__ = ["ANSWERS", "LiveBoard", "Watched"]

ANSWERS: Final = 50
MOST_ANSWERS: Final = 1000
LONGEST_NAME: Final = 200  # characters of a name that a caller gave
MOST_RUNNING: Final = 50  # of the answers being written, the newest ones are shown

_CURRENT: ContextVar[Watched | None] = ContextVar("disco_watched_answer", default=None)


@dataclass(slots=True)
class Watched:
    """One request for an answer. Mutable: everything but the first four fields.

    Attributes:
        number: counts the requests of the server.
        model: the name that the caller gave.
        created_s: when the request came, Unix time, s.
        began_at: the same, on the clock of `time.monotonic`.
        live: its session while it runs; None where there is none (yet).
        text: what is shown of its text; None: nothing.
        is_done: whether its route record has come.
        sent_bytes: how much of the answer its caller has got.
    """

    number: int
    model: str
    created_s: float
    began_at: float
    live: LiveSession | None = field(default=None, repr=False)
    text: AnswerText | None = field(default=None, repr=False)
    is_done: bool = False
    sent_bytes: int = 0

    def sent(self, piece: bytes) -> None:
        """Note a piece of what the caller gets."""
        self.sent_bytes += len(piece)
        if self.text is not None:
            self.text.feed(piece)

    def began(self, live: LiveSession) -> None:
        """Note the session that writes the answer."""
        self.live = live


@dataclass(slots=True)
class Sums:
    """Of all answers of one endpoint under one name of a model. Mutable."""

    answers: int = 0  # it wrote the first token of
    tokens: int = 0  # that readers got
    bill_usd: float = 0.0
    losers_usd: float = 0.0  # of the bill, for text that no reader got
    device_energy_j: float = 0.0  # as far as it is known


# What was paid for text that no reader got.
LOST: Final = frozenset(
    {Phase.RACE_LOSER, Phase.PARKED, Phase.HEDGE, Phase.FAILED, Phase.OVERRULED, Phase.DISCARDED}
)


@dataclass(slots=True)
class Finished:
    """One answer that has ended. Mutable: `_facts`, made when a page first asks.

    Attributes:
        shown: its request; the text in it grows until its last byte is sent, which may be after the record.
        change: counts the answers that have ended.
        route: its record, without the times of its tokens.
    """

    shown: Watched
    change: int
    route: RouteRecord = field(repr=False)
    _facts: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether no more text comes."""
        return self.shown.text is None or self.shown.text.is_whole

    def to_dict(self) -> dict[str, Any]:
        """Return what the page is told."""
        if self._facts is None:
            self._facts = finished_facts(self.route, LOST)
        shown = self.shown
        text = None if shown.text is None else shown.text.to_dict()
        about = {"n": shown.number, "model": shown.model, "at": shown.created_s, "text": text}
        return {**about, **self._facts}


class LiveBoard:
    """The answers of one server. Pass `answered` as `on_route` to its clients, and the object to `make_app`.

    Mutable: `answers`, `failed` and `sums` (since the start), `_number`, `_running`, `_finished`, `_change`.

    Args:
        answers: how many of the last answers are kept, 1 to `MOST_ANSWERS`.
        text: whether prompts and answers are shown.

    Attributes:
        text: the same.
        began_s: when the server started, Unix time, s; by it a page notices that it has another server now.
        sums: by the model's name ("" where models have none) and the endpoint's.
    """

    def __init__(self, *, answers: int = ANSWERS, text: bool = False) -> None:
        if not 1 <= answers <= MOST_ANSWERS:
            raise ValueError(f"answers must be 1 to {MOST_ANSWERS}, not {answers}")
        self.text = text
        self.began_s = time.time()
        self.answers = self.failed = 0
        self.sums: dict[tuple[str, str], Sums] = {}
        self._number = self._change = 0
        self._running: dict[int, Watched] = {}
        self._finished: deque[Finished] = deque(maxlen=answers)

    @contextmanager
    def watching(self, model: str, body: Mapping[str, Any], *, stream: bool) -> Iterator[Watched]:
        """Show an answer while the block runs, and its route record, which comes within or soon after, from then on.

        Args:
            model: the name that the caller gave.
            body: of the request.
            stream: whether the caller gets the answer as events.
        """
        self._number += 1
        shown = Watched(self._number, model[:LONGEST_NAME], time.time(), time.monotonic())
        if self.text:
            shown.text = AnswerText(prompt_text(body), stream=stream)
        self._running[shown.number] = shown
        token = _CURRENT.set(shown)
        try:
            with sessions_told(shown.began):
                yield shown
        finally:
            _CURRENT.reset(token)
            self._running.pop(shown.number, None)
            shown.live = None
            if shown.text is not None:
                shown.text.close()

    def answered(self, route: RouteRecord) -> None:
        """Take the route record of a finished answer; called where the answer ends, in its own context."""
        shown = _CURRENT.get()
        self._add(route)
        if shown is None or shown.is_done:
            return  # of a program that attached, or a second record of one request
        shown.is_done = True
        self._running.pop(shown.number, None)
        self._change += 1
        self._finished.append(
            Finished(shown, self._change, replace(route, generated=(), released=(), turns=()))
        )

    def _add(self, route: RouteRecord) -> None:
        self.answers += 1
        self.failed += route.finish_reason is None
        name = route.served_as or ""
        for charge in route.ledger.charges:
            sums = self._sums(name, charge.endpoint)
            sums.bill_usd += charge.bill_usd
            sums.device_energy_j += charge.device_energy_j or 0.0
            if charge.phase in LOST:
                sums.losers_usd += charge.bill_usd
        for attempt in route.attempts:
            self._sums(name, attempt.endpoint).tokens += attempt.kept_tokens
        if route.winner is not None:
            self._sums(name, route.winner).answers += 1

    def _sums(self, name: str, endpoint: str) -> Sums:
        return self.sums.setdefault((name, endpoint), Sums())

    def snapshot(self, after: int, now: float) -> dict[str, Any]:
        """Return what a page needs that has seen all changes up to the number `after`, ready for JSON.

        Args:
            after: the number of the newest change that the page has; 0: none.
            now: on the event loop's clock, s.
        """
        # A text still grows for a moment after its record; the page gets it again until it is whole.
        news = [one for one in self._finished if one.change > after or not one.is_whole]
        growing = (one.change - 1 for one in self._finished if not one.is_whole)
        running = list(self._running.values())[-MOST_RUNNING:]
        return {
            "began": self.began_s,
            "change": min(growing, default=self._change),
            "text": self.text,
            "kept": self._finished.maxlen,
            "running": [_running(shown, now) for shown in running],
            "busy": len(self._running),
            "finished": [one.to_dict() for one in news],
            "answers": self.answers,
            "failed": self.failed,
        }


def _running(shown: Watched, now: float) -> dict[str, Any]:
    return {
        "n": shown.number,
        "model": shown.model,
        "at": shown.created_s,
        "duration_s": round(time.monotonic() - shown.began_at, 3),
        "sent_bytes": shown.sent_bytes,
        "text": None if shown.text is None else shown.text.to_dict(),
        **({} if shown.live is None else running_facts(shown.live, now)),
    }
