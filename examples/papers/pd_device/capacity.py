"""How many requests per second a server holds: the paper's formula, and queues on a real arrival pattern.

The formula counts the time of one request. Prefill and decode are separate pools in the paper's cloud, so a shorter
answer frees decode slots only, and the prefill pool sets the limit from some L on. The queues show it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from papers.pd_device.assumptions import CLOUD, WHOLE_ANSWER
from papers.pd_device.paper_forms import speedup
from papers.pd_device.request_mix import Requests

__all__ = ["FORMULA_PROMPT", "MOST_WAIT_S", "SHARES", "SLOTS", "CapacityRow", "capacity_row", "greatest_rate"]

SHARES: Final = (10, 20, 40, 60, 80, 100, None)
"""L; None: the server writes the whole answer."""
SLOTS: Final = 64
"""K: answers that the server writes at once."""
MOST_WAIT_S: Final = 1.0
"""The 99th percentile of the time to first token may be this, s."""
FORMULA_PROMPT: Final = 8_192
"""l in the paper's formula, tokens."""

_LOWEST, _HIGHEST, _STEPS = 0.05, 2_000.0, 12

Floats = NDArray[np.float64]
Served = Callable[[Floats], Floats]
"""From arrival times (s, ascending, shape (n,)) to the wait that must not be too long (s, shape (n,))."""


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """Capacity with one L.

    Attributes:
        tokens: L; None: the whole answer.
        formula: the paper's gain over the whole answer.
        fixed_rps: greatest rate, one pool, answers of `WHOLE_ANSWER` tokens.
        real_rps: the same with answers of real lengths.
        pools_rps: the same with a prefill worker apart from the slots.
        refining_rps: the same where the server also refines the prompt.
    """

    tokens: int | None
    formula: float
    fixed_rps: float
    real_rps: float
    pools_rps: float
    refining_rps: float


def capacity_row(requests: Requests, share: int | None) -> CapacityRow:
    """Return the capacity with L = `share`; None: the server writes the whole answer."""
    prompts = requests.prompt_tokens
    plain_s = np.multiply(prompts, CLOUD.read_s, dtype=np.float64)
    refined_s = np.multiply(prompts, CLOUD.read_s + CLOUD.refine_s, dtype=np.float64)
    whole = np.full(len(requests), WHOLE_ANSWER)
    fixed_s, real_s = (_decode_s(tokens, share) for tokens in (whole, requests.answer_tokens))
    token_s = CLOUD.refined_token_s(FORMULA_PROMPT)
    return CapacityRow(
        tokens=share,
        formula=speedup(token_s, CLOUD.tpot_s, share or WHOLE_ANSWER, WHOLE_ANSWER),
        fixed_rps=greatest_rate(requests, _one_pool(plain_s, fixed_s)),
        real_rps=greatest_rate(requests, _one_pool(plain_s, real_s)),
        pools_rps=greatest_rate(requests, _two_pools(plain_s, real_s)),
        refining_rps=greatest_rate(requests, _two_pools(refined_s, real_s)),
    )


def greatest_rate(requests: Requests, served: Served) -> float:
    """Return the greatest rate, requests/s, at which the 99th percentile of the wait is at most `MOST_WAIT_S`.

    The arrivals keep their pattern; time is stretched. 0: the lowest rate tried is too much.
    """
    low, high = _LOWEST, _HIGHEST
    if not _holds(requests, served, low):
        return 0.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _holds(requests, served, middle) else (low, middle)
    return low


def _holds(requests: Requests, served: Served, rate: float) -> bool:
    waits_s = served(requests.arrival_s * (requests.rate / rate))
    return float(np.quantile(waits_s, 0.99)) <= MOST_WAIT_S


def _decode_s(answer_tokens: NDArray[np.int64], share: int | None) -> Floats:
    tokens = answer_tokens if share is None else np.minimum(answer_tokens, share)
    return np.multiply(tokens - 1, CLOUD.tpot_s, dtype=np.float64)


def _one_pool(prefill_s: Floats, decode_s: Floats) -> Served:
    """Each request holds one of K slots from its prefill to its last token."""

    def served(arrival_s: Floats) -> Floats:
        began_s = _queue(arrival_s, prefill_s + decode_s, SLOTS)
        return CLOUD.fixed_s + began_s + prefill_s - arrival_s

    return served


def _two_pools(prefill_s: Floats, decode_s: Floats) -> Served:
    """One prefill worker gives the first token; the next one waits for one of K slots. The longer wait counts."""

    def served(arrival_s: Floats) -> Floats:
        first_s = _queue(arrival_s, prefill_s, 1) + prefill_s
        order = np.argsort(first_s, kind="stable")
        began_s = np.empty_like(first_s)
        began_s[order] = _queue(first_s[order], decode_s[order], SLOTS)
        return np.maximum(CLOUD.fixed_s + first_s - arrival_s, began_s - first_s)

    return served


def _queue(arrival_s: Floats, work_s: Floats, servers: int) -> Floats:
    """Return when each request begins, first come first served, with that many servers. Shape (n,)."""
    free = [0.0] * servers
    began = []
    for arrival, work in zip(arrival_s.tolist(), work_s.tolist(), strict=True):
        begin = max(arrival, free[0])
        heapq.heapreplace(free, begin + work)
        began.append(begin)
    return np.asarray(began)
