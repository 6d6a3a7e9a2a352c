"""What will be asked about a migration at the next packets, for drivers that know these in advance."""

from __future__ import annotations

from dataclasses import dataclass

from disco.session.switching.migration_rule import MigrationVerdict, Rule

__all__ = [
    "AT_NO_VERDICT",
    "NOT_YET",
    "WHILE_BANKING",
    "WHILE_THE_TARGET_READS",
    "ConsideredMigration",
    "usable_slack_s",
]


def usable_slack_s(slack_s: float, pace_tps: float, lost_tokens: float) -> float:
    """Return the part of a slack that a migration can use: the cut goes back to a word boundary."""
    return max(0.0, slack_s - lost_tokens / pace_tps)


WHILE_BANKING = frozenset({MigrationVerdict.BANK})
# While the target still prefills the prompt of this answer.
WHILE_THE_TARGET_READS = frozenset({MigrationVerdict.BANK, MigrationVerdict.GO})
NOT_YET = frozenset({MigrationVerdict.RETRY})
AT_NO_VERDICT: frozenset[MigrationVerdict] = frozenset()


@dataclass(frozen=True, slots=True)
class ConsideredMigration:
    """What `MigrationControl.consider` will check at the next packets, for drivers that know these in advance.

    Attributes:
        rule: the rule that decides.
        written_tokens: tokens of the answer so far.
        unchanging: the verdicts that change nothing at present.
        pace_tps: the reader's pace, tokens/s.
        lost_tokens: how many tokens the cut is expected to take back.
        ask_at: when to ask next, s; after that, at most once every `RECONSIDER_S`.
    """

    rule: Rule
    written_tokens: int
    unchanging: frozenset[MigrationVerdict]
    pace_tps: float
    lost_tokens: float
    ask_at: float

    def leaves_all_as_it_is(self, more_tokens: int, slack_s: float) -> bool:
        """Whether nothing would happen after `more_tokens` more tokens, with a slack of `slack_s` seconds."""
        slack_s = usable_slack_s(slack_s, self.pace_tps, self.lost_tokens)
        return self.rule.verdict(self.written_tokens + more_tokens, slack_s) in self.unchanging
