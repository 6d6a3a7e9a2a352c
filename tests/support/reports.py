"""Results to report on: small, but from the real evaluators on shipped profiles."""

from __future__ import annotations

import functools
from dataclasses import replace

from disco.cost import ExchangeRate
from disco.profiles import load_device, load_server
from disco.replay.report import Report
from disco.replay.sweeps.sweep import run_sweep
from disco.replay.workload.scenario import Arm, Scenario, scenario_for
from disco.replay.workload.synthetic import alpaca_like

BUDGETS = (0.2, 0.5, 0.8)


def scenario(name: str, device_name: str, usd_per_mflop: float) -> Scenario:
    device, server = load_device(device_name), load_server("deepseek-v3-2025")
    rate = ExchangeRate(usd_per_mflop=usd_per_mflop)
    return replace(scenario_for(device, server, exchange_rate=rate, max_tokens=128), name=name)


@functools.cache
def scenarios() -> list[Scenario]:
    """The server is the one to be spared; the device is."""
    cheap = scenario("phone × deepseek", "pixel7pro-bloom-1.1b", 1e-11)
    return [cheap, scenario("phone on battery × deepseek", "xiaomi14-qwen1.5-0.5b", 5e-9)]


def trace(seed: int, requests: int = 200):
    return alpaca_like(requests, seed)


def arms(*policies: str, budgets=BUDGETS, migrate=False) -> list[Arm]:
    fixed = [Arm("server_only", 1.0), Arm("device_only", 0.0)]
    return [*fixed, *(Arm(p, b, migrate=migrate) for p in policies for b in budgets)]


@functools.cache
def without_moves() -> Report:
    """Two scenarios, three budgets, three seeds, TTFT and cost only."""
    swept = run_sweep(trace, scenarios(), arms("auto", "optimal_wait", "random", "oracle"), seeds=3)
    return Report("Policies on a phone", ("Made-up requests.", "Shipped profiles."), tuple(swept.cells))


@functools.cache
def with_moves() -> Report:
    """One scenario, one budget, one seed, token by token, with an answer that moved from the device to the server."""
    some = [*arms("auto", budgets=(0.5,)), Arm("auto", 0.5, migrate=True)]
    swept = run_sweep(functools.partial(trace, requests=40), scenarios()[1:], some, evaluator="events")
    return Report("With migration", (), tuple(swept.cells), swept.example)
