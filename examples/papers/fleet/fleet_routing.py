"""Routing: the target of a request, among those with its drafter's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

__all__ = ["ROUTES", "Route", "router"]

Route = Callable[[Sequence[int], Sequence[int]], int]
"""From the numbers of the targets that may be chosen, and the unfinished requests of every target, to one number."""


def _random(rng: Random) -> Route:
    return lambda among, _load: among[int(rng.random() * len(among))]


def _round_robin(_rng: Random) -> Route:
    turns: dict[Sequence[int], int] = {}

    def route(among: Sequence[int], _load: Sequence[int]) -> int:
        turn = turns.get(among, 0)
        turns[among] = turn + 1
        return among[turn % len(among)]

    return route


def _shortest_queue(rng: Random) -> Route:
    def route(among: Sequence[int], load: Sequence[int]) -> int:
        least = min(load[number] for number in among)
        shortest = [number for number in among if load[number] == least]
        return shortest[int(rng.random() * len(shortest))]

    return route


def _power_of_two(rng: Random) -> Route:
    def route(among: Sequence[int], load: Sequence[int]) -> int:
        one, other = (among[int(rng.random() * len(among))] for _ in range(2))
        return other if load[other] < load[one] else one

    return route


ROUTES: Final = {
    "random": _random,
    "round_robin": _round_robin,
    "shortest_queue": _shortest_queue,
    "power_of_two": _power_of_two,
}
"""Makers of routes, by the names of scenarios."""


def router(policy: str, rng: Random) -> Route:
    """Return a new route; `rng` draws where the policy draws, and between equally short queues."""
    return ROUTES[policy](rng)
