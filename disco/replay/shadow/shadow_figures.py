"""The figures of shadow mode: what happened beside what would have happened, with intervals over answers.

What would have happened is what the run of the other plan comes to. Where the two plans have the same starts, it is
what happened plus the difference between the runs of both plans on the same times: so where the plans are the same,
nothing is estimated. An answer with a judge cannot be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.replay.metrics.intervals import Figure, percentile_interval
from disco.replay.metrics.plain_numbers import plain
from disco.replay.shadow.shadow_recording import ShadowedAnswer
from disco.replay.shadow.shadow_runs import Played, ShadowRuns
from disco.session.records.shadow_record import BASES, Basis, differing

__all__ = ["RESAMPLES", "Comparison", "Side", "compare"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Side:
    """The figures of one preset.

    Attributes:
        ttft_mean_s, ttft_p50_s, ttft_p99_s: of the first token as generated, s.
        cost_usd: per answer.
        starts: attempts from the beginning, per answer.
        moved: share of answers that migrated.
        first: share of answers whose first token each endpoint wrote.
    """

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    cost_usd: float
    starts: float
    moved: float
    first: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What happened under one preset, beside what another would have come to.

    Attributes:
        preset, shadow: their names.
        answers: how many.
        differ: how many of the plans differ, by attribute; "starts" and "migrations" matter, "any" counts each once.
        real, other: the figures of the two.
        ttft_mean_s, ttft_p50_s, ttft_p99_s: the other's less the real, s.
        cost_ratio: the other's cost over the real one; NaN where nothing was spent.
        ttft_from, cost_from: share of answers whose number is measured, expected, or assumed.
        least: share of answers whose first token would have come later than counted: the endpoint was stopped before it
            wrote, and no longer time of it is known. So TTFTs are too short.
        rises: share of answers that the first tier of a cascade would hand up; None without one, or where that is not
            known.
        rise_usd: what these would cost more, per answer; None as above. Not in `other`.
        is_cascade: the other preset judges answers: its first words would come later than `other` says.
        run_ttft_s, run_cost: of the real plans: mean TTFT of their runs less that of what happened, s, and the ratio of
            the costs. How far the runs can be trusted. NaN where no real plan was run.
    """

    preset: str
    shadow: str
    answers: int
    differ: Mapping[str, int]
    real: Side
    other: Side
    ttft_mean_s: Figure
    ttft_p50_s: Figure
    ttft_p99_s: Figure
    cost_ratio: Figure
    ttft_from: Mapping[Basis, float]
    cost_from: Mapping[Basis, float]
    least: float
    rises: float | None
    rise_usd: float | None
    is_cascade: bool
    run_ttft_s: float
    run_cost: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and names, ready for JSON; an unknown number (NaN) is None."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def compare(runs: ShadowRuns, *, seed: int, resamples: int = RESAMPLES) -> list[Comparison]:
    """Return one comparison for each pair of presets, in order of appearance.

    Args:
        runs: of all answers.
        seed: of the bootstrap.
        resamples: of the bootstrap.
    """
    pairs: dict[tuple[str, str], list[int]] = {}
    for row, answer in enumerate(runs.answers):
        pairs.setdefault((answer.preset, answer.shadow), []).append(row)
    return [_comparison(runs, rows, resamples, np.random.default_rng(seed)) for rows in pairs.values()]


def _comparison(
    runs: ShadowRuns, rows: Sequence[int], resamples: int, rng: np.random.Generator
) -> Comparison:
    answers = [runs.answers[row] for row in rows]
    real = [runs.real[row] for row in rows]
    other = [runs.other[row] for row in rows]
    happened_s = np.array([answer.ttft_s for answer in answers])
    spent = np.array([answer.cost_usd for answer in answers])
    judged = np.array([bool(answer.real.tiers) for answer in answers])
    alike = ~judged & np.array([a.real.starts == a.plan.starts for a in answers])
    run_s, run_usd = _column(real, "ttft_s"), _column(real, "cost_usd")
    would_s = _corrected(_column(other, "ttft_s"), run_s, happened_s, alike)
    would_usd = _corrected(_column(other, "cost_usd"), run_usd, spent, alike)
    plain = ~judged
    resampled = _resampled(len(rows), would_s.shape[1], resamples, rng)
    cascades = [answer for answer in answers if answer.plan.tiers]
    bases = [_bases(a, r, o) for a, r, o in zip(answers, real, other, strict=True)]
    return Comparison(
        preset=answers[0].preset,
        shadow=answers[0].shadow,
        answers=len(rows),
        differ=_differ(answers),
        real=_side(happened_s[:, None], spent, [[a.winner] for a in answers], answers, real, recorded=True),
        other=_side(would_s, would_usd, [[p.winner for p in one] for one in other], answers, other),
        ttft_mean_s=_interval(would_s, happened_s, _difference_of(np.mean), resampled),
        ttft_p50_s=_interval(would_s, happened_s, _difference_of(_median), resampled),
        ttft_p99_s=_interval(would_s, happened_s, _difference_of(_p99), resampled),
        cost_ratio=_interval(
            would_usd, spent, lambda would, real: _ratio(would.mean(), real.mean()), resampled
        ),
        ttft_from=_shares([ttft for ttft, _ in bases]),
        cost_from=_shares([cost for _, cost in bases]),
        least=float(_column(other, "is_least").mean()),
        rises=_rises(cascades),
        rise_usd=_rise_usd(cascades, len(rows)),
        is_cascade=bool(cascades),
        run_ttft_s=float((run_s[plain].mean(axis=1) - happened_s[plain]).mean())
        if plain.any()
        else float("nan"),
        run_cost=_ratio(run_usd[plain].mean(axis=1).sum(), spent[plain].sum())
        if plain.any()
        else float("nan"),
    )


def _column(played: Sequence[Sequence[Played]], name: str) -> Floats:
    """Return one number of every run; shape (answers, draws)."""
    return np.array([[getattr(one, name) for one in draws] for draws in played], dtype=np.float64)


def _corrected(other: Floats, real: Floats, happened: Floats, alike: NDArray[np.bool_]) -> Floats:
    """Return what happened plus the difference of the runs where the starts are alike; shape (answers, draws)."""
    return np.where(alike[:, None], np.maximum(happened[:, None] + (other - real), 0.0), other)


def _differ(answers: Sequence[ShadowedAnswer]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for answer in answers:
        names = differing(answer.plan, answer.real)
        counts.update(names)
        counts["any"] += bool(names)
    return {"any": counts.pop("any", 0), **counts}


def _bases(answer: ShadowedAnswer, real: Sequence[Played], other: Sequence[Played]) -> tuple[Basis, Basis]:
    """Return where the TTFT and the cost of an answer under the other plan come from."""
    if answer.plan.tiers:  # a judge would have spoken, and nobody knows what it would have said
        return "assumed" if any(one.basis == "assumed" for one in other) else "expected", "expected"
    same = answer.plan.starts == answer.real.starts and not answer.real.tiers
    ttft: Basis = "measured"
    if not same:
        ttft = max((one.basis for one in other), key=BASES.index)
    exact = all(
        len(one.writers) == 1 and one.writers == answer.writers and one.started <= answer.started
        for one in other
    )
    unmoved = not any(one.moved for one in (*real, *other))
    if answer.plan == answer.real and not answer.real.tiers:
        return ttft, "measured"
    if ttft == "measured" and exact and unmoved:
        return ttft, "measured"
    return ttft, "assumed" if ttft == "assumed" else "expected"


def _side(
    ttft_s: Floats,
    cost_usd: Floats,
    winners: Sequence[Sequence[str]],
    answers: Sequence[ShadowedAnswer],
    played: Sequence[Sequence[Played]],
    *,
    recorded: bool = False,
) -> Side:
    """Return the figures of one preset; `recorded`: starts and migrations are those that happened."""
    names = dict.fromkeys(name for answer in answers for name in answer.candidates)
    every = [winner for draws in winners for winner in draws]
    starts = [len(a.started) for a in answers] if recorded else [p.starts for one in played for p in one]
    moved = [len(a.writers) > 1 for a in answers] if recorded else [p.moved for one in played for p in one]
    return Side(
        ttft_mean_s=float(ttft_s.mean()),
        ttft_p50_s=_median(ttft_s),
        ttft_p99_s=_p99(ttft_s),
        cost_usd=float(cost_usd.mean()),
        starts=float(np.mean(starts)),
        moved=float(np.mean(moved)),
        first={name: every.count(name) / len(every) for name in names},
    )


def _rises(cascades: Sequence[ShadowedAnswer]) -> float | None:
    known = [answer.rises for answer in cascades if answer.rises is not None]
    return float(np.mean(known)) if known and len(known) == len(cascades) else None


def _rise_usd(cascades: Sequence[ShadowedAnswer], answers: int) -> float | None:
    """Return what handing up costs per answer: each tier that an answer reaches reads the prompt and writes it anew."""
    if _rises(cascades) is None:
        return None
    total = 0.0
    for answer in cascades:
        share = answer.rises or 0.0
        for height, tier in enumerate(answer.plan.tiers[1:], 1):
            rates = answer.rates.get(tier[0])
            if rates is not None:
                total += share**height * rates.cost(answer.billed_tokens, answer.answer_tokens)
    return total / answers


def _resampled(answers: int, draws: int, resamples: int, rng: np.random.Generator) -> list[tuple[Ints, int]]:
    """Return the rows of each resample, and its draw."""
    return [(rng.integers(0, answers, answers), int(rng.integers(0, draws))) for _ in range(resamples)]


def _interval(
    would: Floats,
    happened: Floats,
    figure: Callable[[Floats, Floats], float],
    resampled: Sequence[tuple[Ints, int]],
) -> Figure:
    """Return a figure of what would have happened, shape (answers, draws), and what did, shape (answers,).

    Each time, answers are drawn as pairs of both, with one draw of the times not known.
    """
    drawn = [figure(would[rows, draw], happened[rows]) for rows, draw in resampled]
    return percentile_interval(figure(would, happened), drawn)


def _difference_of(figure: Callable[[Floats], Any]) -> Callable[[Floats, Floats], float]:
    return lambda would, happened: float(figure(would) - figure(happened))


def _median(values: Floats) -> float:
    return _quantile(values, 0.5)


def _p99(values: Floats) -> float:
    return _quantile(values, 0.99)


def _quantile(values: Floats, q: float) -> float:
    """Return the quantile over answers; of several draws the mean of each one's."""
    return float(np.mean(np.quantile(values, q, axis=0)))


def _ratio(would: float, spent: float) -> float:
    return float(would / spent) if spent > 0 else float("nan")


def _shares(bases: Sequence[Basis]) -> dict[Basis, float]:
    return {basis: bases.count(basis) / len(bases) for basis in BASES}
