"""The lines in the log: one for each answer, one for each failure, and, at DEBUG, how an answer came about.

The logger `disco` and its children are silent until the application sets up logging. Every line also carries its
figures as separate fields (`extra`), for formatters that write JSON. No line contains a prompt, answer, key or
vendor message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from disco.amounts import spent
from disco.errors import FailureKind
from disco.plan import Plan
from disco.reasons import sentence
from disco.session.records.route_record import (
    AttemptRecord,
    JudgementRecord,
    MigrationRecord,
    RouteRecord,
)
from disco.telemetry.record_facts import Fact

__all__ = [
    "LOG",
    "is_logged",
    "log_answer",
    "log_callback",
    "log_failure",
    "log_loaded",
    "log_plan",
    "log_probe",
]

LOG = logging.getLogger("disco")
LOG.addHandler(logging.NullHandler())
_ROUTE = logging.getLogger("disco.route")
_PROBE = logging.getLogger("disco.probe")

# Failures that are not the endpoint's fault: it does not serve such a request, and the caller gets an error.
_NO_FAULT_OF_THE_ENDPOINT = frozenset(
    {
        FailureKind.BAD_REQUEST,
        FailureKind.CONTENT_FILTER,
        FailureKind.CONTEXT_LENGTH,
        FailureKind.BUDGET,
        FailureKind.UNSERVED,
    }
)


def is_logged() -> bool:
    """Return whether the line of an answer is logged."""
    return _ROUTE.isEnabledFor(logging.INFO)


def log_plan(plan: Plan, *, preset: str, model: str, prompt_tokens: int) -> None:
    """DEBUG: the plan that dispatch decided on."""
    if not _ROUTE.isEnabledFor(logging.DEBUG):
        return
    starts = ", ".join(f"{start.endpoint} after {start.after_s:.3g} s" for start in plan.starts)
    moves = ", ".join(f"{source} to {move.target}" for source, move in plan.migrations.items())
    _ROUTE.debug(
        "plan for %d prompt tokens: start %s; move %s; fall back on %s",
        prompt_tokens,
        starts,
        moves or "nowhere",
        ", ".join(plan.fallbacks) or "no endpoint",
        extra=_fields(
            {
                "preset": preset,
                "model": model,
                "input_tokens": prompt_tokens,
                "starts": starts,
                "migrations_planned": moves,
                "fallbacks": ", ".join(plan.fallbacks),
            }
        ),
    )


def log_answer(route: RouteRecord, row: Mapping[str, Fact]) -> None:
    """INFO: the answer. DEBUG, before it: its attempts, its migrations and the verdicts on it.

    Args:
        route: the route record of the answer.
        row: the `facts` of the answer.
    """
    if _ROUTE.isEnabledFor(logging.DEBUG):
        for attempt in route.attempts:
            _log_attempt(attempt)
        for transfer in route.migrations:
            _log_move(transfer)
        for judgement in route.judgements:
            _log_judgement(judgement)
    _ROUTE.info(
        "answer %s: %s, %d tokens, first after %s, %.3f s in all; attempts %d, migrations %d%s; %s; %s",
        row["outcome"],
        row.get("winner", "no endpoint"),
        row["output_tokens"],
        _s(route.pace.ttft_released_s),
        row["duration_s"],
        row["attempts"],
        row["migrations"],
        f", judged {row['judged']}, handed up {row['handed_up']}" if "judged" in row else "",
        spent(route.bill_usd, route.device_energy_j),
        sentence(route.why[0]) if route.why else "",
        extra=_fields(row),
    )


def log_failure(endpoint: str, failure: FailureKind) -> None:
    """WARNING: an attempt failed. The answer does not show that if another endpoint took over.

    Args:
        endpoint: the name of the endpoint.
        failure: the kind of failure. Requests that the endpoint rightly does not serve are not logged.
    """
    if failure not in _NO_FAULT_OF_THE_ENDPOINT:
        _ROUTE.warning(
            "endpoint %s failed: %s",
            endpoint,
            failure.value,
            extra=_fields({"endpoint": endpoint, "failure": failure.value}),
        )


def log_probe(model: str | None, method: str) -> None:
    """DEBUG: the known method by which the server continues half-written answers."""
    _PROBE.debug(
        "server continues half-written answers by: %s",
        method,
        extra=_fields({"model": model or "", "continuation": method}),
    )


def log_loaded(endpoint: str, load_s: float) -> None:
    """INFO: the model of an endpoint on this machine is loaded; `load_s`: how long that was waited for, s."""
    LOG.info(
        "endpoint %s has loaded its model in %.1f s",
        endpoint,
        load_s,
        extra=_fields({"endpoint": endpoint, "load_s": load_s}),
    )


def log_callback(name: str, error: Exception) -> None:
    """ERROR: an observer of answers raised. The error's message may contain anything and is not logged."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "?" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
    LOG.error("%s raised %s at %s; the answer is not affected.", name, type(error).__qualname__, where)


def _log_attempt(attempt: AttemptRecord) -> None:
    energy_j = attempt.device_energy_j
    energy = {} if energy_j is None else {"device_energy_j": energy_j}
    _ROUTE.debug(
        "attempt of %s (%s): %s%s, %d of %d tokens kept, started %.3f s, first content %s, ended %s",
        attempt.endpoint,
        attempt.role,
        attempt.outcome,
        f" ({attempt.failure})" if attempt.failure else "",
        attempt.kept_tokens,
        attempt.tokens,
        attempt.started_s,
        _s(attempt.first_content_s),
        _s(attempt.ended_s),
        extra=_fields(
            {
                "endpoint": attempt.endpoint,
                "place": attempt.place,
                "role": attempt.role,
                "outcome": attempt.outcome,
                "failure": attempt.failure or "",
                "bill_usd": attempt.bill_usd,
                **energy,
                "policy_cost": attempt.policy_cost,
            }
        ),
    )


def _log_move(transfer: MigrationRecord) -> None:
    _ROUTE.debug(
        "move from %s to %s: %s, decided %.3f s, switched %s, expected to take %.3f s, took %s, %d tokens late",
        transfer.source,
        transfer.target,
        transfer.outcome,
        transfer.decided_s,
        _s(transfer.switched_s),
        transfer.expected_s,
        _s(transfer.took_s),
        transfer.late_tokens,
        extra=_fields({"source": transfer.source, "target": transfer.target, "outcome": transfer.outcome}),
    )


def _log_judgement(judgement: JudgementRecord) -> None:
    row: dict[str, Fact | None] = {
        "endpoint": judgement.endpoint,
        "task": judgement.task,
        "outcome": judgement.outcome,
        "why": judgement.why,
        "score": judgement.score,
        "threshold": judgement.threshold,
        "history": judgement.history,
    }
    _ROUTE.debug(
        "judged %s by %s on task %s: %s%s, score %s, threshold %s of %d scores, after %d tokens",
        judgement.endpoint,
        judgement.kind,
        judgement.task,
        judgement.outcome,
        f" ({judgement.why})" if judgement.why else "",
        _number(judgement.score),
        _number(judgement.threshold),
        judgement.history,
        judgement.tokens,
        extra=_fields({name: value for name, value in row.items() if value is not None}),
    )


def _fields(row: Mapping[str, Fact]) -> dict[str, Fact]:
    """Prefix the fields: a log record has fields of its own ("name", "module", ...) that must not be overwritten."""
    return {f"disco_{name}": value for name, value in row.items()}


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3f} s"
