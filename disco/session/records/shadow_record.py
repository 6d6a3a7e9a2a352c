"""What another preset would have done with an answer (shadow mode), a part of the route record: numbers and names.

docs/how-to/shadow.md says how it comes about, and what it cannot know.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from disco.candidate import Candidate, Reach
from disco.plan import Assist, BudgetCut, Cascade, CoolDown, Migration, Plan, Start

__all__ = [
    "ABILITIES",
    "BASES",
    "LENGTH_LEVELS",
    "Basis",
    "PlanRecord",
    "ShadowEndpoint",
    "ShadowRecord",
    "differing",
]

Basis = Literal["measured", "expected", "assumed"]
"""Where a number comes from: from this answer's own attempts, from what the client learnt of earlier answers, or from
a profile that nothing has confirmed yet."""

BASES: tuple[Basis, ...] = ("measured", "expected", "assumed")
"""From the best to the worst."""

LENGTH_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.99)
"""The quantiles of answer lengths that a record holds."""

ABILITIES = ("continues", "parks", "pauses", "follows", "limits", "announces", "standby", "loads")
"""Fields of a `Candidate` that a record lists by name where they are true."""

_COMPARED = ("starts", "fallbacks", "migrations", "order", "heirs", "tiers", "assist", "pace_tps")


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan and the pace of its reader. The attributes are those of `disco.plan.Plan`, as plain tuples.

    Attributes:
        starts: endpoint and delay in seconds.
        fallbacks: endpoints that would replace a failed one, in order.
        migrations: writer, target, and whether the target keeps its prefill when it has lost the race.
        order: when the source of a migration stops.
        heirs: endpoints that may start because another one is silent for too long.
        pace_tps: the reader's pace, tokens/s; None: text is shown as it comes.
        tiers, display: of a cascade; see `plan.Cascade`. No tiers: no answer is judged.
        assist: how the answer is divided; None: it is not.
    """

    starts: tuple[tuple[str, float], ...]
    fallbacks: tuple[str, ...] = ()
    migrations: tuple[tuple[str, str, bool], ...] = ()
    order: str = "auto"
    heirs: tuple[str, ...] = ()
    pace_tps: float | None = None
    tiers: tuple[tuple[str, ...], ...] = ()
    display: str | None = None
    assist: Assist | None = None

    @classmethod
    def of(cls, plan: Plan, pace_tps: float | None, *, may_migrate: bool = True) -> PlanRecord:
        """Return the record of a plan; without its migrations where the request forbids them."""
        moves = plan.migrations.items() if may_migrate else ()
        return cls(
            starts=tuple((s.endpoint, s.after_s) for s in plan.starts),
            fallbacks=plan.fallbacks,
            migrations=tuple((writer, move.target, move.keep_prefill) for writer, move in moves),
            order=plan.order,
            heirs=plan.heirs,
            pace_tps=pace_tps,
            tiers=() if plan.cascade is None else plan.cascade.tiers,
            display=None if plan.cascade is None or not plan.cascade.tiers else plan.cascade.display,
            assist=plan.assist,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON."""
        return {
            "starts": [[name, round(after_s, 6)] for name, after_s in self.starts],
            "fallbacks": list(self.fallbacks),
            "migrations": [list(move) for move in self.migrations],
            "order": self.order,
            "heirs": list(self.heirs),
            "pace_tps": self.pace_tps,
            "tiers": [list(tier) for tier in self.tiers],
            "display": self.display,
            "assist": None if self.assist is None else asdict(self.assist),
        }

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan(
            starts=tuple(Start(*start) for start in self.starts),
            fallbacks=self.fallbacks,
            migrations={writer: Migration(target, keeps) for writer, target, keeps in self.migrations},
            heirs=self.heirs,
            order=self.order,  # type: ignore[arg-type] # written by `of`
            cascade=Cascade(self.tiers, self.display or "guard") if self.tiers else None,  # type: ignore[arg-type]
            assist=self.assist,
        )


def differing(one: PlanRecord, other: PlanRecord) -> tuple[str, ...]:
    """Return the names of the attributes in which two plans differ."""
    return tuple(name for name in _COMPARED if getattr(one, name) != getattr(other, name))


@dataclass(frozen=True, slots=True)
class ShadowEndpoint:
    """An endpoint as the other preset saw it for this answer; see `disco.candidate.Candidate`.

    Attributes:
        known: whether its speed was measured here; False: it comes from a profile.
        abilities: those of `ABILITIES` that the endpoint had.
        prefill_tps: None where prefill does not depend on the prompt's length.
        name, reach, cost_in, cost_out, cached_share, overhead_s, ttft_quantiles, load_s, queue_s, decode_tps,
            reading_spare, silence_s, slow_start, rank, context_tokens: as the candidate's, and its rates'.
    """

    name: str
    reach: Reach
    cost_in: float
    cost_out: float
    cached_share: float
    known: bool
    prefill_tps: float | None
    overhead_s: float
    ttft_quantiles: tuple[float, ...]
    load_s: float
    queue_s: float
    decode_tps: float
    reading_spare: float
    silence_s: float | None
    slow_start: float | None
    rank: int
    context_tokens: int | None
    abilities: tuple[str, ...]

    @classmethod
    def of(cls, candidate: Candidate, *, known: bool) -> ShadowEndpoint:
        """Return what is recorded of a candidate."""
        rates = candidate.rates
        return cls(
            name=candidate.name,
            reach=candidate.reach,
            cost_in=rates.cost_in,
            cost_out=rates.cost_out,
            cached_share=rates.cached_share,
            known=known,
            prefill_tps=None if math.isinf(candidate.prefill_tps) else candidate.prefill_tps,
            overhead_s=candidate.overhead_s,
            ttft_quantiles=candidate.ttft_quantiles,
            load_s=candidate.load_s,
            queue_s=candidate.queue_s,
            decode_tps=candidate.decode_tps,
            reading_spare=candidate.reading_spare,
            silence_s=candidate.silence_s if candidate.may_be_doubted else None,
            slow_start=candidate.slow_start if candidate.may_be_doubted else None,
            rank=candidate.rank,
            context_tokens=candidate.context_tokens,
            abilities=tuple(name for name in ABILITIES if getattr(candidate, name)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, ready for JSON; times in whole 0.1 ms."""
        row = {name: getattr(self, name) for name in self.__slots__}
        row |= {name: round(row[name], 4) for name in ("overhead_s", "load_s", "queue_s")}
        row["ttft_quantiles"] = [round(seconds, 4) for seconds in self.ttft_quantiles]
        row["abilities"] = list(self.abilities)
        return row


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """What another preset would have done with the answer.

    Its plan was made at the moment of the request, from the same features, statistics and cool-downs as the real one.
    Nothing of it was carried out. The estimates say what would have followed if the answer had stayed with the endpoint
    that wrote first; `disco shadow` computes what migrations would have changed.

    Attributes:
        preset: the other preset's name.
        plan: its plan; None where it would have refused the request.
        refused: the class of the error; None where there is a plan.
        real: the plan that was carried out.
        differs: in which attributes the two plans differ.
        endpoints: the endpoints as the other preset saw them, with its own exchange rate.
        lengths: quantiles of the lengths of answers at `LENGTH_LEVELS`, tokens, as the client knew them.
        streams, may_migrate, may_continue: see `session.session_config.SessionConfig`.
        deprioritised, budget_cuts: as in the route record, of the other plan.
        rises: the share of answers that the first tier of a cascade would hand up; None without one, or where that is
            not known.
        rises_by: "rule" (the rule "exact" hands up this share whatever the scores), "history" (the rule "paper", and
            the number of scores in the tier's history); None where `rises` is.
        winner: the endpoint that would have written first, as far as is known.
        ttft_s, ttft_basis: the time to its first token as generated, s, and where the number comes from.
        bill_usd, device_energy_j, policy_cost: what the ledger would have charged, at the rates of the real preset; see
            `cost.Charge`. Of a cascade: if the first tier's answer were kept.
        cost_basis: where these three come from.
        sooner_s, cheaper_usd: how much sooner that is than what happened, and how much lower its bill; below 0: later,
            higher.
    """

    preset: str
    plan: PlanRecord | None
    refused: str | None
    real: PlanRecord
    differs: tuple[str, ...] = ()
    endpoints: tuple[ShadowEndpoint, ...] = ()
    lengths: tuple[int, ...] = ()
    streams: bool = True
    may_migrate: bool = True
    may_continue: bool = True
    deprioritised: tuple[CoolDown, ...] = ()
    budget_cuts: tuple[BudgetCut, ...] = ()
    rises: float | None = None
    rises_by: Literal["rule", "history"] | None = None
    winner: str | None = None
    ttft_s: float | None = None
    ttft_basis: Basis | None = None
    bill_usd: float | None = None
    device_energy_j: float | None = None
    policy_cost: float | None = None
    cost_basis: Basis | None = None
    sooner_s: float | None = None
    cheaper_usd: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, names and lists, ready for JSON."""
        row: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        row["plan"] = None if self.plan is None else self.plan.to_dict()
        row["real"] = self.real.to_dict()
        row["differs"] = list(self.differs)
        row["lengths"] = list(self.lengths)
        row["endpoints"] = [endpoint.to_dict() for endpoint in self.endpoints]
        row["deprioritised"] = [asdict(one) for one in self.deprioritised]
        row["budget_cuts"] = [asdict(one) for one in self.budget_cuts]
        for name in ("ttft_s", "sooner_s"):
            row[name] = None if row[name] is None else round(row[name], 6)
        return row
