"""One answer under the other preset: its plan at the moment of the request, and what it would have come to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from disco.candidate import Candidate, Reach
from disco.client.planning import PlanningView, as_affordable, as_asked, is_judgeable, pace_of
from disco.client.request_options import RequestOptions
from disco.client.shadow.shadow_estimate import ShadowEstimate, estimate
from disco.cost import Ledger
from disco.cost.budget_reservation import BudgetReservation
from disco.cost.token_bounds import most_prompt_tokens
from disco.dispatch import Dispatcher, Features
from disco.dispatch.answer_judging import DEFAULT_TASK
from disco.errors import BudgetExceededError, DiscoError
from disco.plan import CoolDown, Plan
from disco.request import Prefix, Request
from disco.session.machine import Session
from disco.session.records.shadow_record import PlanRecord, ShadowEndpoint, ShadowRecord, differing

if TYPE_CHECKING:
    from disco.client.shadow.shadow_preset import Shadow

__all__ = ["ShadowAnswer", "ShadowMoment"]


@dataclass(frozen=True, slots=True)
class ShadowMoment:
    """The state in which a request was planned.

    Attributes:
        request: dropped once the plan is made.
        features: as the real plan had them.
        options: the request's.
        view: what the real plan was made from.
        candidates: the view's, at the rates of the other preset.
        resting, probing: which endpoints cooled down, and which could be probed.
        dispatcher: plans under the other preset.
        spared: endpoints that the other preset's [power] leaves alone now, by name.
        local_only: whether the request names the model on this machine.
        offset_s: seconds to add to the session's clock to get Unix time.
    """

    request: Request
    features: Features
    options: RequestOptions
    view: PlanningView
    candidates: Sequence[Candidate]
    resting: Mapping[str, CoolDown]
    probing: Collection[str]
    dispatcher: Dispatcher
    spared: Mapping[str, CoolDown]
    local_only: bool
    offset_s: float


@dataclass(frozen=True, slots=True)
class _Planned:
    """The other plan, and what its record needs besides the closed session. Numbers and names only."""

    plan: Plan | None
    refused: str | None
    pace_tps: float | None
    may_continue: bool
    endpoints: tuple[ShadowEndpoint, ...]
    lengths: tuple[int, ...]
    known: frozenset[str]
    reservation: BudgetReservation | None
    rises: tuple[float | None, Literal["rule", "history"] | None]
    dispatcher: Dispatcher


class ShadowAnswer:
    """The other preset's plan of one answer. Mutable: `_moment` (None once the plan is made), `_planned`."""

    __slots__ = ("_moment", "_planned", "_shadow")

    def __init__(self, shadow: Shadow, moment: ShadowMoment) -> None:
        self._shadow = shadow
        self._moment: ShadowMoment | None = moment
        self._planned: _Planned | None = None

    def plan(self) -> None:
        """Make the plan, unless it is made. Never raises."""
        moment, self._moment = self._moment, None
        if moment is not None:
            self._planned = self._shadow.guarded(self._plan, moment)

    def ended(self, session: Session, ledger: Ledger) -> ShadowRecord | None:
        """Return the record, once the real answer has closed; None where the plan could not be made. Never raises."""
        self.plan()
        if self._planned is None:
            return None
        return self._shadow.guarded(self._record, self._planned, session, ledger)

    # ------------------------------------------------------------------ at the request

    def _plan(self, moment: ShadowMoment) -> _Planned:
        preset, options, view = self._shadow.preset, moment.options, moment.view
        pace = pace_of(moment.features, preset, options)
        divides = pace is not None and options.migrate is not False
        features = replace(
            moment.features,
            reach="device" if preset.limits.local_only else _reach(moment),
            divided_at_tps=pace.tps if pace is not None and divides else None,
            refined_tokens=None,  # the prompt is not refined only to know what would be left of it
        )
        reservation = self._reservation(moment, features)
        plan, refused = None, None
        try:
            plan = self._made(moment, features, reservation)
        except DiscoError as error:
            refused = type(error).__name__
        known = frozenset(view.known)
        return _Planned(
            plan,
            refused,
            None if pace is None else pace.tps,
            features.may_migrate and not (moment.request.classes or options.classes),
            tuple(ShadowEndpoint.of(c, known=c.name in known and c.is_measured) for c in moment.candidates),
            self._shadow.quantiles(view.lengths),
            known,
            reservation,
            (None, None) if plan is None else self._rises(plan, moment),
            moment.dispatcher,
        )

    def _made(self, moment: ShadowMoment, features: Features, reservation: BudgetReservation | None) -> Plan:
        """Return the plan, as `planning.prepare` makes it.

        Raises:
            DiscoError: the other preset would refuse the request.
        """
        preset, options, view = self._shadow.preset, moment.options, moment.view
        request = as_asked(moment.request, options, preset)
        plan = moment.dispatcher.plan(
            features,
            moment.candidates,
            view.served,
            budget_class=options.budget_class or "standard",
            resting=moment.resting,
            probing=moment.probing,
            spared=moment.spared,
            takeover=options.takeover,
        )
        by_name = {c.name: c for c in moment.candidates}
        plan = as_affordable(plan, moment.dispatcher, by_name, reservation, features, options, view)
        is_text = is_judgeable(request, features)
        plan, _ = view.judging.judged(
            plan,
            preset,
            view.model_of,
            task=options.task,
            classes=request.classes,
            wish=options.judge,
            is_text=is_text,
            streams=features.stream,
            revises=request.responses is None,
        )
        return plan

    def _reservation(self, moment: ShadowMoment, features: Features) -> BudgetReservation | None:
        """Return access to the budgets that the other preset would have; nothing is reserved by it."""
        limits = self._shadow.preset.limits
        if not limits.budgets:
            return None
        choices = moment.request.params.get("n")
        return BudgetReservation(
            self._shadow.limiter,
            limits.budgets,
            {c.name: c.payers for c in moment.candidates},
            most_prompt_tokens(moment.request),
            max_tokens=features.max_tokens,
            choices=choices if isinstance(choices, int) and choices > 0 else 1,
            offset_s=moment.offset_s,
        )

    def _rises(
        self, plan: Plan, moment: ShadowMoment
    ) -> tuple[float | None, Literal["rule", "history"] | None]:
        """Return the share of answers that the first tier would hand up, and how that is known."""
        settings = self._shadow.preset.cascade
        if plan.cascade is None or len(plan.cascade.tiers) < 2 or settings.aim != "share":
            return None, None
        if settings.rule == "exact":
            return settings.beta, "rule"
        model_of, task = moment.view.model_of, moment.options.task or DEFAULT_TASK
        first = plan.starts[0].endpoint
        scores = moment.view.judging.book.scores_of(task, f"{first}/{model_of(first)}")
        if not scores:
            return None, None
        k = min(scores + 1, settings.window)
        return math.ceil(settings.beta * (k - 1)) / k, "history"  # see `judging.Rule`

    # ------------------------------------------------------------------ at the end

    def _record(self, planned: _Planned, session: Session, ledger: Ledger) -> ShadowRecord:
        config = session.config
        real = PlanRecord.of(session.plan, config.pace_tps, may_migrate=config.may_migrate)
        facts: dict[str, Any] = {
            "preset": self._shadow.preset.name,
            "refused": planned.refused,
            "real": real,
            "endpoints": planned.endpoints,
            "lengths": planned.lengths,
            "streams": config.streams,
            "may_migrate": config.may_migrate,
            "may_continue": planned.may_continue,
        }
        if planned.plan is None:
            return ShadowRecord(plan=None, **facts)
        plan = PlanRecord.of(planned.plan, planned.pace_tps, may_migrate=config.may_migrate)
        found = estimate(planned.plan, session.candidates, planned.known, session)
        first_s = 0.0 if found is None else found.ttft_s
        started = {session.candidates[s.endpoint].place for s in planned.plan.starts if s.after_s <= first_s}
        planned.dispatcher.settle(planned.plan.spend, started)
        if found is not None:
            written_at = session.transcript.generated.at
            # A probe in the background belongs to no answer.
            paid_usd = math.fsum(c.bill_usd for c in ledger.charges if c.attempt is not None)
            facts |= {
                "sooner_s": written_at[0] - session.started_at - found.ttft_s if written_at else None,
                "cheaper_usd": paid_usd - found.bill_usd,
                "winner": found.winner,
                "ttft_s": found.ttft_s,
                "ttft_basis": found.ttft_basis,
                "bill_usd": found.bill_usd,
                "device_energy_j": found.device_energy_j,
                "policy_cost": found.policy_cost,
                "cost_basis": found.cost_basis,
            }
            self._charge(planned, found, session)
        return ShadowRecord(
            plan=plan,
            differs=differing(plan, real),
            deprioritised=planned.plan.deprioritised,
            budget_cuts=planned.plan.budget_cuts,
            rises=planned.rises[0],
            rises_by=planned.rises[1],
            **facts,
        )

    def _charge(self, planned: _Planned, found: ShadowEstimate, session: Session) -> None:
        """Charge the other preset's own budgets with what it would have spent."""
        if planned.reservation is None:
            return
        now = session.ending.closed_at or session.started_at
        for number, (name, usage) in enumerate(found.usage.items()):
            with suppress(BudgetExceededError):
                planned.reservation.open(number, name, Prefix(), now)
            planned.reservation.settle(number, usage, reported=True, now=now)


def _reach(moment: ShadowMoment) -> Reach:
    """Return how far the request itself may travel, whatever the real preset allows."""
    if moment.local_only or moment.options.local_only:
        return "device"
    return moment.options.reach or "any"
