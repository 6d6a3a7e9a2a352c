"""What became of every request, by station."""

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
        names: of the k stations, in the order of the columns.
        ttft_s: from the request to the first token the reader got; NaN where there was none. Shape (n,).
        winner: which station wrote the first token; -1 where none did. Shape (n,).
        request_tokens: length of the prompt. Shape (n,).
        answer_tokens: of the answer, as far as it came. Shape (n,).
        started_tokens: the prompt's length where the station was started on it by the plan or in place of one that
            failed before it wrote, else 0: what a share of tokens counts. Shape (n, k).
        prompt_tokens, completion_tokens, cached_tokens: charged for, prompts read again included. Shape (n, k).
        cost_usd: charged, in unified money. Shape (n, k).
        migrations: hand-overs in mid-sentence, on purpose. Shape (n,).
        failures: attempts that failed. Shape (n, k).
        failed: no station could complete the answer. Shape (n,).
        total_usd: of all stations together, correctly rounded. Shape (n,).
        cost_by: in total, by (station, phase).
        reading: what readers got.
        examples: the record, with its timelines, of the first answer to end of each kind that was asked for; by
            default those that several stations wrote, by the stations' names in the order of writing.
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
        """Share of all requests whose first token this station wrote."""
        return float(np.mean(self.winner == self.names.index(name)))

    def share_of_prompts(self, name: str) -> float:
        """Share of all prompt tokens that this station was started on."""
        total = float(self.request_tokens.sum())
        return float(self.started_tokens[:, self.names.index(name)].sum()) / total if total else 0.0
