"""What a client learns of its endpoints: from profiles at first, then from what it sees.

Observations stay honest (design rule 8): a cancelled loser's first token is censored ("took longer than"),
failures are not latencies, waiting for a turn is no prefill, and a start that had to load the model does not count as
a warm one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from disco.endpoints.contract import Capabilities
from disco.plan import Candidate, Reach
from disco.profiles import Lengths, LengthsProfile, Rolling, RollingLine
from disco.rates import Rates
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.machine import Session
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["EndpointStatistics", "Statistics", "make_room"]

NEW_WEIGHT = 0.3  # of the newest answer in the running means below
FEWEST_TOKENS = 8  # shorter answers say little about a rate
REFIT_EVERY = 16  # answers between two plannings
MOST_ANSWERS = 1000  # whose lengths are remembered
MOST_MODELS = 256  # of which something is remembered
# Ends that are the model's own; any other one has cut the answer short.
_WHOLE = frozenset({"stop", "tool_calls", "function_call"})


def make_room(known: dict[Any, Any]) -> None:
    """Forget the oldest entry where there are too many: callers of `disco serve` may make up any model's name."""
    if len(known) >= MOST_MODELS:
        del known[next(iter(known))]


@dataclass(slots=True)
class EndpointStatistics:
    """Running estimates of one endpoint under one model; all fields are mutable.

    Attributes:
        ttft: its TTFT where that does not follow from the prompt's length (a server's); else None.
        line: its TTFT as a line in the prompt's length (a device's); else None.
        decode_tps: generated tokens/s.
        load_s: time to load a model that is not ready.
        turn_s: how long an answer keeps it busy where one waits for another; 0 before any was seen.
    """

    ttft: Rolling | None = None
    line: RollingLine | None = None
    decode_tps: float = 30.0
    load_s: float = 0.0
    turn_s: float = 0.0

    def candidate(
        self,
        name: str,
        reach: Reach,
        rates: Rates,
        able: Capabilities,
        *,
        standby: bool = False,
        rank: int = 0,
    ) -> Candidate:
        """The endpoint as dispatch and session see it for the next request."""
        prefill_tps, overhead_s = float("inf"), 0.0
        if self.line is not None:
            prefill_tps, overhead_s = 1.0 / self.line.k_s_per_token, self.line.c_s
        elif self.ttft is not None:
            # A hand-over that is late is abandoned, so its time is planned from the slow side.
            overhead_s = float(self.ttft.snapshot().quantile(0.9))
        return Candidate(
            name=name,
            reach=reach,
            rates=rates,
            prefill_tps=prefill_tps,
            overhead_s=overhead_s,
            load_s=0.0 if able.ready else self.load_s,
            queue_s=(able.waiting or 0) * self.turn_s,
            decode_tps=self.decode_tps,
            continues=able.continues,
            parks=able.parks,
            announces=able.announces,
            context_tokens=able.context_tokens,
            vocabulary=able.vocabulary,
            standby=standby,
            rank=rank,
        )

    def learn(self, state: AttemptState) -> None:
        """Take in one attempt of a finished answer."""
        if state.began_at is not None and state.ended_at is not None:
            busy_s = max(0.0, state.ended_at - state.began_at)
            self.turn_s += (NEW_WEIGHT if self.turn_s else 1.0) * (busy_s - self.turn_s)
        if state.failure is not None or state.outcome is AttemptOutcome.CANCELLED:
            return
        if state.first_content_at is None:
            if (
                self.ttft is not None
                and state.ended_at is not None
                and state.outcome is not AttemptOutcome.FINISHED
            ):
                self.ttft.observe_censored(max(0.0, state.ended_at - state.works_from_at))
            return
        first_s = max(0.0, state.first_content_at - state.works_from_at)
        if self.ttft is not None:
            self.ttft.observe(first_s)
        elif self.line is not None and state.usage is not None and state.candidate.load_s == 0.0:
            self.line.observe(state.usage.prompt_tokens - state.usage.cached_tokens, first_s)
        writing_s = state.last_at - state.first_content_at
        if state.tokens > FEWEST_TOKENS and writing_s > 0:
            self.decode_tps += NEW_WEIGHT * ((state.tokens - 1) / writing_s - self.decode_tps)


@dataclass(slots=True)
class Statistics:
    """Everything learnt by one client, shared by the copies `with_options` makes. All fields are mutable.

    Attributes:
        prompts: prompt lengths, for the budget.
        prior: where answer lengths start from.
        endpoints: by whatever tells endpoints and their models apart.
        answers: lengths of the answers seen, tokens, with whether they ended by themselves.
        seen: answers so far.
    """

    prompts: Lengths
    prior: LengthsProfile
    endpoints: dict[Hashable, EndpointStatistics] = field(default_factory=dict)
    answers: deque[tuple[int, bool]] = field(default_factory=lambda: deque(maxlen=MOST_ANSWERS))
    seen: int = 0
    _lengths: AnswerLengths | None = None

    def learn(self, session: Session, endpoints: Mapping[str, EndpointStatistics]) -> bool:
        """Take in a finished session; True when enough is new for a preset to be planned again.

        `endpoints` are those its candidates were made from, by endpoint name.
        """
        for state in session.attempts:
            endpoints[state.candidate.name].learn(state)
        self.seen += 1
        is_due = self.seen % REFIT_EVERY == 0
        if session.finish_reason is not None and session.transcript.tokens > 0:
            self.answers.append((session.transcript.tokens, session.finish_reason in _WHOLE))
        if is_due:
            self._lengths = None
        self.prompts.observe(session.config.prompt_tokens)
        return is_due

    def answer_lengths(self) -> AnswerLengths:
        """The survival function of answer lengths: the prior until there are answers enough of its own."""
        if self._lengths is None:
            if len(self.answers) >= 2 * REFIT_EVERY and any(whole for _, whole in self.answers):
                self._lengths = AnswerLengths.from_samples(
                    [tokens for tokens, whole in self.answers if whole],
                    censored=[tokens for tokens, whole in self.answers if not whole],
                )
            else:
                table = self.prior.output_tokens
                self._lengths = AnswerLengths.from_quantiles(zip(table.levels, table.values, strict=True))
        return self._lengths
