"""The outcome of every request of a replay, as columns; both evaluators return the same columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from disco.cost import Phase
from disco.session.records.route_record import RouteRecord

__all__ = ["Outcome", "Reading"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the reader got beyond the first token. Only the event-accurate evaluator measures it.

    Columns have shape (n,) unless stated otherwise.

    Attributes:
        late_tokens: tokens released after `D_i = TTFT + i/r_c`; 0 without a pace.
        handover_late_tokens: those of the late tokens that are behind the cut of a migration.
        stall_ratio, qoe, fluidity: as in `playback.reader_metrics`; NaN where undefined.
        moved: whether the answer migrated to another endpoint.
        failed_over: whether an endpoint failed and another one took over.
        tbt_s: times between released tokens, concatenated over all answers; shape (m,).
        moved_tbt_s: the same for the answers that migrated; shape (k,).
    """

    late_tokens: Floats
    handover_late_tokens: Floats
    stall_ratio: Floats
    qoe: Floats
    fluidity: Floats
    moved: Bools
    failed_over: Bools
    tbt_s: Floats
    moved_tbt_s: Floats


@dataclass(frozen=True, slots=True)
class Outcome:
    """Columns of shape (n,), one row per request, in order of arrival.

    Attributes:
        ttft_s: from the request to the first token that the reader got; NaN where there was none.
        device_won: whether the device wrote the first token.
        prompt_tokens: length of the prompt.
        device_prompt_tokens, server_prompt_tokens: prompt tokens that the device or the server was started on
            (0 or `prompt_tokens`). A budget counts these. Re-prefills of migrations are in the cost, not here.
        cost_usd: everything that was charged, as policies count it (policy cost), USD.
        cost_by: the same cost by (endpoint place, phase), summed over all requests.
        failed: whether no endpoint could answer.
        reading: see `Reading`; None from the vectorised evaluator.
        example: the record of the first answer that migrated, with its timelines; None when no answer did.
    """

    ttft_s: Floats
    device_won: Bools
    prompt_tokens: NDArray[np.int64]
    device_prompt_tokens: NDArray[np.int64]
    server_prompt_tokens: NDArray[np.int64]
    cost_usd: Floats
    cost_by: Mapping[tuple[str, Phase], float]
    failed: Bools
    reading: Reading | None = None
    example: RouteRecord | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return int(self.ttft_s.size)

    def budget_used(self, place: str) -> float:
        """Return the share of all prompt tokens that the endpoint at `place` ("device" or "server") processed."""
        total = float(self.prompt_tokens.sum())
        used = self.device_prompt_tokens if place == "device" else self.server_prompt_tokens
        return float(used.sum()) / total if total else 0.0
