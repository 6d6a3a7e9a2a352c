"""The lines in the log: one for each answer, one for each failure, and, for debugging, how an answer came about.

`disco` and what hangs below it is silent until the application sets up logging. Every line carries its figures
as fields of their own (`extra`), for formatters that write JSON. No prompt, answer, key or vendor message is in one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from disco.errors import FailureKind
from disco.plan import Plan
from disco.session.records.route_record import AttemptRecord, MigrationRecord, RouteRecord
from disco.telemetry.record_facts import Fact

__all__ = ["LOG", "is_logged", "log_answer", "log_callback", "log_failure", "log_plan", "log_probe"]

LOG = logging.getLogger("disco")
LOG.addHandler(logging.NullHandler())
_ROUTE = logging.getLogger("disco.route")
_PROBE = logging.getLogger("disco.probe")

# Nothing is wrong with an endpoint that does not serve such a request; its caller is told.
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
    """Whether anybody wants the line of an answer."""
    return _ROUTE.isEnabledFor(logging.INFO)


def log_plan(plan: Plan, *, preset: str, model: str, prompt_tokens: int) -> None:
    """DEBUG: what dispatch decided."""
    if not _ROUTE.isEnabledFor(logging.DEBUG):
        return
    starts = ", ".join(f"{start.endpoint} after {start.after_s:.3g} s" for start in plan.starts)
    moves = ", ".join(f"{source} to {move.target}" for source, move in plan.migrations.items())
    _ROUTE.debug(
        "plan for %d prompt tokens: start %s; move %s; fall back on %s",
        prompt_tokens,
        starts,
        moves or "nowhere",
        ", ".join(plan.fallbacks) or "nobody",
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
    """INFO: the answer. DEBUG, before it: its attempts and its moves.

    Args:
        route: its record.
        row: its `facts`.
    """
    if _ROUTE.isEnabledFor(logging.DEBUG):
        for attempt in route.attempts:
            _log_attempt(attempt)
        for transfer in route.migrations:
            _log_move(transfer)
    _ROUTE.info(
        "answer %s: %s, %d tokens, first after %s, %.3f s in all; attempts %d, migrations %d; %.3g USD",
        row["outcome"],
        row.get("winner", "nobody"),
        row["output_tokens"],
        _s(route.pace.ttft_released_s),
        row["duration_s"],
        row["attempts"],
        row["migrations"],
        row["cost_usd"],
        extra=_fields(row),
    )


def log_failure(endpoint: str, failure: FailureKind) -> None:
    """WARNING: an attempt failed, which the answer does not show where another endpoint took over.

    Args:
        endpoint: the name of the endpoint.
        failure: what went wrong. Requests that the endpoint rightly does not serve are left out.
    """
    if failure not in _NO_FAULT_OF_THE_ENDPOINT:
        _ROUTE.warning(
            "endpoint %s failed: %s",
            endpoint,
            failure.value,
            extra=_fields({"endpoint": endpoint, "failure": failure.value}),
        )


def log_probe(model: str | None, method: str) -> None:
    """DEBUG: how the server is known to continue half-written answers."""
    _PROBE.debug(
        "server continues half-written answers by: %s",
        method,
        extra=_fields({"model": model or "", "continuation": method}),
    )


def log_callback(name: str, error: Exception) -> None:
    """ERROR: somebody who was told about an answer raised. Its message may hold anything and stays out."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "?" if at is None else f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
    LOG.error("%s raised %s at %s; the answer is not affected.", name, type(error).__qualname__, where)


def _log_attempt(attempt: AttemptRecord) -> None:
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
                "cost_usd": attempt.cost,
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


def _fields(row: Mapping[str, Fact]) -> dict[str, Fact]:
    """With a prefix: a log record has fields of its own ("name", "module", ...) that must not be overwritten."""
    return {f"disco_{name}": value for name, value in row.items()}


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.3f} s"
