"""The dispatchers of one client: one for each preset, model, and endpoint whose TTFT its policy plans with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disco.candidate import Candidate
from disco.client.endpoint_catalog.catalog import CatalogEntry, EndpointCatalog
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics, make_room
from disco.dispatch import Dispatcher, Preset

__all__ = ["Dispatchers"]


class Dispatchers:
    """Makes dispatchers when they are first needed, and keeps their policies up to date.

    Mutable: the dispatchers, with their policies' state; the state of `rng`.
    """

    def __init__(self, catalog: EndpointCatalog, rng: np.random.Generator) -> None:
        """Make none yet; `rng` is the only source of randomness of all of them."""
        self._catalog = catalog
        self._rng = rng
        self._kept: dict[Any, tuple[Dispatcher, EndpointStatistics | None]] = {}

    def of(
        self,
        preset: Preset,
        members: Sequence[CatalogEntry],
        known: Mapping[str, EndpointStatistics],
        candidates: Sequence[Candidate],
        model: str,
    ) -> Dispatcher:
        """Return the dispatcher that plans under this preset, with the TTFT of the cheapest endpoint that has one.

        Args:
            preset: the caller keeps it: it is known by its identity, because two may have the same name.
            members: the client's endpoints.
            known: by name, what is known about each of them.
            candidates: the same endpoints, with their rates.
            model: the model that the request names.
        """
        rates = {c.name: (c.rates.cost_out, c.rates.cost_in) for c in candidates}
        timed = min(
            (m for m in members if known[m.name].ttft is not None and not m.standby),
            key=lambda m: rates[m.name],
            default=None,
        )
        where = None if timed is None else (timed.name, timed.address)
        key = (id(preset), where, model)
        found = self._kept.get(key)
        if found is None:
            statistics = None if timed is None else known[timed.name]
            seen = None if statistics is None else statistics.ttft
            ttft = self._catalog.server.ttft() if seen is None else seen.snapshot()
            make_room(self._kept)
            learnt = self._catalog.statistics
            dispatcher = Dispatcher(
                preset,
                lengths=learnt.prompts,
                ttft=ttft,
                rng=self._rng,
                answers=learnt.lengths_up_to,
                holds_budget=True,
            )
            found = self._kept[key] = dispatcher, statistics
        return found[0]

    def refit(self) -> None:
        """Let every policy follow what was learnt since it was fitted."""
        for dispatcher, statistics in self._kept.values():
            if statistics is not None and statistics.ttft is not None:
                dispatcher.refit(self._catalog.statistics.prompts, statistics.ttft.snapshot())
