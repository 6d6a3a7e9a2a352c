"""Recorded verdicts, judged again: whether the same scores in the same order get the same verdicts.

And what another beta, or the other rule, would have done with these scores. Route records hold scores, not texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from disco.errors import ConfigurationError
from disco.judging import (
    RULES,
    FileStore,
    HistoryKey,
    Rule,
    ScoreHistory,
    StoredHistory,
    Verdict,
    check_beta,
    judge,
)
from disco.record.left_out import SkipLog, Skipped
from disco.record.reading import records_of
from disco.record.text_files import existing_file
from disco.session.records.route_record import JudgementRecord

__all__ = [
    "RecordedVerdict",
    "ReplayedHistory",
    "read_histories",
    "read_verdicts",
    "replay_verdicts",
    "share_handed_up",
    "shares_by_rule",
]


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """One verdict of a recording; see `JudgementRecord`, whose fields these are.

    Attributes:
        key: whose scores it was compared with.
        rises: the answer was doubted: it went up, or it stood because no higher tier answered.
    """

    key: HistoryKey
    score: float
    threshold: float | None
    history: int
    number: int
    window: int
    beta: float
    rule: Rule
    rises: bool


@dataclass(frozen=True, slots=True)
class ReplayedHistory:
    """The verdicts on the answers of one model to one task.

    Attributes:
        key: whose.
        verdicts: in the order in which they were given; of several runs, one after the other.
        identical: how many came out the same: kept or doubted, and the threshold.
        different: how many did not.
        unknown: how many were given by scores that are not in the recording, so that they cannot be judged again.
    """

    key: HistoryKey
    verdicts: tuple[RecordedVerdict, ...]
    identical: int
    different: int
    unknown: int

    @property
    def rose(self) -> float:
        """The share of answers that were doubted."""
        return sum(v.rises for v in self.verdicts) / len(self.verdicts)


def read_verdicts(path: str | Path) -> tuple[list[RecordedVerdict], Skipped]:
    """Read the verdicts of a file of route records (`disco.RouteLog`).

    Returns:
        The verdicts, and the lines that were left out: no route records, or with a verdict that lacks what is needed to
        give it again.

    Raises:
        ConfigurationError: the file cannot be read, or a record is one of a newer disco.
    """
    log = SkipLog(path)
    verdicts: list[RecordedVerdict] = []
    for number, record in records_of(Path(path), log):
        try:
            verdicts += [_verdict(one) for one in record.judgements if one.score is not None]
        except ValueError as error:
            log.add(f"a verdict that cannot be given again: {str(error).rstrip('.')}", number)
    return verdicts, log.skipped


def read_histories(path: str | Path) -> Mapping[HistoryKey, StoredHistory]:
    """Read a file of histories as a client keeps it. Raises ConfigurationError where it holds none."""
    found = FileStore(existing_file(path)).load()
    if not found:
        raise ConfigurationError(
            f"{path} holds no histories of scores. Leave --histories out to begin with none."
        )
    return found


def _verdict(one: JudgementRecord) -> RecordedVerdict:
    rule = next((rule for rule in RULES if rule == one.rule), None)
    if rule is None or one.score is None or one.beta is None:
        raise ValueError("it has no rule that is known, no score or no beta")
    if one.outcome not in ("kept", "handed_up", "stood"):
        raise ValueError("its outcome is not one of a verdict")
    if not all(map(math.isfinite, (one.score, one.threshold or 0.0))):
        raise ValueError("its score or threshold is not finite")
    ScoreHistory(one.window)  # refuses a window out of range
    if not 0 <= one.history <= min(one.number, one.window):
        raise ValueError(f"{one.history} scores, of {one.number} before and a window of {one.window}")
    return RecordedVerdict(
        key=HistoryKey(one.task, one.model, one.kind),
        score=one.score,
        threshold=one.threshold,
        history=one.history,
        number=one.number,
        window=one.window,
        beta=check_beta(one.beta),
        rule=rule,
        rises=one.outcome != "kept",
    )


def replay_verdicts(
    verdicts: Iterable[RecordedVerdict], given: Mapping[HistoryKey, StoredHistory] | None = None
) -> list[ReplayedHistory]:
    """Give recorded verdicts again, by the beta and the rule that each was given by.

    A verdict depends on the scores before it. Where these are not recorded (the client had histories from an earlier
    run, or an answer has no record), its verdict is unknown, until so many scores have followed that the window is
    known again.

    Args:
        verdicts: in the order of the file. The verdicts of one client at a time: of two that ran at once, each must
            have its own file.
        given: histories as they were before the recording, such as those of a copy of the store's file.

    Returns:
        One for each history, in the order of their first verdicts.
    """
    by_key: dict[HistoryKey, list[RecordedVerdict]] = {}
    for verdict in verdicts:
        by_key.setdefault(verdict.key, []).append(verdict)
    return [_replayed(key, ours, (given or {}).get(key)) for key, ours in by_key.items()]


def _replayed(key: HistoryKey, ours: list[RecordedVerdict], kept: StoredHistory | None) -> ReplayedHistory:
    in_order = [verdict for run in _runs(ours) for verdict in run]
    history = ScoreHistory(1)
    identical = unknown = 0
    for position, verdict in enumerate(in_order):
        if position == 0 and kept is not None and kept.seen == verdict.number:
            history = ScoreHistory(verdict.window, kept.scores, seen=kept.seen)
        elif position == 0 or verdict.number != history.seen:
            history = ScoreHistory(verdict.window, seen=verdict.number)
        is_known = len(history) == verdict.history
        again = judge(verdict.score, history, verdict.beta, rule=verdict.rule, seed=key.seed)
        unknown += not is_known
        identical += is_known and _is_same(again, verdict)
    different = len(in_order) - identical - unknown
    return ReplayedHistory(key, tuple(in_order), identical, different, unknown)


def _is_same(again: Verdict, recorded: RecordedVerdict) -> bool:
    return again.rises == recorded.rises and again.threshold == recorded.threshold


def _runs(verdicts: Sequence[RecordedVerdict]) -> list[list[RecordedVerdict]]:
    """Divide the verdicts of one history into runs of the client, each in the order in which they were given.

    Records are written when answers end, so a file has them in another order. A run without a store counts from 0.
    """
    runs: list[dict[int, RecordedVerdict]] = [{}]
    for verdict in verdicts:
        if verdict.number in runs[-1]:
            runs.append({})
        runs[-1][verdict.number] = verdict
    return [[run[number] for number in sorted(run)] for run in runs]


def share_handed_up(verdicts: Sequence[RecordedVerdict], beta: float, rule: Rule) -> float:
    """Return the share of these answers that would have been doubted by another beta or rule, from an empty history.

    Args:
        verdicts: of one history, in order, at least one; see `ReplayedHistory.verdicts`.
        beta: see `judge`.
        rule: see `judge`.
    """
    history = ScoreHistory(max(verdict.window for verdict in verdicts))
    seed = verdicts[0].key.seed
    rises = [judge(verdict.score, history, beta, rule=rule, seed=seed).rises for verdict in verdicts]
    return sum(rises) / len(rises)


def shares_by_rule(verdicts: Sequence[RecordedVerdict], betas: Sequence[float]) -> dict[Rule, list[float]]:
    """Return `share_handed_up` of each rule for each beta."""
    return {rule: [share_handed_up(verdicts, beta, rule) for beta in betas] for rule in RULES}
