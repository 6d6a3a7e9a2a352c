"""Asks servers that publish their TTFT for it, and lets the statistics start from that.

A server is asked beside the answers of a client, at most every `ASK_AGAIN_S` seconds for a model, and only if it has
said that it publishes. What it says counts by the rule of `profiles.told_times`. The time of the question's own round
trip, the shortest so far, is what the network adds to the server's figures.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from disco.candidate import Reach
from disco.client.endpoint_catalog.catalog import CatalogEntry, EndpointCatalog
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics, make_room
from disco.dispatch.eligibility import is_within
from disco.endpoints.background_tasks import BackgroundTasks
from disco.profiles import trust, with_told
from disco.profiles.told_times import MOST_TOLD

if TYPE_CHECKING:
    from disco.endpoints.published_ttft import Told

__all__ = ["ToldTtft"]

ASK_AGAIN_S: Final = 30.0


@dataclass(slots=True)
class _Source:
    """What one server said of one model. All fields are mutable.

    Attributes:
        due_at: when it may be asked again, s.
        told: what it said last.
        network_s: the shortest round trip so far, s.
    """

    due_at: float = 0.0
    told: Told | None = None
    network_s: float = float("inf")


class ToldTtft:
    """What the servers of one client and of its copies said. Mutable: `_sources`.

    Args:
        catalog: whose profile and statistics are used.
        host: of the questions.
        on_told: called when the statistics have changed.
        clock: s; that of `published_ttft`.
    """

    def __init__(
        self,
        catalog: EndpointCatalog,
        host: BackgroundTasks,
        *,
        on_told: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._host = host
        self._on_told = on_told
        self._clock = clock
        self._sources: dict[Hashable, _Source] = {}

    def after(self, members: Iterable[CatalogEntry], model: str) -> None:
        """Ask what is due, after an answer to a request that these may serve. Call it from a background task."""
        for ask in self._due(members, model):
            if self._host.is_open:
                self._host.start_soon(ask)

    async def ask_all(self, members: Iterable[CatalogEntry], model: str | None, reach: Reach) -> None:
        """Ask what is due of the endpoints within `reach`, one after the other; nothing where no model is named."""
        if model is not None:
            for ask in self._due([m for m in members if is_within(m.endpoint.reach, reach)], model):
                await ask()

    def _due(self, members: Iterable[CatalogEntry], model: str) -> list[Callable[[], Any]]:
        now = self._clock()
        questions: list[Callable[[], Any]] = []
        for member in members:
            server: Any = getattr(member.endpoint, "probed", member.endpoint)  # of a pair, its server
            known = self._catalog.known(member, model)
            if known.ttft is None or not getattr(server, "publishes_ttft", False):
                continue
            key = (member.name, member.address, member.asked_for(model))
            source = self._sources.get(key)
            if source is None:
                make_room(self._sources)
                source = self._sources[key] = _Source()
            if now >= source.due_at:
                source.due_at = now + ASK_AGAIN_S
                questions.append(
                    partial(self._ask, partial(server.ask_ttft, member.asked_for(model)), source, known)
                )
        return questions

    async def _ask(
        self, ask: Callable[[], Awaitable[Told | None]], source: _Source, known: EndpointStatistics
    ) -> None:
        if (told := await ask()) is not None:
            source.told, source.network_s = told, min(source.network_s, told.round_trip_s)
        if source.told is not None:
            self._use(source.told, source.network_s, known)

    def _use(self, told: Told, network_s: float, known: EndpointStatistics) -> None:
        said = told.published
        trusted = trust(said.count, said.newest_age_s + max(0.0, self._clock() - told.at))
        profile = self._catalog.server.ttft()
        prior, weight = with_told(profile, said.quantiles_s, trusted=trusted, network_s=network_s)
        if known.start_from(prior, weight, trusted * MOST_TOLD):
            self._on_told()
