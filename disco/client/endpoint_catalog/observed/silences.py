"""What is learnt of an endpoint's silences: how long its healthy answers are silent, and how late they begin.

Of each attempt that wrote enough, its longest gap counts (`profiles.upper_tail` says why). Of an attempt that was
stopped while it was silent, only that the gap would have been longer is known. A server that was silent until its heir
or its hedge wrote says nothing (`AttemptState.fell_silent`): else one that hangs again and again would teach its
clients to wait for it. A model on this machine is believed to be slower.

A doubt is a start of another endpoint because this one is silent. What doubts may cost is bounded: each answer earns a
tenth of one, and so many are left as were earned (`tenths`). A doubt of a start takes a whole one, and so does one in
mid-text that proves wrong, because the silent one goes on. So of answers one after another, about one in ten starts
another endpoint in vain at most. When the doubts are used up, the next silence is waited for, and its end is seen: if
the server writes, it was slow, and the limits follow; if not, it hangs, and all doubts are there again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from disco.candidate import Candidate
from disco.errors import FailureKind
from disco.profiles import UpperTail
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.switching.silence_rule import SOON

__all__ = ["KINDS", "Observation", "Silences", "observations"]

FALSE_ALARM_SHARE = 0.0005  # of healthy answers, that are silent for longer than `silence_s` says
HEDGED_SHARE = 0.01  # of healthy answers, whose first token takes longer than `slow_start` says
LEAST_SILENCE_S = 0.1  # below, gaps say more about this machine than about an endpoint
FEWEST_TOKENS = 8  # the longest gap of a shorter answer says little about that of a long one
EARNED, DOUBT, MOST = (
    1,
    10,
    50,
)  # tenths of a doubt: what an answer earns, what a doubt takes, the most that are kept

_OUT_OF_TIME = (FailureKind.TIMEOUT, FailureKind.STALLED)

Observation = tuple[str, float]
"""A kind of `KINDS`, and the number."""

KINDS = ("gap_s", "gap_above_s", "late_start", "late_start_above", "doubt_tenths")
"""What is observed: the longest gap of an answer, s, and how late a first token was (see `Silences.starts`); "above":
only that it is longer is known; and how many tenths of doubts are left."""


@dataclass(slots=True)
class Silences:
    """The silences of one endpoint under one model. All fields are mutable.

    Attributes:
        gaps: the longest gap of each answer, s.
        starts: times to first token: as a multiple of the expected time where that depends on the prompt, else in s.
        tenths: of the doubts that are left.
    """

    gaps: UpperTail = field(default_factory=UpperTail)
    starts: UpperTail = field(default_factory=UpperTail)
    tenths: int = MOST

    def observe(self, kind: str, value: float) -> None:
        """Add one observation of a kind in `KINDS`."""
        if kind == "doubt_tenths":
            self.tenths = min(MOST, round(value))
            return
        sample = self.gaps if kind.startswith("gap") else self.starts
        if "above" in kind:
            sample.observe_censored(value)
        else:
            sample.observe(value)

    @property
    def may_be_doubted(self) -> bool:
        """Whether a doubt is left; see `Candidate.may_be_doubted`."""
        return self.tenths >= DOUBT

    def silence_s(self) -> float | None:
        """Return `Candidate.silence_s`; None where too little is known."""
        limit_s = self.gaps.exceeded_by(FALSE_ALARM_SHARE)
        return None if limit_s is None else max(limit_s, LEAST_SILENCE_S)

    def slow_start(self) -> float | None:
        """Return what one in a hundred of `starts` exceeds; None where too little is known."""
        return self.starts.exceeded_by(HEDGED_SHARE)

    def doubts(self, state: AttemptState) -> list[Observation]:
        """Return what is left of the doubts after one attempt of a finished answer, where that has changed."""
        was_waited_for, has_spoken = not state.candidate.may_be_doubted, state.first_content_at is not None
        change = 0
        if _was_silent_to_its_end(state):
            if was_waited_for:
                change = MOST  # it hangs: the next ones are not waited for
            elif state.doubted_at is not None and not has_spoken:
                change = -DOUBT
        elif state.doubted_at is not None:
            change = -DOUBT
        elif has_spoken and state.failure is None and not (was_waited_for and self.slow_start() is None):
            change = EARNED  # who is waited for earns nothing until enough is known of it
        left = min(MOST, max(0, self.tenths + change))
        return [] if left == self.tenths else [("doubt_tenths", left)]


def _was_silent_to_its_end(state: AttemptState) -> bool:
    """Whether a server fell silent, or was stopped within a silence in which another endpoint might have started."""
    if state.fell_silent:
        return True
    is_stopped = state.outcome is AttemptOutcome.CANCELLED or state.failure in (None, *_OUT_OF_TIME)
    if not is_stopped or state.outcome is AttemptOutcome.FINISHED or state.candidate.place == "device":
        return False
    least_s = SOON.first_s if state.first_content_at is None else SOON.gap_s
    return state.ended_at is not None and state.ended_at - state.silent_from >= least_s


def observations(state: AttemptState, *, by_line: bool) -> list[Observation]:
    """Return what one attempt of a finished answer says about its endpoint's silences.

    Args:
        state: the attempt.
        by_line: the endpoint's time to first token depends on the prompt's length.
    """
    return [*_gap(state), *_start(state, by_line=by_line)]


def _gap(state: AttemptState) -> list[Observation]:
    if state.first_content_at is None or state.ended_at is None or state.tokens <= FEWEST_TOKENS:
        return []
    was_silent_s = state.ended_at - state.silent_from
    cut_short = state.outcome is AttemptOutcome.CANCELLED or (
        state.failure is not None and state.doubted_at is not None
    )
    if cut_short and not state.fell_silent and was_silent_s > state.longest_gap_s:
        return [("gap_above_s", was_silent_s)]
    return [("gap_s", state.longest_gap_s)]


def _start(state: AttemptState, *, by_line: bool) -> list[Observation]:
    candidate, from_at = state.candidate, state.works_from_at
    is_warm = candidate.load_s == 0.0 and not (state.seam is not None and state.seam.method == "instructed")
    is_cut = state.failure is not None or state.outcome is AttemptOutcome.CANCELLED or state.fell_silent
    if is_cut or not is_warm:
        return []
    if state.first_content_at is not None:
        took_s = max(0.0, state.first_content_at - from_at)
        if not by_line:
            return [("late_start", took_s)]
        if state.usage is None:
            return []
        read = state.usage.prompt_tokens - state.usage.cached_tokens - state.usage.probed[0]
        return [("late_start", took_s / _expected_s(candidate, read))] if read > 0 else []
    if state.ended_at is None or state.outcome is AttemptOutcome.FINISHED:
        return []
    took_s = max(0.0, state.ended_at - from_at)
    if not by_line:
        return [("late_start_above", took_s)]
    if state.doubted_at is None or candidate.slow_start is None:
        return []
    return [("late_start_above", candidate.slow_start * took_s / max(state.doubted_at - from_at, 1e-3))]


def _expected_s(candidate: Candidate, tokens: int) -> float:
    return max(candidate.overhead_s + tokens / candidate.prefill_tps, 1e-3)
