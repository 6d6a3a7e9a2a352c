"""Synthetic workloads: random arrivals, lengths from profiles. The same seed gives the same trace."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError, nearest
from disco.profiles import Lengths, LengthsProfile
from disco.replay.workload.trace import Trace

__all__ = ["Arrivals", "alpaca_like", "lognormal_lengths", "synthetic_trace"]

Arrivals = Literal["poisson", "gamma", "per-client"]

# Published lengths of Alpaca, in tokens of o200k_base: instructions with their input, and answers.
ALPACA_PROMPT_MEAN, ALPACA_PROMPT_P99 = 16.8, 69.0
# Answers of a current chat model to the same instructions are longer than the original ones (mean 53.6, P99 248).
# Only their mean is known, so the ratio of P99 to mean is that of the original answers.
ALPACA_ANSWER_MEAN = 142.5
ALPACA_ANSWER_P99 = ALPACA_ANSWER_MEAN * 248.0 / 53.6

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def synthetic_trace(
    *,
    requests: int,
    seed: int,
    prompts: Lengths | LengthsProfile,
    answers: Lengths | LengthsProfile | None = None,
    arrivals: Arrivals = "poisson",
    mean_interval_s: float = 30.0,
    cv: float = 2.0,
    clients: int = 10,
    spread: float = 1.0,
    name: str = "synthetic",
) -> Trace:
    """Return requests with independent lengths and without times to first token: the server's profile has those.

    Args:
        requests: how many, at least 1.
        seed: seed of all draws.
        prompts: prompt lengths; of a profile, its prompts.
        answers: answer lengths; of a profile, its answers. None: those of the profile given as `prompts`.
        arrivals: "poisson": exponential intervals. "gamma": intervals with coefficient of variation `cv`.
            "per-client": `clients` independent processes of that kind, merged; the feature "client" is the number of
            the request's client.
        mean_interval_s: mean time between requests, of all clients together, s.
        cv: standard deviation of the intervals over their mean; 1 is Poisson, more is burstier, 0 is periodic.
        clients: how many, at least 1.
        spread: standard deviation of the logarithm of the clients' rates; 0: all clients have the same rate.
        name: for tables and plots.

    Raises:
        ConfigurationError: a number out of range, or no answer lengths.
    """
    if arrivals not in get_args(Arrivals):
        raise ConfigurationError(f"unknown arrivals {arrivals!r}. {nearest(arrivals, get_args(Arrivals))}")
    for what, value, least in (("requests", requests, 1), ("clients", clients, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigurationError(f"{what} must be at least {least}, not {value}")
    for what, given in (("mean_interval_s", mean_interval_s), ("cv", cv), ("spread", spread)):
        if not (math.isfinite(given) and given >= 0):
            raise ConfigurationError(f"{what} must be 0 or more, not {given}")
    if cv > 100:
        raise ConfigurationError(f"cv must be at most 100, not {cv}; 1 is Poisson, 10 is extremely bursty")
    if answers is None:
        if not isinstance(prompts, LengthsProfile):
            raise ConfigurationError(
                "give answers, too: only a lengths profile holds both prompts and answers"
            )
        answers = prompts
    # One stream per column: a change of one column leaves the others unchanged.
    arrival_rng, prompt_rng, answer_rng = (np.random.default_rng([seed, column]) for column in range(3))
    prompt_lengths = prompts.prompt() if isinstance(prompts, LengthsProfile) else prompts
    answer_lengths = answers.output() if isinstance(answers, LengthsProfile) else answers
    features: dict[str, Ints] = {}
    if arrivals == "per-client":
        arrival_s, features["client"] = _merged(
            requests, seed, _rates(arrival_rng, clients, mean_interval_s, spread), cv
        )
        how = f"{clients} clients, log-normal spread {spread:g}, Gamma intervals with cv {cv:g}"
    else:
        cv = 1.0 if arrivals == "poisson" else cv
        arrival_s = np.zeros(requests)
        _intervals(arrival_rng, requests - 1, mean_interval_s, cv).cumsum(out=arrival_s[1:])
        how = "Poisson" if arrivals == "poisson" else f"Gamma intervals with cv {cv:g}"
    return Trace.of(
        arrival_s=arrival_s,
        prompt_tokens=prompt_lengths.sample(prompt_rng, requests),
        output_tokens=answer_lengths.sample(answer_rng, requests),
        features=features,
        name=name,
        source=f"synthetic, seed {seed}: {how}, one request in {mean_interval_s:g} s on average",
    )


def alpaca_like(requests: int, seed: int, *, mean_interval_s: float = 30.0) -> Trace:
    """Return a stand-in for the Alpaca prompts of the DiSCo paper, which may not be shipped: log-normal lengths.

    Mean and P99 of the prompts (16.8 and 69 tokens) and the mean of a modern model's answers (142.5) are Alpaca's;
    the shape of the distribution is log-normal. Poisson arrivals.

    Args:
        requests: how many, at least 1.
        seed: seed of all draws.
        mean_interval_s: mean time between requests, s.
    """
    trace = synthetic_trace(
        requests=requests,
        seed=seed,
        prompts=lognormal_lengths(ALPACA_PROMPT_MEAN, ALPACA_PROMPT_P99),
        answers=lognormal_lengths(ALPACA_ANSWER_MEAN, ALPACA_ANSWER_P99),
        mean_interval_s=mean_interval_s,
        name="alpaca-like",
    )
    return replace(
        trace, source=f"stand-in for Alpaca: log-normal lengths with its means and prompt P99; {trace.source}"
    )


def lognormal_lengths(mean: float, p99: float, *, points: int = 4096) -> Lengths:
    """Return the log-normal distribution with this mean and this 99th percentile, in whole tokens from 1 on.

    From mean = exp(μ + σ²/2) and P99 = exp(μ + zσ): σ = z − √(z² − 2 ln(P99/mean)), the smaller root.

    Args:
        mean: tokens, positive.
        p99: tokens, above the mean and at most exp(z²/2) = 14.97 times it.
        points: number of equally probable quantiles that represent the distribution.

    Raises:
        ConfigurationError: no log-normal distribution has this mean and this P99.
    """
    z = NormalDist().inv_cdf(0.99)
    if not (mean > 0 and 0 < (ratio := math.log(p99 / mean) if p99 > 0 else 0.0) <= z * z / 2):
        raise ConfigurationError(
            f"no log-normal distribution has a mean of {mean} and a P99 of {p99}; give a P99 above the mean and at "
            "most 14.97 times it"
        )
    sigma = z - math.sqrt(z * z - 2 * ratio)
    mu = math.log(mean) - sigma * sigma / 2
    normal = NormalDist(mu, sigma)
    tokens = np.exp([normal.inv_cdf((i + 0.5) / points) for i in range(points)])
    return Lengths.from_samples(np.maximum(np.rint(tokens), 1).astype(np.int64))


def _intervals(rng: np.random.Generator, n: int, mean_s: float, cv: float) -> Floats:
    """Return Gamma intervals, s, shape (n,): shape 1/cv², scale mean·cv²."""
    if cv < 1e-6:  # periodic; the Gamma's shape would overflow
        return np.full(n, mean_s)
    return rng.gamma(1.0 / cv**2, mean_s * cv**2, n)


def _rates(rng: np.random.Generator, clients: int, mean_interval_s: float, spread: float) -> Floats:
    """Return the requests per second of each client, shape (clients,)."""
    if mean_interval_s == 0:
        raise ConfigurationError('arrivals "per-client" need a mean_interval_s above 0')
    rates = rng.lognormal(0.0, spread, clients)
    return np.asarray(rates / (rates.sum() * mean_interval_s))


def _merged(requests: int, seed: int, rates: Floats, cv: float) -> tuple[Floats, Ints]:
    """Return the first requests of all clients in order: times from 0, s, and client numbers; both (requests,).

    Every client is drawn until it passes the last request that counts. Each client has its own generator, so the draws
    of one client do not depend on those of the others.
    """
    shares = rates / rates.sum()
    rngs = [np.random.default_rng([seed, 0, client]) for client in range(rates.size)]
    times: list[Floats] = [np.empty(0)] * rates.size
    until_s = math.inf
    while True:
        for client, rate in enumerate(rates):
            known = times[client]
            end_s = float(known[-1]) if known.size else 0.0
            if known.size and end_s >= until_s:
                continue
            more = _intervals(rngs[client], 16 + int(1.2 * requests * shares[client]), 1.0 / rate, cv)
            times[client] = np.concatenate([known, end_s + more.cumsum()])
        merged = np.concatenate(times)
        if merged.size < requests:
            continue
        until_s = float(np.partition(merged, requests - 1)[requests - 1])
        if all(known[-1] >= until_s for known in times):
            break
    client_of = np.repeat(np.arange(rates.size), [known.size for known in times])
    order = np.argsort(merged, kind="stable")[:requests]
    return merged[order] - merged[order[0]], client_of[order]
