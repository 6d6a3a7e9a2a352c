"""From a route record to its time line."""

from __future__ import annotations

from collections.abc import Iterator

from disco.amounts import money, plural, spent
from disco.cost import Charge, Totals
from disco.reasons import sentence
from disco.record.lanes import end_of, lanes_of
from disco.record.marks import marks_of
from disco.record.model import Cost, Timeline
from disco.record.reader import reader_of
from disco.record.words import seconds
from disco.session.records.route_record import RouteRecord

__all__ = ["timeline_of"]


def timeline_of(record: RouteRecord) -> Timeline:
    """Return the time line of an answer.

    Args:
        record: of the answer; one that was read from a file, too (`read_record`).
    """
    lanes = lanes_of(record)
    return Timeline(
        total_s=end_of(record),
        headline=tuple(_headline(record)),
        lanes=lanes,
        reader=reader_of(record),
        marks=marks_of(record, lanes),
        costs=_costs(record),
        notes=tuple(_notes(record)),
    )


def _headline(record: RouteRecord) -> Iterator[str]:
    yield f"preset {record.preset}"
    yield {None: "failed", "stop": "complete", "length": "cut short by its limit"}.get(
        record.finish_reason, (record.finish_reason or "").replace("_", " ")
    )
    yield plural(record.answer_tokens, "token")
    if record.pace.ttft_released_s is not None:
        yield f"first text after {seconds(record.pace.ttft_released_s)}"
    yield f"{seconds(record.duration_s)} in all"
    yield spent(record.bill_usd, record.device_energy_j)


def _costs(record: RouteRecord) -> tuple[Cost, ...]:
    costs = []
    for name, totals in record.ledger.by_endpoint().items():
        phases: dict[str, list[Charge]] = {}
        for charge in record.ledger.charges:
            if charge.endpoint == name:
                phases.setdefault(charge.phase.value, []).append(charge)
        sums = {phase: Totals.of(charges) for phase, charges in phases.items()}
        by_cost = sorted(sums.items(), key=lambda phase: -phase[1].policy_cost)
        costs.append(
            Cost(
                name,
                totals.prompt_tokens,
                totals.cached_tokens,
                totals.completion_tokens,
                totals.bill_usd,
                totals.device_energy_j,
                tuple((phase, one.bill_usd, one.device_energy_j) for phase, one in by_cost),
            )
        )
    return tuple(costs)


def _notes(record: RouteRecord) -> Iterator[str]:
    for reason in record.why:
        yield f"{sentence(reason)}."
    for rest in () if record.why else record.deprioritised:
        why = rest.reason.replace("_", " ")
        yield f"{rest.endpoint} was the last resort when the request came: {why}."
    for cut in record.budget_cuts:
        if record.why and cut.what != "move":
            continue
        what = {"hedge": "a further start", "start": "a start", "move": "a move"}.get(cut.what, cut.what)
        left = {"low": "what is left is kept for more important uses", "spent": "too little is left"}
        yield f"A budget left out {what} on {cut.endpoint}: {left.get(cut.why, 'its time is not known yet')}."
    if record.power is not None and record.power.conditions:
        yield f"This machine then: {', '.join(record.power.conditions)}."
    if record.assist is not None and record.assist.why is not None:
        yield f"The answer was not divided between server and device: {record.assist.why.replace('_', ' ')}."
    if not record.generated and record.answer_tokens:
        yield "The record has no times of the tokens (RouteLog(timelines=False)), so the reader's lane is missing."
    elif record.generated and not record.turns:
        yield "The record is of an older version: who wrote which token when is inferred."
    drafted = [a for a in record.attempts if a.speculation is not None and a.speculation.windows]
    if any(a.speculation is not None and not a.speculation.timed_windows for a in drafted):
        yield "The record has no times of the drafted windows."
    if record.device_energy_j:
        yield (
            "The energy is an estimate, unless the device's profile has measured it. At the preset's exchange rate, "
            f"policies count this answer as {money(record.policy_cost)}."
        )
    if not record.seamless:
        yield "A seam is not proved: text may be missing or doubled there."
