"""What a client knows about its endpoints: from profiles at first, then from what it sees.

Observations stay honest (design rule 8): a cancelled loser's first token is censored ("took longer than"),
failures are not latencies, and a start that had to load the model does not count as a warm one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from disco.cost import Rates
from disco.endpoints.base import Capabilities
from disco.plan import Candidate
from disco.profiles import Lengths, LengthsProfile, Rolling
from disco.session.attempts import AttemptState, Outcome
from disco.session.machine import Session
from disco.session.migration import AnswerLengths

__all__ = ["Knowledge", "Speeds"]

NEW_WEIGHT = 0.3  # of the newest answer in the running means below
FEWEST_TOKENS = 8  # shorter answers and prefills say little about a rate
REFIT_EVERY = 16  # answers between two plannings


@dataclass(slots=True)
class Speeds:
    """Running estimates for one endpoint; all fields are mutable.

    Attributes:
        place: "device" or "server".
        rates: unified cost per token.
        ttft: of a server, kept up to date; None for a device, whose TTFT follows from the two rates.
        prefill_tps: prompt tokens/s; `inf` for a server, whose TTFT does not depend on length.
        overhead_s: fixed part of a device's TTFT once it is loaded.
        decode_tps: generated tokens/s.
        load_s: time to load a model that is not ready.
    """

    place: Literal["device", "server"]
    rates: Rates
    ttft: Rolling | None = None
    prefill_tps: float = float("inf")
    overhead_s: float = 0.0
    decode_tps: float = 30.0
    load_s: float = 0.0

    def candidate(self, name: str, able: Capabilities, *, standby: bool = False) -> Candidate:
        """The endpoint as dispatch and session see it for the next request."""
        overhead_s = self.overhead_s
        if self.ttft is not None:
            # A hand-over that is late is abandoned, so its time is planned from the slow side.
            overhead_s = float(self.ttft.snapshot().quantile(0.9))
        return Candidate(
            name=name,
            reach="device" if self.place == "device" else "any",
            rates=self.rates,
            prefill_tps=self.prefill_tps,
            overhead_s=overhead_s,
            load_s=0.0 if able.ready else self.load_s,
            decode_tps=self.decode_tps,
            continues=able.continues,
            parks=able.parks,
            context_tokens=able.context_tokens,
            vocabulary=able.vocabulary,
            standby=standby,
        )

    def learn(self, state: AttemptState) -> None:
        """Take in one attempt of a finished answer."""
        if state.failure is not None or state.outcome is Outcome.CANCELLED:
            return
        if state.first_content_at is None:
            if self.ttft is not None and state.ended_at is not None and state.outcome is not Outcome.FINISHED:
                self.ttft.observe_censored(max(0.0, state.ended_at - state.started_at))
            return
        first_s = max(0.0, state.first_content_at - state.started_at)
        if self.ttft is not None:
            self.ttft.observe(first_s)
        elif state.usage is not None and state.candidate.load_s == 0.0:
            computed = state.usage.prompt_tokens - state.usage.cached_tokens
            spent_s = first_s - self.overhead_s
            if computed >= 4 * FEWEST_TOKENS and spent_s > 0:
                self.prefill_tps += NEW_WEIGHT * (computed / spent_s - self.prefill_tps)
        writing_s = state.last_at - state.first_content_at
        if state.tokens > FEWEST_TOKENS and writing_s > 0:
            self.decode_tps += NEW_WEIGHT * ((state.tokens - 1) / writing_s - self.decode_tps)


@dataclass(slots=True)
class Knowledge:
    """Everything learnt by one client, shared by the copies `with_options` makes. All fields are mutable.

    Attributes:
        speeds: by endpoint name and, for a server, model.
        prompts: prompt lengths, for the budget.
        prior: where answer lengths start from.
        answers: lengths of the answers seen, tokens, with whether they ended by themselves.
    """

    prompts: Lengths
    prior: LengthsProfile
    speeds: dict[tuple[str, str | None], Speeds] = field(default_factory=dict)
    answers: list[tuple[int, bool]] = field(default_factory=list)
    seen: int = 0
    _lengths: AnswerLengths | None = None

    def learn(self, session: Session, speeds: Mapping[str, Speeds]) -> bool:
        """Take in a finished session; True when enough is new for the policy to be planned again.

        `speeds` are those its candidates were made from, by endpoint name.
        """
        for state in session.attempts:
            speeds[state.candidate.name].learn(state)
        if session.finish_reason is not None and session.tokens > 0:
            self.answers.append((session.tokens, session.finish_reason == "stop"))
            del self.answers[:-1000]  # old ones are forgotten
            if len(self.answers) % REFIT_EVERY == 0:
                self._lengths = None
        self.prompts.observe(session.terms.prompt_tokens)
        self.seen += 1
        return self.seen % REFIT_EVERY == 0

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
