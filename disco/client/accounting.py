"""What follows when an answer is over: it is charged, written down, learnt from and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import anyio

from disco.client.endpoint_catalog.statistics import EndpointStatistics, Statistics
from disco.client.live_driver import LiveSession
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch.breakers.endpoint_health import HealthWatch
from disco.errors import FailureKind
from disco.session.machine import Session
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.telemetry.log_lines import LOG, log_failure
from disco.telemetry.reporter import AnswerReport

__all__ = ["Accounting"]


class Accounting:
    """Accounts for the end of one answer; called once, in the background, with the closed session.

    Args:
        live: the answer, which gets its record.
        watch, reservation, report: of this answer.
        statistics: of the client.
        endpoints: what is known of those that took part, by name.
        refused: servers whose refusal of the key was logged. Mutable.
        preset: its name.
        created_s: when the request came, Unix time in seconds.
        on_refit: called when enough is new for policies to be planned again.
    """

    def __init__(
        self,
        *,
        watch: HealthWatch,
        reservation: BudgetReservation | None,
        report: AnswerReport,
        statistics: Statistics,
        endpoints: Mapping[str, EndpointStatistics],
        refused: set[object],
        preset: str,
        created_s: float,
        on_refit: Callable[[], None],
    ) -> None:
        self._watch = watch
        self._reservation = reservation
        self._report = report
        self._statistics = statistics
        self._endpoints = endpoints
        self._refused = refused
        self._preset = preset
        self._created_s = created_s
        self._on_refit = on_refit
        self.live: LiveSession | None = None  # set once there is one

    def __call__(self, session: Session) -> None:
        """The answer is over."""
        live = self.live
        assert live is not None
        self._watch.close()
        if self._reservation is not None:
            self._reservation.close(anyio.current_time())
        self._tell_of_refused_keys(session)
        for state in session.attempts:
            if state.failure is not None:
                log_failure(state.candidate.name, state.failure)
        ledger = settle_accounts(session)
        # The session has closed and changes no more, so the record may be written when it is asked for; only
        # the budgets that it reports go on changing.
        live.written = cache(
            partial(make_record, session, ledger, preset=self._preset, created_s=self._created_s)
        )
        if self._reservation is not None:
            live.written()
        if self._statistics.learn(session, self._endpoints):
            self._on_refit()
        if self._report.listens:
            self._report.finish(live.written(), live.error)

    def _tell_of_refused_keys(self, session: Session) -> None:
        """Warn once for each server: another endpoint answered, and the key would stay wrong unnoticed."""
        for state in session.attempts:
            if state.failure is FailureKind.AUTHENTICATION:
                key, _ = self._watch.keys[state.candidate.name]
                if key not in self._refused:
                    self._refused.add(key)
                    LOG.warning(
                        "Endpoint %r refuses its key (401 or 403); others answer in its place where there are any. "
                        "Check api_key and base_url.",
                        state.candidate.name,
                    )
