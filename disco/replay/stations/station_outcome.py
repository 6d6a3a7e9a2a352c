"""The outcome of every request, by station."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from disco.cost import Phase
from disco.replay.metrics.outcome import Reading
from disco.session.records.route_record import RouteRecord

__all__ = ["StationOutcome"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StationOutcome:
    """Columns of shape (n,), or (n, k) by station; one row per request in order of arrival.

    Attributes:
        names: names of the k stations, in the order of the columns.
        ttft_s: from the request to the first token the reader got; NaN where there was none. Shape (n,).
        winner: index of the station that wrote the first token; -1 where none did. Shape (n,).
        request_tokens: length of the prompt. Shape (n,).
        answer_tokens: length of the answer, as far as it was written. Shape (n,).
        started_tokens: the prompt's length if the station was started on it by the plan, or in place of one that
            failed before it wrote; else 0. Shares of prompt tokens count these. Shape (n, k).
        prompt_tokens, completion_tokens, cached_tokens: charged for, prompts read again included. Shape (n, k).
        cost_usd: charged, as policies count it (policy cost), USD. Shape (n, k).
        migrations: number of migrations. Shape (n,).
        failures: attempts that failed. Shape (n, k).
        failed: no station could complete the answer. Shape (n,).
        total_usd: cost of all stations together, correctly rounded. Shape (n,).
        cost_by: cost over all requests, by (station, phase).
        reading: what readers got.
        examples: for each kind of example, the record with its timelines of the first answer to end. By default the
            kinds are answers that several stations wrote, by the stations' names in the order of writing.
    """

    names: tuple[str, ...]
    ttft_s: Floats
    winner: Ints
    request_tokens: Ints
    answer_tokens: Ints
    started_tokens: Ints
    prompt_tokens: Ints
    completion_tokens: Ints
    cached_tokens: Ints
    cost_usd: Floats
    migrations: Ints
    failures: Ints
    failed: NDArray[np.bool_]
    total_usd: Floats
    cost_by: Mapping[tuple[str, Phase], float]
    reading: Reading
    examples: Mapping[tuple[str, ...], RouteRecord] = field(repr=False)

    def __len__(self) -> int:
        return int(self.ttft_s.size)

    def share_won(self, name: str) -> float:
        """Return the share of all requests whose first token the station of this `name` wrote."""
        return float(np.mean(self.winner == self.names.index(name)))

    def share_of_prompts(self, name: str) -> float:
        """Return the share of all prompt tokens that the station of this `name` was started on."""
        total = float(self.request_tokens.sum())
        return float(self.started_tokens[:, self.names.index(name)].sum()) / total if total else 0.0
