"""The outcome of every request, by station; and of one answer, from its record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from disco.cost import Phase
from disco.replay.metrics.outcome import Reading
from disco.session.records.route_record import RouteRecord

__all__ = ["Came", "StationOutcome", "came_of"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Came:
    """What one answer came to, live or in a replay.

    Attributes:
        ttft_s: of the first token as the reader got it, s; NaN where none came.
        answer_tokens: length of the answer.
        read_tokens, written_tokens: of all attempts, losers' included: tokens of prompts, those in a cache too, and
            tokens of answers that were charged.
        bill_usd, policy_cost: what it cost; probes in the background left out.
        winner: name of the endpoint whose content came first; "" where none came.
        moves: how often another endpoint went on with it.
        rose: a higher tier answered.
        late_tokens: tokens that came after the reader's deadline.
    """

    ttft_s: float
    answer_tokens: int
    read_tokens: int
    written_tokens: int
    bill_usd: float
    policy_cost: float
    winner: str
    moves: int
    rose: bool
    late_tokens: float


def came_of(record: RouteRecord) -> Came:
    """Return what the answer of a record came to."""
    charges = [one for one in record.ledger.charges if one.phase is not Phase.PROBE]
    ttft_s = record.pace.ttft_released_s
    return Came(
        ttft_s=math.nan if ttft_s is None else ttft_s,
        answer_tokens=record.answer_tokens,
        read_tokens=sum(one.prompt_tokens for one in charges),
        written_tokens=sum(one.completion_tokens for one in charges),
        bill_usd=math.fsum(one.bill_usd for one in charges),
        policy_cost=math.fsum(one.policy_cost for one in charges),
        winner=record.winner or "",
        moves=sum(one.outcome == "switched" and one.reason != "confidence" for one in record.migrations),
        rose=any(one.outcome == "handed_up" for one in record.judgements),
        late_tokens=float(record.pace.late_tokens),
    )


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
