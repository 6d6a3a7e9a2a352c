"""Judging answers by their confidence: scores, their histories, and the rule that keeps an answer or hands it up."""

from disco.judging.answer_judges import AgreementJudge, ClassJudge, SequenceJudge, Standard
from disco.judging.confidence import (
    DEFAULT_SEQUENCE_CONFIDENCE,
    SEQUENCE_CONFIDENCES,
    RunningConfidence,
    SequenceConfidence,
    best_label,
    class_confidence,
    label_shares,
)
from disco.judging.early_exit import CHECKPOINTS, ExitHistory, ExitWatch
from disco.judging.history_store import FileStore, HistoryKey, HistoryStore, StoredHistory, store_of
from disco.judging.judge_book import MOST_TASKS, JudgeBook
from disco.judging.label_prior import LabelPrior
from disco.judging.score_history import MOST_SCORES, ScoreHistory
from disco.judging.share_control import LEAST_BETA, MOST_BETA, ShareControl, beta_for, expected_cost
from disco.judging.threshold_rules import RULES, Rule, Verdict, check_beta, judge, tie_breaker

__all__ = [
    "CHECKPOINTS",
    "DEFAULT_SEQUENCE_CONFIDENCE",
    "LEAST_BETA",
    "MOST_BETA",
    "MOST_SCORES",
    "MOST_TASKS",
    "RULES",
    "SEQUENCE_CONFIDENCES",
    "AgreementJudge",
    "ClassJudge",
    "ExitHistory",
    "ExitWatch",
    "FileStore",
    "HistoryKey",
    "HistoryStore",
    "JudgeBook",
    "LabelPrior",
    "Rule",
    "RunningConfidence",
    "ScoreHistory",
    "SequenceConfidence",
    "SequenceJudge",
    "ShareControl",
    "Standard",
    "StoredHistory",
    "Verdict",
    "best_label",
    "beta_for",
    "check_beta",
    "class_confidence",
    "expected_cost",
    "judge",
    "label_shares",
    "store_of",
    "tie_breaker",
]
