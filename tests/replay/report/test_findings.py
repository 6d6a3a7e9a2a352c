"""Every sentence that a report prints can be read off the table it stands under."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_cells import BASELINES, cell, report

from disco.replay.report import TableData, findings, terminal_tables
from disco.replay.report.findings import number

BUDGETLESS = ("server_only", "device_only", "race")


# ---------------------------------------------------------------------- read off the table


@dataclass(frozen=True)
class Line:
    """A row of a table as numbers; every figure below is drawn so that the table prints it exactly."""

    name: str
    budget: str
    p99: float
    cost: float
    used: float
    unanswered: float
    regret: float | None

    @property
    def who(self) -> str:
        return self.name if self.budget == "–" else f"{self.name} at a budget of {self.budget}"


def lines(table: TableData) -> list[Line]:
    """The rows that a finding may name: all with figures but the oracle's, which is a bound and no policy."""
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return [
        Line(
            row["policy"],
            row["budget"],
            float(row["P99"]),
            float(row["$/1000"]),
            float(row["used"].removesuffix(" %")),
            float(row.get("unanswered", "0 %").removesuffix(" %")),
            None if row["P99 vs oracle"] == "–" else float(row["P99 vs oracle"]),
        )
        for row in rows
        if row["policy"] != "oracle" and row["P99"] != "–"
    ]


def counted(rows: list[Line], conditions: str) -> list[Line]:
    """The rows that fulfil the conditions a sentence names."""
    if "answer as many requests as the best" in conditions:
        fewest = min(row.unanswered for row in rows)
        rows = [row for row in rows if row.unanswered <= fewest + 0.1]
    if "keep to their budgets within 5 %" in conditions:
        rows = [row for row in rows if row.budget == "–" or row.used <= float(row.budget) * 100 + 5]
    return rows


def more_expensive_endpoint(rows: list[Line]) -> Line | None:
    alone = [row for row in rows if row.name in BUDGETLESS[:2]]
    return max(alone, key=lambda row: row.cost, default=None)


def lowest(rows: list[Line], conditions: str, *, with_budget: bool = False) -> float:
    limit = more_expensive_endpoint(rows)
    within = [row for row in counted(rows, conditions) if limit is None or row.cost <= limit.cost]
    return min(row.p99 for row in within if not with_budget or row.budget != "–")


def is_change(text: str, value: float, reference: float) -> bool:
    """Whether "50 % less", "2.50 times the" or "the same" leads from the reference to the value."""
    times = value / reference
    if text == "the same":
        return times == pytest.approx(1, abs=0.0051)
    if found := re.fullmatch(r"([\d,.]+) times the", text):
        return float(found[1].replace(",", "")) == pytest.approx(times, rel=0.006)
    found = re.fullmatch(r"(\d+) % (more|less)", text)
    return times - 1 == pytest.approx(float(found[1]) / (100 if found[2] == "more" else -100), abs=0.0051)


LOWEST = re.compile(
    r"(?P<who>.+) has the lowest P99 TTFT of the policies compared(?P<those> that .+?)?"
    r"(?: at no more than (?P<limit>\w+)'s cost)?: (?P<s>[\d.]+) s\."
)
WITH_BUDGET = re.compile(r"Of those with a budget, (?P<who>.+) has the lowest: (?P<s>[\d.]+) s\.")
AGAINST = re.compile(r"against (\w+) \(([\d.]+) s\) (.+?) P99 TTFT and (.+?) cost")
NO_MORE_EXPENSIVE = re.compile(r"(\w+) alone is no slower and no more expensive than that\.")
ORACLE = re.compile(
    r"An oracle that knows every TTFT in advance has (?P<s>[\d.]+) s at (?:the same budget|a budget of [\d.]+): "
    r"(?:no better|(?P<gain>[\d.]+) s(?: \((?P<share>\d+) %\))? is the most that could still be gained)\."
)


def check(sentences: list[str], table: TableData) -> None:
    """Every sentence on one scenario against its table; nothing may be left over."""
    rows = lines(table)
    by_who = {row.who: row for row in rows}
    left = list(sentences)
    said = LOWEST.fullmatch(left.pop(0))
    those = said["those"] or ""
    shown = by_who[said["who"]]
    limit = more_expensive_endpoint(rows)
    assert (said["limit"] is None) == (limit is None)
    assert limit is None or next(r.cost for r in rows if r.name == said["limit"]) == limit.cost
    assert float(said["s"]) == shown.p99 == lowest(rows, those)
    if left and (said := WITH_BUDGET.fullmatch(left[0])):
        left.pop(0)
        assert shown.budget == "–", "otherwise it was the best with a budget itself"
        shown = by_who[said["who"]]
        assert float(said["s"]) == shown.p99 == lowest(rows, those, with_budget=True)
    alone = {row.name: row for row in rows if row.name in BUDGETLESS[:2] and row is not shown}
    if left and left[0].startswith("That is "):
        compared = AGAINST.findall(left.pop(0))
        assert {name for name, *_ in compared} == set(alone)
        for name, p99, slower, more_expensive in compared:
            assert float(p99) == alone[name].p99
            assert is_change(slower, shown.p99, alone[name].p99), slower
            assert is_change(more_expensive, shown.cost, alone[name].cost), more_expensive
    else:
        assert not alone
    better = {n for n, row in alone.items() if row.p99 <= shown.p99 and row.cost <= shown.cost}
    named = [m[1] for sentence in left if (m := NO_MORE_EXPENSIVE.fullmatch(sentence))]
    assert set(named) == better
    left = [sentence for sentence in left if not NO_MORE_EXPENSIVE.fullmatch(sentence)]
    if shown.regret is not None and shown.regret >= 0:
        said = ORACLE.fullmatch(left.pop(0))
        assert float(said["s"]) == pytest.approx(shown.p99 - shown.regret, rel=0.01)
        assert float(said["gain"] or 0) == pytest.approx(shown.regret, abs=0.001)
        if said["share"]:
            assert float(said["share"]) == pytest.approx(100 * shown.regret / float(said["s"]), abs=0.6)
    assert left == []


@st.composite
def scenarios(draw, name: str = "phone × server"):
    """One scenario's cells, in figures that three digits hold."""
    tenth = st.integers(11, 60).map(lambda n: n / 10)

    def made(policy: str, budget: float = 0.5, **more):
        p99 = draw(tenth)
        # At most 1 s: the oracle of the fastest draw still takes time.
        regret = draw(st.none() | st.integers(-2, 10).map(lambda n: n / 10))
        failed = draw(st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.2]))
        return cell(
            policy,
            p99=p99,
            cost=draw(tenth),
            budget=budget,
            regret=regret,
            failed=failed,
            scenario=name,
            **more,
        )

    cells = [made(policy) for policy in draw(st.lists(st.sampled_from(BUDGETLESS), unique=True))]
    for policy in draw(st.lists(st.sampled_from(["random", "wait_time"]), unique=True, min_size=not cells)):
        budgets = draw(st.lists(st.sampled_from([0.2, 0.5, 0.9]), unique=True, min_size=1))
        over = st.sampled_from([0.0, 0.05, 0.06, 0.1])
        cells += [made(policy, budget, used=budget + draw(over)) for budget in budgets]
    if draw(st.booleans()):
        cells.append(cell("oracle", p99=0.5, cost=0.5, scenario=name))
    return cells


@settings(max_examples=80)
@given(scenarios())
def test_every_sentence_on_a_scenario_follows_from_its_table(cells):
    sentences, (table,) = findings(report(*cells)), terminal_tables(report(*cells))
    rows = lines(table)
    # Without a sentence: every row that was within the cost overspent its budget or left requests unanswered.
    if sentences:
        check(sentences, table)
    else:
        limit = more_expensive_endpoint(rows)
        honest = counted(rows, "answer as many requests as the best, keep to their budgets within 5 %")
        assert not [row for row in honest if limit is None or row.cost <= limit.cost]


SUMMED = re.compile(
    r"Lowest P99 TTFT(?P<those> of the policies that .+?)?"
    r"(?P<limit> at no more than the cost of the more expensive endpoint alone(?P<some> where one was run)?)?"
    r", in (?P<found>\d+)(?: of (?P<of>\d+))? scenarios: (?P<winners>.+)\."
)
RANGE = r"([+−\d,]+) % to ([+−\d,]+) % \(median ([+−\d,]+) %\)"
SUMMED_AGAINST = re.compile(
    rf"Against (?P<name>\w+)(?: in (?P<in>\d+) of them)?: P99 TTFT {RANGE}, cost {RANGE}\."
)


def percents(texts) -> list[float]:
    return [float(text.replace("−", "-").replace(",", "")) for text in texts]


def tallied(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in re.findall(r"(\w+) in (\d+)", text)}


@settings(max_examples=30)
@given(st.lists(scenarios(), min_size=3, max_size=5))
def test_every_sentence_on_many_scenarios_follows_from_their_tables(drawn):
    cells = [replace(c, scenario=f"scenario {i}") for i, some in enumerate(drawn) for c in some]
    alone = [findings(report(*some)) for some in drawn]  # what each table says: proved above
    told = [
        (sentences, lines(terminal_tables(report(*some))[0]))
        for sentences, some in zip(alone, drawn, strict=True)
        if sentences
    ]
    if len(told) <= 2:
        return
    best = [LOWEST.fullmatch(sentences[0])["who"] for sentences, _ in told]
    chosen = [
        m["who"] if len(sentences) > 1 and (m := WITH_BUDGET.fullmatch(sentences[1])) else who
        for (sentences, _), who in zip(told, best, strict=True)
    ]
    left = findings(report(*cells))
    said = SUMMED.fullmatch(left.pop(0))
    assert (int(said["found"]), int(said["of"] or len(told))) == (
        len(told),
        len(drawn) if said["of"] else len(told),
    )
    assert (said["of"] is None) == (len(told) == len(drawn))
    limited = sum(more_expensive_endpoint(rows) is not None for _, rows in told)
    assert (bool(said["limit"]), bool(said["some"])) == (limited > 0, 0 < limited < len(told))
    names = [who.split(" at a budget")[0] for who in best]
    assert tallied(said["winners"]) == {name: names.count(name) for name in names}
    if best != chosen:
        names = [who.split(" at a budget")[0] for who in chosen]
        assert left[0].startswith("Of those with a budget: ")
        assert tallied(left.pop(0)) == {name: names.count(name) for name in names}
    shown = [next(row for row in rows if row.who == who) for (_, rows), who in zip(told, chosen, strict=True)]
    for endpoint in BUDGETLESS[:2]:
        pairs = [
            (row, other)
            for row, (_, rows) in zip(shown, told, strict=True)
            for other in rows
            if other.name == endpoint
        ]
        if not pairs:
            continue
        said = SUMMED_AGAINST.fullmatch(left.pop(0))
        assert (said["name"], int(said["in"] or len(told))) == (endpoint, len(pairs))
        slower = [100 * (row.p99 / other.p99 - 1) for row, other in pairs]
        more_expensive = [100 * (row.cost / other.cost - 1) for row, other in pairs]
        wanted = [f(changes) for changes in (slower, more_expensive) for f in (min, max, median)]
        assert percents(said.groups()[2:]) == pytest.approx(wanted, abs=0.6)
    known = [row for row in shown if row.regret is not None]
    if known:
        said = re.fullmatch(
            rf"P99 TTFT above the oracle's at the same budget(?: in (\d+) of them)?: {RANGE}\.", left.pop(0)
        )
        shares = [100 * row.regret / (row.p99 - row.regret) for row in known]
        assert int(said[1] or len(told)) == len(known)
        assert percents(said.groups()[1:]) == pytest.approx([f(shares) for f in (min, max, median)], abs=0.6)
    assert left == []


# ---------------------------------------------------------------------- word by word


def test_the_finding_is_the_best_p99_within_the_cost_of_the_more_expensive_endpoint():
    good = cell("optimal_wait", p99=1.0, cost=8.0, budget=0.4, regret=0.2)
    faster_but_more_expensive = cell("optimal_wait", p99=0.9, cost=10.1, budget=0.9)
    slower = cell("random", p99=1.1, cost=2.0)
    impossible = cell("oracle", p99=0.8, cost=8.0, budget=0.4)
    assert findings(report(*BASELINES, slower, good, faster_but_more_expensive, impossible)) == [
        (
            "optimal_wait at a budget of 0.4 has the lowest P99 TTFT of the policies compared at no more than "
            "server_only's cost: 1.00 s."
        ),
        (
            "That is against server_only (2.00 s) 50 % less P99 TTFT and 20 % less cost; against device_only (4.00 s) "
            "75 % less P99 TTFT and 8.00 times the cost."
        ),
        (
            "An oracle that knows every TTFT in advance has 0.800 s at the same budget: 0.200 s (25 %) is the most "
            "that could still be gained."
        ),
    ]


def test_an_endpoint_alone_that_is_best_is_called_so_and_the_best_with_a_budget_named_after_it():
    overspent = cell("wait_time", p99=0.5, cost=5.0, budget=0.2, used=0.9)
    silent = cell("length_threshold", p99=0.4, cost=5.0, failed=0.3)
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


def test_figures_of_two_evaluators_are_not_compared():
    told = findings(report(*BASELINES, cell("random", p99=1.0, cost=3.0, evaluator="events")))
    assert told[0].startswith(
        "phone × server (server-constrained, vectorised): server_only (vectorised) has the lowest"
    )
    assert told[2] == (
        "phone × server (server-constrained, events): random (events) at a budget of 0.5 has the lowest P99 TTFT of "
        "the policies compared: 1.00 s."
    )


def test_many_scenarios_are_summed_up():
    made = (*BASELINES, cell("wait_time", p99=1.0, cost=5.0, regret=0.1))
    assert findings(report(*(replace(c, scenario=f"scenario {i}") for i in range(4) for c in made))) == [
        (
            "Lowest P99 TTFT at no more than the cost of the more expensive endpoint alone, in 4 scenarios: "
            "wait_time in 4."
        ),
        "Against server_only: P99 TTFT −50 % to −50 % (median −50 %), cost −50 % to −50 % (median −50 %).",
        "Against device_only: P99 TTFT −75 % to −75 % (median −75 %), cost +400 % to +400 % (median +400 %).",
        "P99 TTFT above the oracle's at the same budget: +11 % to +11 % (median +11 %).",
    ]


def test_nothing_measured_is_nothing_found():
    assert findings(report(cell("wait_time", p99=math.nan, cost=1.0))) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.6, "1,235"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.1234, "0.123"),
        (0.001234, "0.00123"),
        (0, "0.000"),
        (1.5e-6, "0.0000015"),
        (math.nan, "–"),
        (-0.0514, "-0.0514"),
    ],
)
def test_numbers_have_about_three_digits_and_no_exponent(value, text):
    assert number(value) == text
