"""The record of one attempt, a part of the route record."""

from __future__ import annotations

from dataclasses import dataclass

from disco.events import SpeculationReport
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.session_config import BEGINNERS

__all__ = ["AttemptRecord"]

_FEWEST_TOKENS = 8  # a rate from fewer tokens is not reliable


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. Times are seconds since the request; None where the event did not happen.

    Attributes:
        endpoint, place: the endpoint's name, and whether it is this machine ("device") or not ("server").
        role, outcome, failure: why the attempt was started, how it ended, and the class of its failure.
        cold: whether the model had to be loaded first, as far as known; a cold start says nothing about warm ones.
        started_s, first_content_s, ended_s: when the attempt started, wrote its first content, and ended.
        began_s: when the attempt left its queue; None where it did not wait, or where that is not known.
        prefix_chars: length of the prefix that the attempt continued.
        tokens, kept_tokens: tokens written, and how many of them are in the answer.
        prompt_tokens, completion_tokens, cached_tokens: what the attempt is charged for.
        bill_usd, device_energy_j, policy_cost: the sums of the attempt's charges; see `cost.Charge`.
        seam: the verdict of `events.SeamReport` on the place where the attempt continued an answer; None where the
            attempt began an answer, or where its endpoint does not report a verdict.
        continued_by: the method by which the endpoint was made to continue ("flags", "instructed", ...); None where
            the attempt began an answer, and for the local model, which needs no method.
        sent_chars, written_chars, swallowed_chars: the numbers of that report.
        text_chars: characters that the attempt passed on to the session, kept or not.
        read_s: when it had read the prompt and kept it, of an attempt that lost its race and was parked; None where it
            wrote, or where that is not known.
        paused_s: how long it was paused in all, for migrations away from it, s.
        longest_gap_s: its longest silence between two pieces of content, pauses not counted, s.
        doubted_s: when another attempt was started because this one was silent (`session/switching/silence.py`).
        bytes_up, bytes_down: bytes on the wire; see `events.Traffic`.
        text_bytes: the same text in UTF-8 bytes.
        speculation: how a drafter and a verify server made the text; None where the endpoint is not such a pair, and
            where the pair's server wrote it as any server does.
    """

    endpoint: str
    place: str
    role: str
    outcome: str
    failure: str | None
    cold: bool
    started_s: float
    first_content_s: float | None
    ended_s: float | None
    prefix_chars: int
    tokens: int
    kept_tokens: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    bill_usd: float
    device_energy_j: float | None
    policy_cost: float
    seam: str | None = None
    sent_chars: int = 0
    written_chars: int = 0
    swallowed_chars: int = 0
    text_chars: int = 0
    began_s: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    text_bytes: int = 0
    continued_by: str | None = None
    paused_s: float = 0.0
    speculation: SpeculationReport | None = None
    longest_gap_s: float = 0.0
    doubted_s: float | None = None
    read_s: float | None = None

    @property
    def begins(self) -> bool:
        """Whether the attempt was asked for the answer from its beginning, so that it may have begun it."""
        return self.role in BEGINNERS and not self.prefix_chars

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token while it wrote, pauses not counted, s; None where too few tokens tell."""
        if self.first_content_s is None or self.ended_s is None or self.tokens < _FEWEST_TOKENS:
            return None
        return max(self.ended_s - self.first_content_s - self.paused_s, 0.0) / (self.tokens - 1)

    @property
    def joins(self) -> bool:
        """Whether the attempt continued exactly at the cut, and all that it wrote there arrived.

        The check compares what the attempt was sent with all that it wrote. Only the withheld text and a proved echo
        may be missing, each of them whole.
        """
        if self.seam is None:
            return True
        may_miss = self.prefix_chars - self.sent_chars + (self.sent_chars if self.seam == "echo" else 0)
        passed_chars = self.written_chars - self.swallowed_chars
        arrived = self.text_chars == passed_chars or (
            self.outcome != AttemptOutcome.FINISHED and self.text_chars <= passed_chars
        )
        return self.seam != "unproved" and self.swallowed_chars == may_miss and arrived
