"""When requests arrive, and at which drafter: closed loop, Poisson, or as a trace says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, cycle, islice
from random import Random

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest
from papers.fleet.fleet_scenario import Arrivals

__all__ = ["Arrival", "open_arrivals", "total_requests"]

Arrival = tuple[float, int, DraftedRequest]
"""Time in s, number of the drafter, and the request."""


def total_requests(arrivals: Arrivals, requests: Sequence[DraftedRequest]) -> int:
    """Return how many requests a run has: `arrivals.requests`, or each of the trace once."""
    return arrivals.requests or len(requests)


def open_arrivals(
    arrivals: Arrivals, requests: Sequence[DraftedRequest], drafters: int, rng: Random
) -> Iterator[Arrival]:
    """Return the arrivals of a kind that does not depend on what the fleet does, in order of time.

    Poisson arrivals are those of the whole system, spread over the drafters in turn; requests are taken in the trace's
    order, from its beginning again where it ends.

    Raises:
        ConfigurationError: a trace that does not suffice for the requests wanted.
    """
    total = total_requests(arrivals, requests)
    if arrivals.kind == "trace":
        if total > len(requests):
            raise ConfigurationError(
                f"arrivals.requests = {total}, but the trace has {len(requests)}; take fewer, or other arrivals"
            )
        ordered = sorted(requests, key=lambda one: one.arrival_s)[:total]
        return ((one.arrival_s / arrivals.speed, one.drafter % drafters, one) for one in ordered)
    return islice(_poisson(arrivals.rate, requests, drafters, rng), total)


def _poisson(
    rate: float, requests: Sequence[DraftedRequest], drafters: int, rng: Random
) -> Iterator[Arrival]:
    now = 0.0
    for number, request in zip(count(), cycle(requests), strict=False):
        now += rng.expovariate(rate)
        yield now, number % drafters, request
