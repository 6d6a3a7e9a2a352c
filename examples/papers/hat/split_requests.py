"""Requests of a split fleet: lengths, acceptance, and what each draws of links and modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import NamedTuple

from disco.replay import DraftedRequest
from papers.fleet.fleet_arrivals import open_arrivals
from papers.fleet.fleet_scenario import Arrivals
from papers.hat.split_fleet import Rates, SplitFleet

__all__ = ["Drafts", "Placed", "accept_length", "lengths", "placed", "with_drafts"]

_SHORTEST = 8  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class Drafts:
    """How good a drafter is: each token's confidence is drawn from a beta distribution, and it is right so often.

    So the drafter is calibrated, and one number says how good it is.

    Attributes:
        mean: of the confidence; the share of tokens that are right.
        spread: `alpha + beta` of the distribution. At 1 most confidences are near 0 or 1, as those of language models.
    """

    mean: float
    spread: float = 1.0


def accept_length(drafts: Drafts, eta: float, most: int, *, points: int = 20_000) -> float:
    """Return the tokens of a round: accepted ones and the model's own.

    The k-th token is drafted if all before it were confident, and counts if all up to it are right:
    `1 + sum over k of (P(confident and right))^(k-1) P(right)`.
    """
    rng = Random("accept length")
    a, b = drafts.mean * drafts.spread, (1 - drafts.mean) * drafts.spread
    values = [rng.betavariate(a, b) for _ in range(points)]
    goes_on = sum(value for value in values if value >= eta) / points
    right = fmean(values)
    return 1 + right * sum(goes_on**k for k in range(most))


def lengths(mean: float, sd: float, count: int, rng: Random) -> list[int]:
    """Return prompt lengths of a gamma distribution: `count` of its quantiles, in random order, with its exact mean.

    Quantiles in place of draws, since the mean of a few hundred draws would be off by several percent.
    """
    shape = (mean / sd) ** 2
    drawn = sorted(rng.gammavariate(shape, sd**2 / mean) for _ in range(40 * count))
    quantiles = [max(_SHORTEST, value) for value in drawn[20::40]]
    scale = mean / fmean(quantiles)
    found = [max(_SHORTEST, round(scale * value)) for value in quantiles]
    rng.shuffle(found)
    return found


def with_drafts(
    prompts: Sequence[int], output_tokens: int, drafts: Drafts | float, rng: Random
) -> list[DraftedRequest]:
    """Return requests with these prompts.

    Args:
        prompts: tokens of each.
        output_tokens: of every answer.
        drafts: of the drafter; or, for a tree, the probability that its next level has the right token.
        rng: draws.
    """
    made = []
    for prompt in prompts:
        if isinstance(drafts, float):
            confidence: tuple[float, ...] = ()
            accepts = bytes(rng.random() < drafts for _ in range(output_tokens))
        else:
            a, b = drafts.mean * drafts.spread, (1 - drafts.mean) * drafts.spread
            confidence = tuple(rng.betavariate(a, b) for _ in range(output_tokens))
            accepts = bytes(rng.random() < value for value in confidence)
        made.append(DraftedRequest(prompt, output_tokens, accepts, confidence=confidence))
    return made


class Placed(NamedTuple):
    """A request, when and where it comes.

    Attributes:
        arrived_s: when.
        device: number of its device.
        request: what is asked.
        up_bps, down_bps: of the link, while it is served.
        slowness: times of its device, relative to `DeviceTimes`.
    """

    arrived_s: float
    device: int
    request: DraftedRequest
    up_bps: float
    down_bps: float
    slowness: float


def placed(fleet: SplitFleet, requests: Sequence[DraftedRequest]) -> list[Placed]:
    """Draw arrivals, links and modes; they depend on the seed and on the number of requests alone."""
    links, modes = Random(f"{fleet.seed} links"), Random(f"{fleet.seed} modes")
    pools = [pool for pool in fleet.pools for _ in range(pool.count)]
    modes_of: dict[tuple[int, int], float] = {}
    arrivals = Arrivals(kind="poisson", rate=fleet.rate, requests=len(requests))
    found = []
    turns = [0] * len(pools)
    for at_s, device, request in open_arrivals(
        arrivals, list(requests), len(pools), Random(f"{fleet.seed} arrivals")
    ):
        turn = turns[device] // fleet.mode_requests
        turns[device] += 1
        pool = pools[device]
        if (device, turn) not in modes_of:
            modes_of[device, turn] = pool.least * (pool.most / pool.least) ** modes.random()
        group = device % fleet.groups
        up, down = (_drawn(rates, group, fleet.groups, links) for rates in (fleet.up, fleet.down))
        found.append(Placed(at_s, device, request, up, down, modes_of[device, turn]))
    return found


def _drawn(rates: Rates, group: int, groups: int, rng: Random) -> float:
    part = (rates[1] - rates[0]) / groups
    return rates[1] - part * (group + rng.random())
