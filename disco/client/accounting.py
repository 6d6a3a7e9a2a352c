"""Account for a finished answer: charge it, write its route record, learn from it and report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import anyio

from disco.client.background_probes import BackgroundProbes
from disco.client.endpoint_catalog.observed.refusals import Refusals
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics, Statistics
from disco.client.live_driver import LiveSession
from disco.client.shadow.shadow_answer import ShadowAnswer
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch import Dispatcher
from disco.dispatch.answer_judging import Judging
from disco.dispatch.breakers.endpoint_health import HealthWatch
from disco.endpoints.contract import Endpoint
from disco.session.machine import Session
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.telemetry.log_lines import log_failure
from disco.telemetry.reporter import AnswerReport

__all__ = ["Accounting"]


class Accounting:
    """Accounts for the end of one answer. Called once, in the background, with the closed session.

    Args:
        live: the answer, which gets its route record.
        watch, reservation, report: those of this answer.
        statistics: those of the client.
        endpoints: what is known about the endpoints that took part, by endpoint name.
        refusals: what servers refuse until a person does something.
        dispatcher: planned the request, under its preset.
        judging: the judge of the client's answers.
        created_s: when the request came, Unix time in seconds.
        on_refit: called when there is enough new data to fit the policies again.
        on_end: called last.
        told: called before; asks servers what they publish.
        probes: those of the client; None where the request had to stay on this machine.
        members: every endpoint that took part or could have, by name.
        model: the model that the request named.
        shadow: what another preset would do with the request; None without shadow mode.
    """

    def __init__(
        self,
        *,
        watch: HealthWatch,
        reservation: BudgetReservation | None,
        report: AnswerReport,
        statistics: Statistics,
        endpoints: Mapping[str, EndpointStatistics],
        refusals: Refusals,
        dispatcher: Dispatcher,
        judging: Judging,
        created_s: float,
        on_refit: Callable[[], None],
        on_end: Callable[[], None],
        told: Callable[[], None],
        probes: BackgroundProbes | None,
        members: Mapping[str, Endpoint],
        model: str,
        shadow: ShadowAnswer | None = None,
    ) -> None:
        self._watch = watch
        self._reservation = reservation
        self._report = report
        self._statistics = statistics
        self._endpoints = endpoints
        self._refusals = refusals
        self._dispatcher, self._preset = dispatcher, dispatcher.preset
        self._judging = judging
        self._created_s = created_s
        self._on_refit = on_refit
        self._on_end = on_end
        self._told = told
        self._probes = probes
        self._members = members
        self._model = model
        self._shadow = shadow
        self.live: LiveSession | None = None  # set once the live session exists

    def __call__(self, session: Session) -> None:
        """Account for the answer of `session`, which has closed."""
        live = self.live
        assert live is not None
        self._watch.close()
        if self._reservation is not None:
            self._reservation.close(anyio.current_time())
        if live.error is None:  # else the error says it
            self._refusals.after(session, self._watch, self._members, self._model)
        for state in session.attempts:
            if state.failure is not None:
                log_failure(state.candidate.name, state.failure)
        ledger = settle_accounts(session)
        if self._probes is not None:
            for charge in self._probes.take_charges():
                ledger.enter(charge)
        traffic = (state.traffic for state in session.attempts)
        self._judging.answered(session.plan, self._preset, traffic, ledger.totals().bill_usd)
        # The closed session no longer changes, so its record may be written on demand. The budgets that the record
        # reports do change: where there are any, the record is written now.
        shadow = None if self._shadow is None else self._shadow.ended(session, ledger)
        name, rate = self._preset.name, self._preset.cost.exchange_rate
        record = partial(make_record, session, ledger, preset=name, exchange_rate=rate, shadow=shadow)
        live.written = cache(partial(record, created_s=self._created_s))
        if self._reservation is not None:
            live.written()
        for name, statistics in self._endpoints.items():
            if statistics.line is not None:  # of a device, whose model may have been loaded meanwhile
                statistics.saw(self._members[name].capabilities(self._model))
        self._dispatcher.settle(session.plan.spend, {state.candidate.place for state in session.attempts})
        if self._statistics.learn(session, self._endpoints):
            self._on_refit()
        if self._report.listens:
            self._report.finish(live.written(), live.error)
        if self._probes is not None:
            self._probes.after(session, self._members, self._model)
        self._told()
        self._on_end()
