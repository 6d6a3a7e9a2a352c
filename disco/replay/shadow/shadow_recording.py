"""Route records with a shadow, as `disco.RouteLog` writes them, and what they say about each endpoint's times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco.candidate import Candidate
from disco.cost import Phase
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.replay.formats.columns.row_problems import SkipLog, Skipped
from disco.session.records.record_lines import lines_of, record_row
from disco.session.records.shadow_record import ABILITIES, PlanRecord

__all__ = ["FIRST", "Seen", "ShadowRecording", "ShadowedAnswer", "candidate_of", "read_shadowed", "seen_in"]

FIRST = frozenset(("starter", "hedge", "takeover"))  # roles of attempts that may have begun the answer
_FEWEST_TOKENS = 8  # a rate from fewer tokens is not reliable


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
        cold: it had to load its model.
    """

    ttft_s: float | None = None
    over_s: float | None = None
    failed_s: float | None = None
    tpot_s: float | None = None
    read_tokens: int = 0
    cached_tokens: int = 0
    charged_tokens: int = 0
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
    log = SkipLog("line")
    seen: list[tuple[str, Seen]] = []
    records = 0
    for line in lines_of(path):
        try:
            row = record_row(line.text)
            shows = seen_in(row, FIRST)
            found = _answer(row, shows)
        except ConfigurationError as error:
            found = str(error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            found = "a damaged record"
        else:
            records += 1
            seen.extend(shows.items())
        if isinstance(found, str):
            log.add(found, line.number)
        else:
            answers.append(found)
    left_out = log.skipped
    if not answers:
        what = "has no answer that can be compared" if records else "is no recording"
        why = left_out.listed() or "it is empty"
        raise ConfigurationError(
            f"{path} {what} ({why}). Record a client with shadow=PRESET and "
            'on_route=disco.RouteLog("routes.jsonl").'
        )
    return ShadowRecording(tuple(answers), left_out, tuple(seen))


def _answer(row: Mapping[str, Any], seen: Mapping[str, Seen]) -> ShadowedAnswer | str:
    """Return the answer; a reason where it cannot be compared."""
    shadow = row.get("shadow")
    if shadow is None:
        return "without a shadow"
    if row["finish_reason"] is None:
        return "failed"
    if row["finish_reason"] == "cancelled":
        return "the reader left"
    if shadow["plan"] is None:
        return "the other preset would have refused it"
    ttft_s = row["pace"]["ttft_raw_s"]
    if ttft_s is None or row["winner"] is None:
        return "without a token"
    if any(one["failure"] is not None and one["tokens"] for one in row["attempts"]):
        return "an endpoint failed while it wrote"
    charges = row["ledger"]["charges"]
    counted = [
        one["prompt_tokens"] for one in row["attempts"] if one["kept_tokens"] and not one["prefix_chars"]
    ]
    started = frozenset(
        one["endpoint"] for one in row["attempts"] if one["role"] in FIRST and not one["prefix_chars"]
    )
    return ShadowedAnswer(
        preset=str(row["preset"]),
        shadow=str(shadow["preset"]),
        prompt_tokens=int(row["prompt_tokens"]),
        billed_tokens=int(max(counted, default=0) or row["prompt_tokens"]),
        answer_tokens=max(1, int(row["answer_tokens"])),
        max_tokens=row["max_tokens"],
        real=PlanRecord.from_dict(shadow["real"]),
        plan=PlanRecord.from_dict(shadow["plan"]),
        rates={e["name"]: Rates(e["cost_in"], e["cost_out"], e["cached_share"]) for e in row["endpoints"]},
        candidates={e["name"]: candidate_of(e) for e in shadow["endpoints"]},
        unconfirmed=frozenset(e["name"] for e in shadow["endpoints"] if not e["known"]),
        seen=seen,
        ttft_s=float(ttft_s),
        # A probe in the background belongs to no answer.
        cost_usd=sum(charge["policy_cost"] for charge in charges if charge["phase"] != Phase.PROBE),
        winner=str(row["winner"]),
        writers=tuple(dict.fromkeys(segment["endpoint"] for segment in row["segments"])),
        started=started,
        streams=bool(shadow["streams"]),
        may_migrate=bool(shadow["may_migrate"]),
        may_continue=bool(shadow["may_continue"]),
        lengths=tuple(map(int, shadow["lengths"])),
        rises=shadow["rises"],
    )


def candidate_of(row: Mapping[str, Any]) -> Candidate:
    """Return an endpoint as shadow mode recorded it."""
    able: dict[str, Any] = {name: name in row["abilities"] for name in ABILITIES}
    return Candidate(
        name=row["name"],
        reach=row["reach"],
        rates=Rates(row["cost_in"], row["cost_out"], row["cached_share"]),
        prefill_tps=float("inf") if row["prefill_tps"] is None else row["prefill_tps"],
        reading_spare=row["reading_spare"],
        overhead_s=row["overhead_s"],
        ttft_quantiles=tuple(row["ttft_quantiles"]),
        load_s=row["load_s"],
        queue_s=row["queue_s"],
        decode_tps=row["decode_tps"],
        silence_s=row["silence_s"],
        slow_start=row["slow_start"],
        context_tokens=row["context_tokens"],
        rank=row["rank"],
        # A migration to a device whose speed is only assumed keeps its source writing.
        is_measured=row["known"] or row["reach"] != "device",
        **able,
    )


def seen_in(row: Mapping[str, Any], roles: Collection[str], *, continued: bool = False) -> dict[str, Seen]:
    """Return what an answer shows of the endpoints that were asked in these roles.

    Args:
        row: the record.
        roles: of the attempts.
        continued: also those that went on with an answer; else only those that were asked from its beginning.
    """
    found: dict[str, Seen] = {}
    for one in row["attempts"]:
        name = one["endpoint"]
        if one["role"] not in roles or (one["prefix_chars"] and not continued) or name in found:
            continue
        started_s, first_s, ended_s = one["started_s"], one["first_content_s"], one["ended_s"]
        until_s = None if ended_s is None else max(0.0, ended_s - started_s)
        failed = one["failure"] is not None
        found[name] = Seen(
            ttft_s=None if first_s is None else max(0.0, first_s - started_s),
            over_s=until_s if first_s is None and not failed else None,
            failed_s=until_s if failed else None,
            tpot_s=_tpot_s(one),
            read_tokens=0 if first_s is None else one["prompt_tokens"] - one["cached_tokens"],
            cached_tokens=0 if first_s is None else one["cached_tokens"],
            charged_tokens=0 if first_s is not None else one["prompt_tokens"] - one["cached_tokens"],
            cold=bool(one["cold"]),
        )
    return found


def _tpot_s(one: Mapping[str, Any]) -> float | None:
    if one["first_content_s"] is None or one["ended_s"] is None or one["tokens"] < _FEWEST_TOKENS:
        return None
    writing_s = one["ended_s"] - one["first_content_s"] - (one.get("paused_s") or 0.0)
    return float(max(writing_s, 0.0) / (one["tokens"] - 1))


def names_of(answers: Sequence[ShadowedAnswer]) -> tuple[str, ...]:
    """Return the names of all endpoints that the answers could have had."""
    return tuple(dict.fromkeys(name for answer in answers for name in answer.candidates))
