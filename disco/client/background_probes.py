"""Finds out in the background how servers continue half-written answers, before an answer needs it.

A server is probed after its first complete answer, if another endpoint could have served that request too: the server
might have to continue that endpoint's answer. A server that was never asked anything is not probed, so a backup that
is never needed is never billed. Where an answer needs it, its attempt proves the method first (`OpenAIEndpoint.prove`).

A probe is charged like a request. The most that it can cost is reserved from the budgets of the request that it
follows; without budget there is no probe. Its cost is entered in the ledger of the next answer that ends and that may
leave this machine (phase "probe").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from disco.candidate import Candidate
from disco.cost import Charge, Phase
from disco.cost.budget_reservation import BudgetReservation
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.contract import Endpoint
from disco.errors import BudgetExceededError
from disco.request import Prefix
from disco.session.machine import Session
from disco.telemetry.log_lines import LOG, log_probe

if TYPE_CHECKING:
    from disco.endpoints.openai_api import OpenAIEndpoint

__all__ = ["BackgroundProbes"]


class BackgroundProbes:
    """The probes of one client and of its copies. Mutable: `_charges`, those that are in no ledger yet."""

    def __init__(self, host: BackgroundTasks) -> None:
        self._host = host
        self._charges: list[Charge] = []

    def take_charges(self) -> list[Charge]:
        """Return what the probes have cost since the last call."""
        taken, self._charges = self._charges, []
        return taken

    def after(self, session: Session, endpoints: Mapping[str, Endpoint], model: str) -> None:
        """Start the probes that an answer gives rise to. Call it from a background task.

        Args:
            session: the closed session of a request that may leave this machine.
            endpoints: by name.
            model: the model that the request named.
        """
        plan = session.plan
        named = {*(start.endpoint for start in plan.starts), *plan.fallbacks}
        if len(named) < 2 or session.finish_reason in (None, "cancelled") or not self._host.is_open:
            return
        from disco.endpoints.openai_api import OpenAIEndpoint  # noqa: PLC0415 - only if it may be used

        spoke = {a.candidate.name: a.candidate for a in session.attempts if a.first_content_at is not None}
        for name, candidate in spoke.items():
            endpoint = getattr(endpoints[name], "probed", endpoints[name])  # of a pair, its server
            if isinstance(endpoint, OpenAIEndpoint) and endpoint.needs_probe(model):
                try:
                    held = _reserved(session.reservation, name)
                except BudgetExceededError:
                    continue
                self._host.start_soon(self._probe, endpoint, candidate, model, held)

    async def _probe(
        self, endpoint: OpenAIEndpoint, candidate: Candidate, model: str, held: BudgetReservation | None
    ) -> None:
        from disco.endpoints.continuation.probe import ProbeMeter  # noqa: PLC0415 - as above

        meter = ProbeMeter()
        try:
            await endpoint.prove(model, meter)
            log_probe(model, endpoint.continuation(endpoint.own_model(model)).method)
        except Exception as error:  # noqa: BLE001 - a probe must not end the client's answers
            LOG.error("A probe was given up: %s in disco itself.", type(error).__name__)
        finally:
            used = meter.usage
            if held is not None:
                held.settle(0, used, reported=False, now=anyio.current_time())
            if used.prompt_tokens or used.completion_tokens:
                tokens = used.prompt_tokens, used.completion_tokens
                self._charges.append(Charge.of(None, candidate.name, Phase.PROBE, candidate.charged, *tokens))


def _reserved(budgets: BudgetReservation | None, endpoint: str) -> BudgetReservation | None:
    """Reserve the most that a probe of the endpoint can cost; None without budgets.

    Raises:
        BudgetExceededError: too little is left.
    """
    from disco.endpoints.continuation.probe import MOST_PROMPT_TOKENS, MOST_TOKENS  # noqa: PLC0415 - as above

    if budgets is None:
        return None
    own = replace(
        budgets,
        prompt_tokens=MOST_PROMPT_TOKENS,
        max_tokens=MOST_TOKENS,
        choices=1,
        _held={},
        _accounts={},
    )
    own.open(0, endpoint, Prefix(), anyio.current_time())
    return own
