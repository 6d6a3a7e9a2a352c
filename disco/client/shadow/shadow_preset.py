"""The other preset of a client in shadow mode: its dispatchers, random choices and budgets, apart from the real ones.

Nothing here starts, claims or reserves anything of the client's. An exception ends shadow mode for that answer, with
one line in the log for the whole client, and never reaches the answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from disco.candidate import Candidate, Payer
from disco.client.endpoint_catalog.catalog import CatalogEntry, EndpointCatalog
from disco.client.endpoint_catalog.dispatchers import Dispatchers
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics
from disco.client.planning import PlanningView
from disco.client.request_options import RequestOptions
from disco.client.shadow.shadow_answer import ShadowAnswer, ShadowMoment
from disco.cost.budget_limiter import BudgetLimiter
from disco.dispatch import Features, Preset, load_preset
from disco.dispatch.power.power_rule import PowerState, power_of, spared_by, step, with_traffic
from disco.dispatch.presets import with_limits
from disco.plan import Power
from disco.power import PowerReadings
from disco.request import Request
from disco.session.records.shadow_record import LENGTH_LEVELS
from disco.session.switching.answer_lengths import AnswerLengths
from disco.telemetry.log_lines import LOG

__all__ = ["Shadow"]

T = TypeVar("T")


class Shadow:
    """Plans every routed answer of a client under another preset, too, without carrying the plan out.

    Mutable: the policies' state, `limiter` (charged with estimates), `_warned`, `_power_state`, the
    quantiles of lengths.

    Attributes:
        preset: the other preset, with the client's own budget.
        limiter: counts what the other preset would have spent.
    """

    def __init__(
        self,
        preset: str | os.PathLike[str] | Preset,
        budget: Mapping[str, Any] | None,
        catalog: EndpointCatalog,
        *,
        seed: int | None = None,
    ) -> None:
        """Load the preset.

        Args:
            preset: a preset's name or file, or a `Preset`.
            budget: the client's own budget, which holds under any preset.
            catalog: the client's; only read.
            seed: of the other preset's random choices, which are not those of the real one.

        Raises:
            ConfigurationError: there is no such preset, or it and the budget contradict each other.
        """
        self.preset = with_limits(load_preset(preset), budget)
        if self.preset is preset:  # dispatchers know presets by identity, and this may be the real one, too
            self.preset = self.preset.model_copy()
        self.limiter = BudgetLimiter()
        self._catalog = catalog
        self._dispatchers = Dispatchers(catalog, np.random.default_rng(None if seed is None else [seed, 1]))
        self._warned = False
        self._power_state = PowerState()
        self._lengths: AnswerLengths | None = None
        self._quantiles: tuple[int, ...] = ()

    def beside(
        self,
        request: Request,
        features: Features,
        options: RequestOptions,
        view: PlanningView,
        members: Sequence[CatalogEntry],
        known: Mapping[str, EndpointStatistics],
        *,
        local_only: bool,
    ) -> ShadowAnswer | None:
        """Note the state in which a request is planned; None where that fails. Call it before the real plan is made.

        The arguments are those of the real plan; nothing of them is changed. `local_only`: the request names the model
        on this machine.
        """
        return self.guarded(self._beside, request, features, options, view, members, known, local_only)

    def _beside(
        self,
        request: Request,
        features: Features,
        options: RequestOptions,
        view: PlanningView,
        members: Sequence[CatalogEntry],
        known: Mapping[str, EndpointStatistics],
        local_only: bool,  # noqa: FBT001 - `guarded` passes no keywords
    ) -> ShadowAnswer:
        # Before the real plan: it may claim a breaker's probe, which the other preset could have claimed as well.
        resting, probing = view.watch.look(view.now, view.offline)
        power = self._power(view.power)
        priced = [
            self._priced(c, m, request.model, power) for c, m in zip(view.candidates, members, strict=True)
        ]
        dispatcher = self._dispatchers.of(self.preset, members, known, priced, request.model)
        moment = ShadowMoment(
            request,
            features,
            options,
            view,
            priced,
            resting,
            probing,
            dispatcher,
            spared=spared_by(power, priced),
            local_only=local_only,
            offset_s=time.time() - view.now,
        )
        return ShadowAnswer(self, moment)

    def _power(self, real: Power | None) -> Power | None:
        """Return what the machine's state changes under the other preset's [power], from the real plan's readings."""
        section = self.preset.power
        if real is None or not section.enabled:
            return None
        readings = PowerReadings(
            on_battery=real.on_battery,
            battery_share=real.battery_share,
            clock_share=real.clock_share,
            load_share=real.load_share,
            metered=real.metered,
        )
        self._power_state = step(self._power_state, readings, section, time.time())
        return power_of(self._power_state, readings, section)

    def _priced(
        self, candidate: Candidate, member: CatalogEntry, model: str, power: Power | None
    ) -> Candidate:
        """Return the same endpoint in the same state, at the exchange rate of the other preset."""
        rates, parts = self._catalog.rates(member, model, self.preset, power), tuple[Payer, ...]()
        if candidate.parts and member.drafter is not None:
            drafts = self._catalog.rates(member.drafter, model, self.preset, power)
            drafter = candidate.parts[-1]
            parts = (
                Payer(member.name, candidate.place, rates),
                Payer(drafter.name, drafter.place, drafts, drafts=drafter.drafts),
            )
        priced = replace(candidate, rates=rates, parts=parts)
        return priced if power is None else with_traffic(priced, power.traffic_usd_per_mb)

    def refit(self) -> None:
        """Let the policies follow what the client has learnt."""
        self.guarded(self._dispatchers.refit)

    def quantiles(self, lengths: AnswerLengths) -> tuple[int, ...]:
        """Return the quantiles of answer lengths that records hold; computed once for each fit of the lengths."""
        if self._lengths is not lengths:
            self._lengths = lengths
            self._quantiles = tuple(lengths.remaining_quantile(0, level) for level in LENGTH_LEVELS)
        return self._quantiles

    def guarded(self, function: Callable[..., T], *arguments: object) -> T | None:
        """Return what a function returns; None, and once for the client a line in the log, where it raises."""
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 - shadow mode must not harm an answer
            if not self._warned:
                self._warned = True
                trace = error.__traceback__
                while trace is not None and trace.tb_next is not None:
                    trace = trace.tb_next
                where = "?" if trace is None else f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
                LOG.error(
                    "Shadow mode failed under the preset %r (%s in %s). The answer is not affected; it has no shadow "
                    "in its record. This is said only once.",
                    self.preset.name,
                    type(error).__name__,
                    where,
                )
            return None
