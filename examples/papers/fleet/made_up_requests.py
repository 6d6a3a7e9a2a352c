"""Requests drawn from a few figures, where there is no trace."""

from __future__ import annotations

import math
from random import Random

from disco.replay import DraftedRequest
from papers.fleet.fleet_scenario import Length, MadeUp

__all__ = ["made_up_requests"]


def made_up_requests(made_up: MadeUp, rng: Random) -> list[DraftedRequest]:
    """Return requests.

    Lengths are log-normal. Acceptance is a Markov chain with two states: `correlation` is that of neighbouring tokens,
    so that hard passages exist; 0 makes tokens independent. Each request has a rate of its own, from a beta
    distribution of mean `acceptance` and standard deviation `spread`.
    """
    return [_one(made_up, rng) for _ in range(made_up.count)]


def _one(made_up: MadeUp, rng: Random) -> DraftedRequest:
    prompt, output = _length(made_up.prompt_tokens, rng), _length(made_up.output_tokens, rng)
    mean = made_up.acceptance
    if made_up.spread > 0 and 0 < mean < 1:
        size = mean * (1 - mean) / made_up.spread**2 - 1
        mean = rng.betavariate(mean * size, (1 - mean) * size)
    right = rng.random() < mean
    accepts = bytearray(output)
    for place in range(output):
        accepts[place] = right
        stays = made_up.correlation * (right - mean)
        right = rng.random() < mean + stays
    return DraftedRequest(prompt, output, bytes(accepts))


def _length(length: Length, rng: Random) -> int:
    if length.sd == 0:
        return max(1, round(length.mean))
    variance = math.log1p((length.sd / length.mean) ** 2)
    drawn = rng.lognormvariate(math.log(length.mean) - variance / 2, math.sqrt(variance))
    return max(1, round(drawn))
