"""What a client gains from the TTFT that its server publishes: its first 50 requests, with and without.

In virtual time. Truth: each shipped server profile. A server that has it serves other callers, and publishes quantiles
of what it measured (`TtftBoard`), without the network, which adds 40 ms. A fresh client assumes what every client
assumes; it plans before each request, and then sees that request's TTFT. Columns, as means over the first 50 requests
and all clients:

- error: mean distance between the quantiles that the client plans with and the true ones, ms (Wasserstein's distance);
- budget: of the policy `wait_time` with the plan of that moment and the prompt lengths of Azure's chats, how far the
  share of tokens that the device reads is from the budget of 0.3, in points.

Prints a table for docs/reference/server.md. Fails only if, of some profile, the published quantiles make the error
larger.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics
from disco.dispatch.policies.wait_time import plan_waits
from disco.profiles import (
    Empirical,
    Rolling,
    available_profiles,
    load_lengths,
    load_server,
    trust,
    with_told,
)
from disco.server.ttft_board import TtftBoard

REQUESTS, NETWORK_S, BUDGET = 50, 0.04, 0.3
LEVELS = (np.arange(200) + 0.5) / 200
LENGTHS = load_lengths("lengths-azure-conv-2023").prompt(weight=50.0)


@dataclass
class Plans:
    """What a plan comes to, if the truth is this."""

    truth: Empirical

    def __post_init__(self) -> None:
        self.quantiles_s = self.truth.quantile(LEVELS)
        self.tokens = LENGTHS.p * LENGTHS.lengths / LENGTHS.mean()

    def error_s(self, assumed: Empirical) -> float:
        return float(np.abs(assumed.quantile(LEVELS) - self.quantiles_s).mean())

    def used(self, assumed: Empirical) -> float:
        """The share of tokens that the device reads: of those requests whose server is later than their wait."""
        shares, waits_s = plan_waits(LENGTHS, assumed, BUDGET).waits(LENGTHS.lengths)
        late = 1.0 - self.truth.cdf(np.minimum(waits_s, 1e9))
        return float((shares * late * self.tokens).sum())


def client(plans: Plans, rng: np.random.Generator, *, answers: int, age_s: float) -> np.ndarray:
    """Error in ms, and budget in points, of one client's first requests. `answers` 0: it is told nothing."""
    assumed = load_server("gpt-4o-mini-2024").ttft()
    known = EndpointStatistics(ttft=Rolling(prior=assumed))
    if answers:
        now = 0.0
        board = TtftBoard(clock=lambda: now)
        for took_s in plans.truth.sample(rng, answers):
            now += 1.0
            board.observe("m", max(0.0, took_s - NETWORK_S))
        now += age_s
        said = board.published("m")
        trusted = trust(said.count, said.newest_age_s)
        prior, weight = with_told(assumed, said.quantiles_s, trusted=trusted, network_s=NETWORK_S)
        assert known.start_from(prior, weight, trusted)
    rows = []
    for took_s in plans.truth.sample(rng, REQUESTS):
        plan = known.ttft.snapshot()
        rows.append((1e3 * plans.error_s(plan), 100 * abs(plans.used(plan) - BUDGET)))
        known.saw_ttft(took_s)
    return np.array(rows).mean(axis=0)


CASES = {
    "nothing": (0, 0.0),
    "5 answers": (5, 0.0),
    "20 answers": (20, 0.0),
    "400 answers": (400, 0.0),
    "400, an hour old": (400, 3500.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=40)
    clients = parser.parse_args().clients
    print("| truth | told | error, ms | budget, points |\n|---|---|---|---|")
    worse = []
    for name in available_profiles("server"):
        plans = Plans(load_server(name).ttft())
        errors = {}
        for told, (answers, age_s) in CASES.items():
            rngs = [np.random.default_rng((7, seed)) for seed in range(clients)]
            figures = np.array([client(plans, rng, answers=answers, age_s=age_s) for rng in rngs])
            error, budget = figures.mean(axis=0)
            errors[told] = error
            print(f"| {name} | {told} | {error:.0f} | {budget:.1f} |")
        if name != "gpt-4o-mini-2024" and errors["400 answers"] > errors["nothing"]:
            worse.append(name)
    assert not worse, worse


if __name__ == "__main__":
    main()
