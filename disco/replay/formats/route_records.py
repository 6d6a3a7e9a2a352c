"""Route records of a live client, one JSON object per line, as `disco.RouteLog` writes them.

What the client measured becomes columns of the trace; its inputs and decisions become features
(docs/how-to/recording.md lists
them). A time that was cut off, because the other side's first token came earlier, is kept as a bound:
`ttft_over_s` and `device_ttft_over_s` say that it took longer than that, and `resolve` draws from beyond the bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from disco.cost import Ledger, Phase
from disco.record import read_record
from disco.replay.formats.format_adapter import Adapter, BadCellError, Row
from disco.session.records.route_record import AttemptRecord, CandidateRecord, RouteRecord

__all__ = ["ROUTES", "on_mains"]

RESOLUTION_S = 1e-6
"""Records are rounded to microseconds: a loser took longer than the recorded time by at least this."""

_CUT_OFF = frozenset(("lost", "parked", "cancelled"))  # outcomes that mean: longer than the time it had


def _row(line: Any) -> Row | None:
    record = read_record(line)
    if record.created_s is None:
        remedy = "records made in virtual time have no created_s; record a live client with disco.RouteLog"
        raise BadCellError("created_s", None, "missing value", remedy)
    if record.finish_reason is None:
        return None
    record = on_mains(record)
    device, server = (_Side(record, place) for place in ("device", "server"))
    if device.start_s is None and server.start_s is None:
        # The reader left, or nothing was left to ask.
        raise BadCellError(None, None, "without an endpoint that could answer", "leave the line out")
    output_tokens = sum(c.completion_tokens for c in record.ledger.charges if c.phase is Phase.ANSWER)
    # First the bill's count, then the device's, which may not have finished reading; dispatch only estimates.
    prompt_tokens = server.prompt_tokens or device.prompt_tokens or record.prompt_tokens
    if len({segment.attempt for segment in record.segments}) == 1:
        first = record.attempts[record.segments[0].attempt]
        (device if first.place == "device" else server).take_timeline(record, output_tokens)
    spoke_at = record.pace.ttft_raw_s
    return {
        "arrival_s": record.created_s,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "ttft_s": server.ttft_s,
        "device_ttft_s": device.ttft_s,
        "tpot_s": server.tpot_s,
        "device_tpot_s": device.tpot_s,
        "gaps_s": server.gaps_s,
        "ttft_over_s": server.over_s(spoke_at),
        "device_ttft_over_s": device.over_s(spoke_at),
        "device_start_s": device.start_s,
        "server_start_s": server.start_s,
        "ttft_recorded_s": spoke_at,
        "bill_usd": record.bill_usd,
        "device_energy_j": record.device_energy_j,
        "policy_cost": record.policy_cost,
        "replay_policy_cost": _replay_cost(record, prompt_tokens, device.cached_tokens(prompt_tokens) or 0),
        "preset": record.preset,
        "exchange_rate": record.exchange_rate,
        "winner": record.winner,
        "endpoints": json.dumps([e.name for e in record.endpoints]),
        "finish_reason": record.finish_reason,
        "moved": any(move.outcome == "switched" for move in record.migrations),
        "drafted_tokens": sum(
            one.speculation.distributed_tokens for one in record.attempts if one.speculation is not None
        ),
        "pace_tps": record.pace.pace_tps,
        "device_cold": device.cold,
        "device_read_tokens": device.read_tokens,
        "device_cached_tokens": device.cached_tokens(prompt_tokens),
        **device.known("device"),
        **server.known("server"),
    }


def on_mains(record: RouteRecord) -> RouteRecord:
    """Return the record with this machine's energy at the preset's exchange rate, whatever the battery was then.

    A replay charges all requests at one rate.
    """
    factor = 1.0 if record.power is None else record.power.energy_factor or 1.0
    if factor == 1.0:
        return record
    here = {e.name for e in record.endpoints if e.place == "device" and not e.is_money}
    endpoints = tuple(
        replace(e, cost_in=e.cost_in / factor, cost_out=e.cost_out / factor) if e.name in here else e
        for e in record.endpoints
    )
    ledger = Ledger(record.ledger.rates)
    for charge in record.ledger.charges:
        ledger.enter(
            charge._replace(policy_cost=charge.policy_cost / factor) if charge.endpoint in here else charge
        )
    return replace(record, endpoints=endpoints, ledger=ledger)


class _Side:
    """What a record says about the endpoint of one place; if a place has several, about the one that was used."""

    def __init__(self, record: RouteRecord, place: str) -> None:
        attempts = [t for t in record.attempts if t.place == place]
        first = [t for t in attempts if t.begins]
        # An attempt that failed before it wrote is not a start in a replay: there, only configured faults fail.
        # One that wrote is: its time is known, and a replay lets it write to the end.
        alive = [t for t in first if not _failed_silent(t)]
        self._attempt: AttemptRecord | None = next((t for t in alive if t.first_content_s is not None), None)
        if self._attempt is None and alive:
            self._attempt = alive[0]
        self._failed = bool(first) and not alive
        self.ttft_s: float | None = None
        self.read_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.gaps_s: list[float] = []
        self.cold = False
        if self._attempt is not None:
            self.cold = self._attempt.cold
            self.read_tokens = self._attempt.prompt_tokens - self._attempt.cached_tokens
            if place == "server" or self._attempt.first_content_s is not None:
                self.prompt_tokens = self._attempt.prompt_tokens
            if self._attempt.first_content_s is not None:
                self.ttft_s = max(self._attempt.first_content_s - self._attempt.started_s, 0.0)
                spoke_at = record.pace.ttft_raw_s
                if self._attempt.outcome in _CUT_OFF and spoke_at is not None:
                    # Both first tokens may have the same rounded time; the recorded winner wins the replay, too.
                    self.ttft_s = max(self.ttft_s, _beyond(self._attempt, spoke_at))
        self.tpot_s = next((t.tpot_s for t in attempts if t.tpot_s is not None), None)
        self._endpoint = self._of(record, place)
        self.start_s = self._start(record)

    def _of(self, record: RouteRecord, place: str) -> CandidateRecord | None:
        there = [e for e in record.endpoints if e.place == place]
        used = None if self._attempt is None else self._attempt.endpoint
        return next((e for e in there if e.name == used), there[0] if there else None)

    def _start(self, record: RouteRecord) -> float | None:
        """Return when the endpoint started, or would have without an earlier answer; None: no start was planned."""
        if self._attempt is not None:
            return self._attempt.started_s
        if self._endpoint is None or self._failed:
            return None
        return next((after_s for name, after_s in record.starts if name == self._endpoint.name), None)

    def over_s(self, spoke_at: float | None) -> float | None:
        """Return the least time that the first token took, if only that is known; s."""
        if self._attempt is None or self.ttft_s is not None or self._attempt.outcome not in _CUT_OFF:
            return None
        until = self._attempt.ended_s if spoke_at is None else spoke_at
        return None if until is None else _beyond(self._attempt, until)

    def cached_tokens(self, prompt_tokens: int) -> int | None:
        """Return how many prompt tokens the endpoint had cached; None if it was stopped before that was known."""
        return (
            None
            if self.ttft_s is None or self.read_tokens is None
            else max(prompt_tokens - self.read_tokens, 0)
        )

    def take_timeline(self, record: RouteRecord, output_tokens: int) -> None:
        """Take the times of the tokens from a record in which this side wrote all of them."""
        timeline = record.generated
        if output_tokens < 2 or len(timeline) < 2:
            return
        paused_s = 0.0 if self._attempt is None else self._attempt.paused_s
        self.tpot_s = max(timeline[-1][0] - timeline[0][0] - paused_s, 0.0) / (output_tokens - 1)
        # If there are fewer chunks than tokens, only the mean of the gaps between tokens is known.
        if sum(tokens for _, tokens in timeline) == output_tokens:
            self.gaps_s = list(_gaps(timeline))

    def known(self, place: str) -> Row:
        """Return the endpoint's name and rates, as features."""
        e = self._endpoint
        names = ("", "_cost_in_usd", "_cost_out_usd", "_cached_share", "_is_money", "_j_in", "_j_out")
        facts: tuple[str | float | None, ...] = (None,) * len(names)
        if e is not None:
            facts = e.name, e.cost_in, e.cost_out, e.cached_share, float(e.is_money), e.j_in, e.j_out
        known = {f"{place}{name}": fact for name, fact in zip(names, facts, strict=True)}
        return {**known, f"{place}_continues": e is not None and e.continues}


def _failed_silent(attempt: AttemptRecord) -> bool:
    """Return whether an attempt failed before it wrote anything."""
    return attempt.failure is not None and attempt.first_content_s is None


def _beyond(attempt: AttemptRecord, at_s: float) -> float:
    """Return the least TTFT of an attempt whose first token came after `at_s`."""
    return max(at_s - attempt.started_s, 0.0) + RESOLUTION_S


def _gaps(timeline: Iterable[tuple[float, int]]) -> Iterable[float]:
    """Yield the times between tokens; tokens of one packet have gaps of 0."""
    last_at = None
    for at, tokens in timeline:
        if last_at is not None:
            yield max(at - last_at, 0.0)
        yield from [0.0] * (tokens - 1)
        last_at = at


def _replay_cost(record: RouteRecord, prompt_tokens: int, device_cached_tokens: int) -> float:
    """Return the cost, as policies count it, as a replay charges it.

    A started endpoint reads the prompt, less what a winner had cached. The loser of a race writes nothing; live, both
    first tokens may come before the client stops the loser. A replay probes no server, and drafts nothing.
    """
    endpoints = {e.name: e for e in record.endpoints}
    cost = record.policy_cost
    for charge in record.ledger.charges:
        if charge.phase is Phase.RACE_LOSER and charge.endpoint in endpoints:
            cost -= endpoints[charge.endpoint].cost_out * charge.completion_tokens
        elif charge.phase in (Phase.PROBE, Phase.DRAFT):
            cost -= charge.policy_cost
    for attempt in record.attempts:
        endpoint = endpoints.get(attempt.endpoint)
        if attempt.begins and not _failed_silent(attempt) and endpoint is not None:
            uncached = 1 - endpoint.cached_share
            recorded = attempt.prompt_tokens - uncached * attempt.cached_tokens
            replayed = prompt_tokens - uncached * (device_cached_tokens if endpoint.place == "device" else 0)
            cost += endpoint.cost_in * (replayed - recorded)
    return cost


ROUTES = Adapter(
    name="routes",
    about="disco's route records (disco.RouteLog), one JSON object per answer",
    needs=frozenset(("attempts", "ledger")),
    row=_row,
    is_log=True,
    sorts=True,  # records are written when answers end
    note="times as a live client measured them; of an attempt that lost a race only a lower bound is known",
)
