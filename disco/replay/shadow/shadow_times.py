"""How long each endpoint takes, as far as a recording shows: measured in an answer itself, else drawn.

A drawn time is one of those that the endpoint took in other answers. Of an endpoint on a device, whose time depends on
the prompt's length, it is the fitted line times the ratio of another answer to that line. Where an endpoint was stopped
before it wrote, the draw is from beyond that time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.profiles import Empirical, LinearFit, Rolling, fit_line
from disco.replay.shadow.shadow_recording import Seen, ShadowedAnswer
from disco.session.records.shadow_record import Basis

__all__ = ["ENOUGH_STARTS", "FEWEST_STARTS", "EndpointTimes"]

FEWEST_STARTS = 5
"""First tokens of an endpoint in the recording from which on its times are taken from it."""

ENOUGH_STARTS = 20
"""First tokens from which on these times count as expected, and not as assumed: fewer say little about slow answers."""

_STEEPEST_TPS = 1e6  # prompt tokens/s, if prompts are so short that a line through their TTFTs has no slope
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """The times of one endpoint.

    Attributes:
        line: its TTFT by the tokens it reads; None: it does not depend on them.
        ttft: its TTFT; with a line, as a multiple of the line's.
        tpot: time per token; None: not seen.
        learnt: the recording shows enough of them; False: they are few, or what the client assumed when it planned.
    """

    line: LinearFit | None
    ttft: Empirical
    tpot: Empirical | None
    learnt: bool

    @classmethod
    def of(cls, candidate: Candidate, seen: Sequence[Seen]) -> EndpointTimes:
        """Return what a recording shows of an endpoint.

        Args:
            candidate: what the client knew at last; used where the recording shows too little.
            seen: all that the recording shows of the endpoint.
        """
        rates = [one.tpot_s for one in seen if one.tpot_s]
        tpot = Empirical.from_samples(rates) if rates else None
        warm = [one for one in seen if one.ttft_s is not None and not one.cold]
        over_s = [one.over_s for one in seen if one.over_s is not None and not one.cold]
        if candidate.place != "device":
            if len(warm) < FEWEST_STARTS:
                return cls(None, _believed(candidate), tpot, learnt=False)
            ttft = _estimated([one.ttft_s or 0.0 for one in warm], over_s)
            return cls(None, ttft, tpot, learnt=len(warm) >= ENOUGH_STARTS)
        known = [one for one in warm if one.read_tokens > 0]
        if len(known) < FEWEST_STARTS:
            k = 0.0 if math.isinf(candidate.prefill_tps) else 1.0 / candidate.prefill_tps
            line = LinearFit(max(k, 1.0 / _STEEPEST_TPS), candidate.overhead_s, r2=0.0, n=0)
            return cls(line, Empirical.from_samples([1.0]), tpot, learnt=False)
        tokens = np.array([one.read_tokens for one in known], dtype=np.float64)
        times_s = np.array([one.ttft_s for one in known], dtype=np.float64)
        if np.ptp(tokens) > 0:
            line = fit_line(tokens, times_s, non_negative=True)
            line = LinearFit(max(line.k_s_per_token, 1.0 / _STEEPEST_TPS), line.c_s, line.r2, line.n)
        else:
            line = LinearFit(1.0 / _STEEPEST_TPS, float(times_s.mean()), r2=0.0, n=len(known))
        ratios = times_s / (line.k_s_per_token * tokens + line.c_s)
        return cls(line, Empirical.from_samples(ratios), tpot, learnt=len(known) >= ENOUGH_STARTS)

    @classmethod
    def again(cls, candidate: Candidate, seen: Sequence[Seen], rng: np.random.Generator) -> EndpointTimes:
        """Return what as many of these answers, drawn at random, would have shown: how far the times are known.

        As many first tokens are drawn as there are, from these; and as many of the others from those.
        """
        drawn: list[Seen] = []
        for some in (
            [one for one in seen if one.ttft_s is not None and not one.cold],
            [one for one in seen if one.ttft_s is None or one.cold],
        ):
            drawn += [some[i] for i in rng.integers(0, len(some), len(some)).tolist()] if some else []
        return cls.of(candidate, drawn)

    def basis(self, answer: ShadowedAnswer, name: str) -> Basis:
        """Return where the endpoint's TTFT of that answer comes from."""
        seen = answer.seen.get(name)
        if seen is not None and seen.ttft_s is not None:
            return "measured"
        return "expected" if self.learnt or name not in answer.unconfirmed else "assumed"

    def ttft_s(self, seen: Seen, prompt_tokens: int, level: float) -> float:
        """Return the time to first token of an answer, as measured, or else the quantile of that level in [0, 1), s."""
        if seen.ttft_s is not None:
            return seen.ttft_s
        usual_s = 1.0 if self.line is None else self.line.ttft_s(prompt_tokens)
        if seen.over_s is None:
            return usual_s * float(self.ttft.quantile(level))
        below = float(self.ttft.cdf(seen.over_s / usual_s))
        beyond_s = usual_s * float(self.ttft.quantile(min(below + (1.0 - below) * level, 1.0)))
        return max(beyond_s, seen.over_s)

    def tpot_s(self, seen: Seen, usual_s: float, level: float) -> float:
        """Return the time per token of an answer, as measured, or else the quantile of that level, s.

        `usual_s` is taken where the recording shows none.
        """
        if seen.tpot_s:
            return seen.tpot_s
        return usual_s if self.tpot is None else float(self.tpot.quantile(level))


def _believed(candidate: Candidate) -> Empirical:
    """Return the distribution that the client planned with."""
    known = candidate.ttft_quantiles
    if not known:
        return Empirical.from_samples([candidate.overhead_s])
    return Empirical.from_quantiles(np.arange(1, len(known) + 1) / len(known), known)


def _estimated(seen_s: Sequence[float], over_s: Sequence[float]) -> Empirical:
    """Return the distribution of times of which some are only known to be longer (Kaplan and Meier)."""
    if not over_s:
        return Empirical.from_samples(seen_s)
    times = Rolling(half_life=None)
    for one in seen_s:
        times.observe(one)
    for one in over_s:
        times.observe_censored(one)
    return times.snapshot()
