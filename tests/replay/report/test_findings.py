"""What a report says in words: the best of those that count, within the cost of the more expensive endpoint."""

from __future__ import annotations

import math
from dataclasses import replace

from made_cells import BASELINES, cell, report

from disco.replay.report import findings
from disco.replay.report.findings import number

SERVER_ONLY, DEVICE_ONLY = BASELINES


def test_what_counts_at_the_borders():
    fair, best = cell("random", p99=1.5, cost=9.0), {"p99": 1.0, "cost": 9.0}
    for other, wins in (
        ({**best, "cost": 10.0, "used": 0.55, "failed": 0.001}, True),
        ({**best, "used": 0.56}, False),
        ({**best, "failed": 0.0011}, False),
        ({**best, "cost": 10.1}, False),
        ({"p99": 1.5, "cost": 8.0}, True),
        ({"p99": 1.5, "cost": 9.5}, False),
    ):
        told = findings(
            report(*BASELINES, fair, cell("wait_time", **other), cell("oracle", p99=0.5, cost=0.5))
        )
        assert told[0].startswith(f"{'wait_time' if wins else 'random'} at a budget of 0.5 has the lowest"), (
            other
        )
    assert findings(report(cell("wait_time", p99=math.nan, cost=1.0))) == []
    silent = cell("server_only", p99=2.0, cost=1.0, failed=0.2)
    assert findings(report(silent, cell("random", p99=1.0, cost=2.0))) == []


def test_the_finding_is_the_best_p99_within_the_cost_of_the_more_expensive_endpoint():
    good = cell("optimal_wait", p99=1.0, cost=8.0, budget=0.4, regret=0.2)
    faster_but_more_expensive = cell("optimal_wait", p99=0.9, cost=10.1, budget=0.9)
    assert findings(report(*BASELINES, good, faster_but_more_expensive)) == [
        (
            "optimal_wait at a budget of 0.4 has the lowest P99 TTFT of the policies compared at no more than "
            "server_only's cost: 1.00 s."
        ),
        (
            "That is against server_only (2.00 s) 50 % less P99 TTFT and 20 % less cost; against device_only (4.00 s) "
            "75 % less P99 TTFT and 8.00 times the cost."
        ),
        (
            "An oracle that knows every TTFT in advance has 0.800 s at the same budget: 0.200 s (20 %) is the most "
            "that could still be gained."
        ),
    ]


def test_an_endpoint_alone_that_is_best_is_called_so_and_the_best_with_a_budget_named_after_it():
    silent = cell("length_threshold", p99=0.4, cost=5.0, failed=0.3)
    overspent = cell("wait_time", p99=0.5, cost=5.0, budget=0.2, used=0.9)
    slow = cell("random", p99=5.0, cost=2.0, used=0.53, regret=0.0)
    assert findings(report(*BASELINES, overspent, silent, slow)) == [
        (
            "server_only has the lowest P99 TTFT of the policies compared that answer as many requests as the best and "
            "keep to their budgets within 5 % at no more than server_only's cost: 2.00 s."
        ),
        "Of those with a budget, random at a budget of 0.5 has the lowest: 5.00 s.",
        (
            "That is against server_only (2.00 s) 2.50 times the P99 TTFT and 80 % less cost; against device_only "
            "(4.00 s) 25 % more P99 TTFT and 2.00 times the cost."
        ),
        "device_only alone is no slower and no more expensive than that.",
        "An oracle that knows every TTFT in advance has 5.00 s at the same budget: no better.",
    ]
    same = cell("wait_time", p99=4.01, cost=1.0)
    told = findings(report(DEVICE_ONLY, cell("race", p99=3.0, cost=0.5), same))
    assert told[2:] == [
        "That is against device_only (4.00 s) the same P99 TTFT and the same cost.",
        "device_only alone is no slower and no more expensive than that.",
    ]


def test_figures_of_two_evaluators_are_not_compared():
    told = findings(report(*BASELINES, cell("random", p99=1.0, cost=3.0, evaluator="events")))
    assert told[0].startswith("phone × server (server-constrained, vectorised): server_only (vectorised) has")
    assert told[2] == (
        "phone × server (server-constrained, events): random (events) at a budget of 0.5 has the lowest P99 TTFT of "
        "the policies compared: 1.00 s."
    )


def many(*made):
    return report(*(replace(c, scenario=f"scenario {i}") for i, cells in enumerate(made) for c in cells))


def test_many_scenarios_are_summed_up():
    good = cell("wait_time", p99=1.0, cost=5.0, regret=0.1)
    slow = cell("random", p99=5.0, cost=2.0)
    silent, overspent = cell("race", p99=2, cost=1, failed=0.2), cell("random", p99=1, cost=1, used=0.9)
    assert findings(many((*BASELINES, good), (SERVER_ONLY, slow), (good, silent), (overspent,))) == [
        (
            "Lowest P99 TTFT of the policies that answer as many requests as the best at no more than the cost of the "
            "more expensive endpoint alone where one was run, in 3 of 4 scenarios: wait_time in 2, server_only in 1."
        ),
        "Of those with a budget: wait_time in 2, random in 1.",
        (
            "Against server_only in 2 of them: "
            "P99 TTFT −50 % to +150 % (median +50 %), cost −80 % to −50 % (median −65 %)."
        ),
        (
            "Against device_only in 1 of them: "
            "P99 TTFT −75 % to −75 % (median −75 %), cost +400 % to +400 % (median +400 %)."
        ),
        "P99 TTFT above the oracle's at the same budget in 2 of them: +11 % to +11 % (median +11 %).",
    ]
    assert findings(many(*[(*BASELINES, good)] * 3))[0].endswith(
        "endpoint alone, in 3 scenarios: wait_time in 3."
    )
    assert len(findings(many((*BASELINES, good), (*BASELINES, slow)))) > 6, "two are spelt out"


def test_numbers_have_about_three_digits_and_no_exponent():
    values = 1234.6, 12.34, 1.234, 0.1234, 0.001234, 0, 1.5e-6, math.nan, -0.0514
    printed = "1,235", "12.3", "1.23", "0.123", "0.00123", "0.000", "0.0000015", "–", "-0.0514"
    assert tuple(map(number, values)) == printed
