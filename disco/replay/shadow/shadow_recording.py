"""Route records with a shadow, as `disco.RouteLog` writes them, and what they say about each endpoint's times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco.candidate import Candidate
from disco.cost import Phase
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.record.left_out import SkipLog, Skipped
from disco.record.reading import records_of
from disco.session.records.route_record import AttemptRecord, RouteRecord
from disco.session.records.shadow_record import ABILITIES, PlanRecord, ShadowEndpoint

__all__ = [
    "Seen",
    "ShadowRecording",
    "ShadowedAnswer",
    "candidate_of",
    "counted_tokens",
    "read_shadowed",
    "seen_in",
]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one answer shows of one endpoint, asked from the beginning. Times in seconds; None where not seen.

    Attributes:
        ttft_s: from its start to its first content.
        over_s: it had not written when it was stopped, this long after its start.
        failed_s: it failed this long after its start, before it wrote.
        tpot_s: mean time per token.
        read_tokens, cached_tokens: tokens of the prompt that it read before it wrote, and those in its cache.
        charged_tokens: tokens of the prompt that it was charged for when it was stopped before it wrote, those in its
            cache not counted; a server's are the ledger's estimate.
        prompt_tokens: length of the prompt, as far as an endpoint counted it, else as dispatch estimated it.
        behind_s: how long after its start the endpoint had read, or dropped, all prompts of the same client before this
            one; 0 where it had none, or nobody looked.
        cold: it had to load its model.
    """

    ttft_s: float | None = None
    over_s: float | None = None
    failed_s: float | None = None
    tpot_s: float | None = None
    read_tokens: int = 0
    cached_tokens: int = 0
    charged_tokens: int = 0
    prompt_tokens: int = 0
    behind_s: float = 0.0
    cold: bool = False


@dataclass(frozen=True, slots=True)
class ShadowedAnswer:
    """One answer with the plan of the other preset.

    Attributes:
        preset, shadow: names of the real preset and of the other.
        prompt_tokens, billed_tokens: length of the prompt as dispatch estimated it, and as an endpoint counted it.
        answer_tokens, max_tokens: length of the answer, and its limit.
        real, plan: the plan that was carried out, and the other.
        rates: by endpoint, what a token really cost.
        candidates: by endpoint, what the other preset planned with.
        unconfirmed: names of the endpoints whose speed was only assumed then.
        seen: by endpoint, what the answer shows of it.
        ttft_s, cost_usd, winner: what happened.
        writers: names of the endpoints that wrote the answer, in order.
        started: names of the endpoints that were asked from the beginning.
        streams, may_migrate, may_continue: see `SessionConfig`.
        lengths, rises: see `ShadowRecord`.
    """

    preset: str
    shadow: str
    prompt_tokens: int
    billed_tokens: int
    answer_tokens: int
    max_tokens: int | None
    real: PlanRecord
    plan: PlanRecord
    rates: Mapping[str, Rates]
    candidates: Mapping[str, Candidate]
    unconfirmed: frozenset[str]
    seen: Mapping[str, Seen]
    ttft_s: float
    cost_usd: float
    winner: str
    writers: tuple[str, ...]
    started: frozenset[str]
    streams: bool
    may_migrate: bool
    may_continue: bool
    lengths: tuple[int, ...]
    rises: float | None


@dataclass(frozen=True, slots=True)
class ShadowRecording:
    """The answers of a recording.

    Attributes:
        answers: those that can be compared, in order of the file.
        left_out: those that cannot, by reason, and lines that are no records.
        seen: what all answers of the file show of endpoints, those without a shadow included: (endpoint, seen).
    """

    answers: tuple[ShadowedAnswer, ...]
    left_out: Skipped
    seen: tuple[tuple[str, Seen], ...]


def read_shadowed(path: Path) -> ShadowRecording:
    """Read a recording.

    Raises:
        ConfigurationError: the file cannot be read, is no recording, or no answer in it has a shadow.
    """
    answers: list[ShadowedAnswer] = []
    log = SkipLog(path)
    seen: list[tuple[str, Seen]] = []
    records = 0
    for number, record in records_of(path, log):
        records += 1
        shows = seen_in((one for one in record.attempts if one.begins), counted_tokens(record))
        seen.extend(shows.items())
        found = _answer(record, shows)
        if isinstance(found, str):
            log.add(found, number)
        else:
            answers.append(found)
    left_out = log.skipped
    if not answers:
        what = "has no answer that can be compared" if records else "is no recording"
        why = "; ".join(left_out.named()) or "it is empty"
        raise ConfigurationError(
            f"{path} {what} ({why}). Record a client with shadow=PRESET and "
            'on_route=disco.RouteLog("routes.jsonl").'
        )
    return ShadowRecording(tuple(answers), left_out, tuple(seen))


def _answer(record: RouteRecord, seen: Mapping[str, Seen]) -> ShadowedAnswer | str:
    """Return the answer; a reason where it cannot be compared."""
    shadow = record.shadow
    if shadow is None:
        return "without a shadow"
    if record.finish_reason is None:
        return "failed"
    if record.finish_reason == "cancelled":
        return "the reader left"
    if shadow.plan is None:
        return "the other preset would have refused it"
    ttft_s = record.pace.ttft_raw_s
    if ttft_s is None or record.winner is None:
        return "without a token"
    if any(one.failure is not None and one.tokens for one in record.attempts):
        return "an endpoint failed while it wrote"
    return ShadowedAnswer(
        preset=record.preset,
        shadow=shadow.preset,
        prompt_tokens=record.prompt_tokens,
        billed_tokens=counted_tokens(record),
        answer_tokens=max(1, record.answer_tokens),
        max_tokens=record.max_tokens,
        real=shadow.real,
        plan=shadow.plan,
        rates={e.name: Rates(e.cost_in, e.cost_out, e.cached_share) for e in record.endpoints},
        candidates={e.name: candidate_of(e) for e in shadow.endpoints},
        unconfirmed=frozenset(e.name for e in shadow.endpoints if not e.known),
        seen=seen,
        ttft_s=ttft_s,
        # A probe in the background belongs to no answer.
        cost_usd=sum(c.policy_cost for c in record.ledger.charges if c.phase is not Phase.PROBE),
        winner=record.winner,
        writers=tuple(dict.fromkeys(segment.endpoint for segment in record.segments)),
        started=frozenset(one.endpoint for one in record.attempts if one.begins),
        streams=shadow.streams,
        may_migrate=shadow.may_migrate,
        may_continue=shadow.may_continue,
        lengths=shadow.lengths,
        rises=shadow.rises,
    )


def candidate_of(of: ShadowEndpoint) -> Candidate:
    """Return an endpoint as shadow mode recorded it."""
    able: dict[str, Any] = {name: name in of.abilities for name in ABILITIES}
    return Candidate(
        name=of.name,
        reach=of.reach,
        rates=Rates(of.cost_in, of.cost_out, of.cached_share),
        prefill_tps=float("inf") if of.prefill_tps is None else of.prefill_tps,
        reading_spare=of.reading_spare,
        overhead_s=of.overhead_s,
        ttft_quantiles=of.ttft_quantiles,
        load_s=of.load_s,
        queue_s=of.queue_s,
        decode_tps=of.decode_tps,
        silence_s=of.silence_s,
        slow_start=of.slow_start,
        context_tokens=of.context_tokens,
        rank=of.rank,
        # A migration to a device whose speed is only assumed keeps its source writing.
        is_measured=of.known or of.reach != "device",
        **able,
    )


def counted_tokens(record: RouteRecord) -> int:
    """Return the length of the prompt as the endpoint that wrote counted it, else as dispatch estimated it."""
    counted = (one.prompt_tokens for one in record.attempts if one.kept_tokens and not one.prefix_chars)
    return max(counted, default=0) or record.prompt_tokens


def seen_in(
    attempts: Iterable[AttemptRecord], prompt_tokens: int, *, from_turn: bool = False
) -> dict[str, Seen]:
    """Return what these attempts at one answer show of their endpoints; the first of each endpoint counts.

    Args:
        attempts: in order.
        prompt_tokens: see `Seen`.
        from_turn: times begin when an attempt has left its queue, and one that never left it shows none.
    """
    found: dict[str, Seen] = {}
    for one in attempts:
        if one.endpoint in found:
            continue
        wrote, failed = one.first_content_s is not None, one.failure is not None
        begin_s = one.started_s
        if from_turn and one.began_s is not None:
            begin_s = one.began_s
        until_s = None if one.ended_s is None else max(0.0, one.ended_s - begin_s)
        if from_turn and not wrote and one.place == "device" and one.began_s is None:
            until_s = None  # it only waited
        found[one.endpoint] = Seen(
            ttft_s=None if one.first_content_s is None else max(0.0, one.first_content_s - begin_s),
            over_s=None if wrote or failed else until_s,
            failed_s=until_s if failed else None,
            tpot_s=one.tpot_s,
            read_tokens=one.prompt_tokens - one.cached_tokens if wrote else 0,
            cached_tokens=one.cached_tokens,
            charged_tokens=0 if wrote else one.prompt_tokens - one.cached_tokens,
            prompt_tokens=prompt_tokens,
            cold=one.cold,
        )
    return found


def names_of(answers: Sequence[ShadowedAnswer]) -> tuple[str, ...]:
    """Return the names of all endpoints that the answers could have had."""
    return tuple(dict.fromkeys(name for answer in answers for name in answer.candidates))
