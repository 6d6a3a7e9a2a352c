"""The figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from papers.fleet.fleet_job import Answer
from papers.fleet.fleet_scenario import FleetScenario
from papers.fleet.fleet_simulator import Finished

__all__ = ["FleetFigures", "Spread", "answer_record", "fleet_figures"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over answers: mean and quantiles (nearest rank)."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of values; all zero where there is none."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        ordered = sorted(values)
        ranks = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9, 0.99))
        return cls(fmean(ordered), *ranks)


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of a run; those of answers are over the counted ones (`skip_ms`).

    Attributes:
        requests: finished ones that count; `unfinished`: those under way at the end.
        simulated_s: length of the run.
        requests_per_s, tokens_per_s: finished between `skip_ms` and the last arrival, while the load was whole; over
            the whole run where all requests came before `skip_ms`, or at one time.
        ttft_ms: from arrival to the first token at the device, waits for the device included.
        tpot_ms: from the first to the last token, per token behind the first; answers of one token have none.
        latency_ms: from arrival to the last token.
        wait_prompt_ms, wait_round_ms: in a target's queue: of the prompt, and on average of each later pass.
        wait_drafter_ms: for the device to end an earlier request.
        wait_network_ms: of all messages of an answer behind others of its device.
        acceptance: accepted of drafted tokens. Not the probability that a token is right: what is drafted behind a
            wrong token counts as well.
        agreement: share of positions at which the drafter agrees, of the requests themselves.
        tokens_per_round: written, of rounds with a draft.
        window: mean of rounds with a draft.
        alone: share of tokens that were written without a draft, first tokens apart.
        wasted: drafted tokens that were in no pass, per answer.
        utilisation: share of the targets' time in passes, over the whole run.
        utilisation_by_pool: the same for each pool of targets.
        batch: sequences of a pass, mean; `largest_batch`: the most; `rows`: mean of a pass.
        rounds: rounds and single tokens of all answers.
        windows: how many rounds had which window.
    """

    requests: int
    unfinished: int
    simulated_s: float
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: Spread
    tpot_ms: Spread
    latency_ms: Spread
    wait_prompt_ms: Spread
    wait_round_ms: Spread
    wait_drafter_ms: Spread
    wait_network_ms: Spread
    acceptance: float
    agreement: float
    tokens_per_round: float
    window: float
    alone: float
    wasted: float
    utilisation: float
    utilisation_by_pool: dict[str, float]
    batch: float
    largest_batch: int
    rows: float
    rounds: int
    windows: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        values = asdict(self)
        values["windows"] = {str(window): count for window, count in self.windows.items()}
        return values


def fleet_figures(scenario: FleetScenario, finished: Finished) -> FleetFigures:
    """Return the figures of a run."""
    skip_s = scenario.skip_ms / 1e3
    answers = [one for one in finished.answers if one.arrived_s >= skip_s]
    drafted, accepted = (sum(getattr(one, name) for one in answers) for name in ("drafted", "accepted"))
    windows = Counter(window for one in answers for window in one.windows)
    rounds, single = sum(windows.values()), windows[0]
    # Each answer's first token comes with its prompt.
    written = sum(one.output - 1 for one in answers)
    rate, tokens_rate = _throughput(finished, skip_s)
    passes = sum(target.passes for target in finished.targets)
    pools: dict[str, list[float]] = {}
    for target in finished.targets:
        pools.setdefault(target.pool, []).append(target.busy_s / (finished.ended_s or 1.0))
    return FleetFigures(
        requests=len(answers),
        unfinished=finished.unfinished,
        simulated_s=finished.ended_s,
        requests_per_s=rate,
        tokens_per_s=tokens_rate,
        ttft_ms=_ms(one.first_s - one.arrived_s for one in answers),
        tpot_ms=_ms((one.done_s - one.first_s) / (one.output - 1) for one in answers if one.output > 1),
        latency_ms=_ms(one.done_s - one.arrived_s for one in answers),
        wait_prompt_ms=_ms(one.wait_prompt_s for one in answers),
        wait_round_ms=_ms(one.wait_rounds_s / len(one.windows) for one in answers if one.windows),
        wait_drafter_ms=_ms(one.began_s - one.arrived_s for one in answers),
        wait_network_ms=_ms(one.wait_network_s for one in answers),
        acceptance=accepted / (drafted or 1),
        agreement=_agreement(answers),
        tokens_per_round=(written - single) / ((rounds - single) or 1),
        window=drafted / ((rounds - single) or 1),
        alone=single / (written or 1),
        wasted=sum(one.wasted for one in answers) / (len(answers) or 1),
        utilisation=fmean(share for shares in pools.values() for share in shares),
        utilisation_by_pool={name: fmean(shares) for name, shares in pools.items()},
        batch=sum(target.sequences for target in finished.targets) / (passes or 1),
        largest_batch=max(target.largest for target in finished.targets),
        rows=sum(target.rows for target in finished.targets) / (passes or 1),
        rounds=rounds,
        windows=dict(sorted(windows.items())),
    )


def answer_record(answer: Answer) -> dict[str, Any]:
    """Return one answer's figures as JSON values; times in ms."""
    return {
        "number": answer.number,
        "drafter": answer.drafter,
        "target": answer.target,
        "arrival_ms": answer.arrived_s * 1e3,
        "prompt_tokens": answer.request.prompt_tokens,
        "output_tokens": answer.output,
        "ttft_ms": (answer.first_s - answer.arrived_s) * 1e3,
        "tpot_ms": (answer.done_s - answer.first_s) / (answer.output - 1) * 1e3
        if answer.output > 1
        else None,
        "latency_ms": (answer.done_s - answer.arrived_s) * 1e3,
        "drafted": answer.drafted,
        "accepted": answer.accepted,
        "wasted": answer.wasted,
        "wait_prompt_ms": answer.wait_prompt_s * 1e3,
        "wait_rounds_ms": answer.wait_rounds_s * 1e3,
        "wait_network_ms": answer.wait_network_s * 1e3,
        "windows": answer.windows,
    }


def _ms(seconds: Any) -> Spread:
    return Spread.of([each * 1e3 for each in seconds])


def _agreement(answers: Sequence[Answer]) -> float:
    asked = sum(one.output - 1 for one in answers)
    return sum(sum(map(bool, one.runs[1:])) for one in answers) / (asked or 1)


def _throughput(finished: Finished, skip_s: float) -> tuple[float, float]:
    """Return requests/s and tokens/s."""
    until_s = max((one.arrived_s for one in finished.answers), default=0.0)
    if until_s <= skip_s:
        skip_s, until_s = 0.0, finished.ended_s
    done = [one for one in finished.answers if skip_s <= one.done_s <= until_s]
    span_s = (until_s - skip_s) or 1.0
    return len(done) / span_s, sum(one.output for one in done) / span_s
