"""How long each endpoint takes, as far as a recording shows: measured in an answer itself, else drawn.

A drawn time is one of those that the endpoint took in other answers to prompts of about the same length, where there
are enough of them: the fitted line times the ratio of another answer to that line. Of an endpoint on a device the line
is by what it reads, of a server by the prompt's length, if its time depends on that at all. Where an endpoint was
stopped before it wrote, the draw is from beyond that time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

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

IN_BAND = 50
"""First tokens of prompts of about the same length from which on these are a distribution of their own."""

MOST_OTHERS = 4
"""Other answers that a server writes from which on more of them count as so many."""

FELT = 1.3
"""How many times as long a first token must take with `MOST_OTHERS` for the endpoint to count as one that queues."""

_MOST_BANDS = 10
_LEVELS = 50  # of a distribution that is made of several
_HIGHEST = float(np.nextafter(1.0, 0.0))
_STEEPEST_TPS = 1e6  # prompt tokens/s, if prompts are so short that a line through their TTFTs has no slope
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """The times of one endpoint.

    Attributes:
        line: of an endpoint on a device, its TTFT by the tokens it reads, by which plans are made.
        ttft: its TTFT; with a line, as a multiple of the line's.
        tpot: time per token; None: not seen.
        learnt: the recording shows enough of them; False: they are few, or what the client assumed when it planned.
        bands: TTFT for prompts of up to so many tokens, in order, as a multiple of the line's or of `by_length`; longer
            ones count as those of the last. Empty where too few were seen.
        cached: tokens of the prompt in its cache; None: not seen.
        crowd: of a server, how many times as long the TTFT and a token take while it has 0, 1, ... other answers of
            this client to write, and at last as many or more; all else is without others. Empty: it does not matter, as
            at a large provider.
        by_length: of a server, its TTFT by the length of the prompt; None: it does not depend on it.
        ratio: of a server, its TTFT as a multiple of that.
    """

    line: LinearFit | None
    ttft: Empirical
    tpot: Empirical | None
    learnt: bool
    bands: tuple[tuple[float, Empirical], ...] = ()
    cached: Empirical | None = None
    crowd: tuple[tuple[float, float], ...] = ()
    by_length: LinearFit | None = None
    ratio: Empirical | None = None

    @classmethod
    def of(cls, candidate: Candidate, seen: Sequence[Seen]) -> EndpointTimes:
        """Return what a recording shows of an endpoint.

        Args:
            candidate: what the client knew at last; used where the recording shows too little.
            seen: all that the recording shows of the endpoint.
        """
        by_length: LinearFit | None = None
        crowd: tuple[tuple[float, float], ...] = ()
        if candidate.place != "device":
            by_length = _by_length(seen)
            crowd = _crowd(seen, _Usual(by_length))
        seen = [_without_others(one, crowd) for one in seen]
        rates = [one.tpot_s for one in seen if one.tpot_s]
        tpot = Empirical.from_samples(rates) if rates else None
        warm = [one for one in seen if one.ttft_s is not None and not one.cold]
        lost = [one for one in seen if one.over_s is not None and not one.cold]
        kept = [float(one.cached_tokens) for one in warm]
        cached = Empirical.from_samples(kept) if kept else None
        if candidate.place != "device":
            if len(warm) < FEWEST_STARTS and (_is_believed(candidate) or not warm):
                return cls(None, _believed(candidate), tpot, learnt=False, cached=cached, crowd=crowd)
            usual = _Usual(by_length)
            ratio = usual.estimated(warm, lost)
            ttft = usual.of_all(ratio, [*warm, *lost])
            learnt, bands = len(warm) >= ENOUGH_STARTS, usual.bands(warm, lost)
            return cls(None, ttft, tpot, learnt, bands, cached, crowd, by_length, ratio)
        known = [one for one in warm if one.read_tokens > 0]
        if len(known) < FEWEST_STARTS and (_is_believed(candidate) or not known):
            k = 0.0 if math.isinf(candidate.prefill_tps) else 1.0 / candidate.prefill_tps
            line = LinearFit(max(k, 1.0 / _STEEPEST_TPS), candidate.overhead_s, r2=0.0, n=0)
            return cls(line, Empirical.from_samples([1.0]), tpot, learnt=False, cached=cached)
        tokens = np.array([one.read_tokens for one in known], dtype=np.float64)
        times_s = np.array([one.ttft_s for one in known], dtype=np.float64)
        if np.ptp(tokens) > 0:
            line = fit_line(tokens, times_s, non_negative=True)
            line = LinearFit(max(line.k_s_per_token, 1.0 / _STEEPEST_TPS), line.c_s, line.r2, line.n)
        else:
            line = LinearFit(1.0 / _STEEPEST_TPS, float(times_s.mean()), r2=0.0, n=len(known))
        usual = _Usual(line, reads_rest=True)
        lost = [one for one in lost if one.prompt_tokens > one.cached_tokens]
        learnt = len(known) >= ENOUGH_STARTS
        return cls(line, usual.estimated(known, lost), tpot, learnt, usual.bands(known, lost), cached)

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

    def ttft_s(self, seen: Seen, prompt_tokens: int, level: float, cached_tokens: int = 0) -> float:
        """Return the time to first token of an answer, as measured, or else the quantile of that level in [0, 1), s.

        It is the time that the endpoint takes while it has nothing else to do (`crowd`).
        """
        seen = _without_others(seen, self.crowd)
        if seen.ttft_s is not None:
            return seen.ttft_s
        usual_s = self._usual_s(prompt_tokens, cached_tokens)
        ttft = self._of_length(prompt_tokens)
        if seen.over_s is None:
            return usual_s * float(ttft.quantile(level))
        below = float(ttft.cdf(seen.over_s / usual_s))
        beyond_s = usual_s * float(ttft.quantile(min(below + (1.0 - below) * level, 1.0)))
        return max(beyond_s, seen.over_s)

    def levels(self, seen: Seen, rng: np.random.Generator) -> tuple[float, float]:
        """Return at which quantiles, in [0, 1), the TTFT and the time per token of an answer are; drawn if not seen."""
        seen = _without_others(seen, self.crowd)
        drawn, pace = rng.random(2).tolist()
        level = drawn
        usual_s = self._usual_s(seen.prompt_tokens, seen.cached_tokens)
        ttft = self._of_length(seen.prompt_tokens)
        if seen.ttft_s is not None and not seen.cold:
            level = _level(ttft, seen.ttft_s / usual_s, drawn)
        elif seen.over_s is not None:
            below = float(ttft.cdf(seen.over_s / usual_s))
            level = below + (1.0 - below) * drawn
        if seen.tpot_s and self.tpot is not None:
            pace = _level(self.tpot, seen.tpot_s, pace)
        return min(level, _HIGHEST), min(pace, _HIGHEST)

    def cached_tokens(self, prompt_tokens: int, level: float) -> int:
        """Return how much of a prompt is in its cache, of an answer that does not show it; at least a token is read."""
        if self.cached is None:
            return 0
        return max(0, min(round(float(self.cached.quantile(level))), prompt_tokens - 1))

    def _usual_s(self, prompt_tokens: int, cached_tokens: int) -> float:
        if self.line is not None:
            return self.line.ttft_s(max(prompt_tokens - cached_tokens, 1))
        return 1.0 if self.by_length is None else self.by_length.ttft_s(prompt_tokens)

    def _of_length(self, prompt_tokens: int) -> Empirical:
        for up_to, ttft in self.bands:
            if prompt_tokens <= up_to:
                return ttft
        return self.bands[-1][1] if self.bands else self.ratio or self.ttft

    def tpot_s(self, seen: Seen, usual_s: float, level: float) -> float:
        """Return the time per token of an answer, as measured, or else the quantile of that level, s.

        `usual_s` is taken where the recording shows none. As `ttft_s`, without others.
        """
        seen = _without_others(seen, self.crowd)
        if seen.tpot_s:
            return seen.tpot_s
        return usual_s if self.tpot is None else float(self.tpot.quantile(level))


def _level(of: Empirical, value: float, drawn: float) -> float:
    """Return a level at which the distribution has this value."""
    low, high = float(of.cdf(value * (1.0 - 1e-9))), float(of.cdf(value * (1.0 + 1e-9)))
    return low + (high - low) * drawn


def _is_believed(candidate: Candidate) -> bool:
    """Whether the client planned with a time to first token at all: 0 s is none, and one that was seen says more."""
    return bool(candidate.ttft_quantiles or candidate.overhead_s or math.isfinite(candidate.prefill_tps))


def _believed(candidate: Candidate) -> Empirical:
    """Return the distribution that the client planned with."""
    known = candidate.ttft_quantiles
    if not known:
        return Empirical.from_samples([candidate.overhead_s])
    return Empirical.from_quantiles(np.arange(1, len(known) + 1) / len(known), known)


def _by_length(seen: Sequence[Seen]) -> LinearFit | None:
    """Return a server's TTFT by the length of the prompt; None where too few tell, or where it does not grow."""
    warm = [one for one in seen if one.ttft_s is not None and not one.cold]
    tokens = np.array([one.prompt_tokens for one in warm], dtype=np.float64)
    if len(warm) < ENOUGH_STARTS or np.ptp(tokens) <= 0:
        return None
    line = fit_line(tokens, np.array([one.ttft_s for one in warm]), non_negative=True)
    return line if line.k_s_per_token > 0 else None


def _crowd(seen: Sequence[Seen], usual: _Usual) -> tuple[tuple[float, float], ...]:
    """Return `EndpointTimes.crowd`: by medians of those that had as many others, where there are enough of them."""
    found: list[tuple[float, float]] = []
    usual_s = usual_tpot_s = None
    for others in range(MOST_OTHERS + 1):
        these = [one for one in seen if not one.cold and min(one.others, MOST_OTHERS) == others]
        firsts = [one for one in these if one.ttft_s is not None]
        ttft, tpot = found[-1] if found else (1.0, 1.0)
        if len(firsts) >= ENOUGH_STARTS:
            lost = [one for one in these if one.over_s is not None]
            median_s = float(usual.estimated(firsts, lost).quantile(0.5))
            rates = [one.tpot_s for one in these if one.tpot_s]
            tpot_s = float(np.median(rates)) if rates else None
            if usual_s is None:
                usual_s, usual_tpot_s = median_s, tpot_s
            ttft = max(ttft, median_s / max(usual_s, 1e-6))
            if tpot_s is not None and usual_tpot_s:
                tpot = max(tpot, tpot_s / usual_tpot_s)
        found.append((ttft, tpot))
    return tuple(found) if found[-1][0] >= FELT else ()


def _without_others(seen: Seen, crowd: Sequence[tuple[float, float]]) -> Seen:
    """Return the times as they would have been if the endpoint had had nothing else to do."""
    ttft, tpot = crowd[min(seen.others, len(crowd) - 1)] if crowd else (1.0, 1.0)
    if ttft == tpot == 1.0:
        return seen
    return replace(
        seen,
        ttft_s=None if seen.ttft_s is None else seen.ttft_s / ttft,
        over_s=None if seen.over_s is None else seen.over_s / ttft,
        tpot_s=None if seen.tpot_s is None else seen.tpot_s / tpot,
        others=0,
    )


@dataclass(frozen=True, slots=True)
class _Usual:
    """Distributions of times, or of their ratio to a line; `reads_rest`: it is by what is not in the cache."""

    line: LinearFit | None
    reads_rest: bool = False

    def estimated(self, warm: Sequence[Seen], lost: Sequence[Seen]) -> Empirical:
        """Return the distribution; `lost`: only known to be longer."""
        return _estimated(
            [(one.ttft_s or 0.0) / self._s(one) for one in warm],
            [(one.over_s or 0.0) / self._s(one) for one in lost],
        )

    def of_all(self, ratio: Empirical, seen: Sequence[Seen]) -> Empirical:
        """Return the distribution over all these prompts, s."""
        if self.line is None:
            return ratio
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        usual_s = np.array([self._s(one) for one in seen])
        return Empirical.from_samples(np.outer(usual_s, ratio.quantile(levels)).ravel())

    def bands(self, warm: Sequence[Seen], lost: Sequence[Seen]) -> tuple[tuple[float, Empirical], ...]:
        """Return the distributions by length of the prompt, each of about as many first tokens."""
        count = min(len(warm) // IN_BAND, _MOST_BANDS)
        if count < 2:
            return ()
        lengths = [one.prompt_tokens for one in warm]
        ends = sorted(
            {float(end) for end in np.quantile(lengths, np.arange(1, count + 1) / count, method="lower")}
        )
        found, above = [], -math.inf
        for end in ends:
            these, others = (
                [one for one in some if above < one.prompt_tokens <= end] for some in (warm, lost)
            )
            found.append((end, self.estimated(these, others)))
            above = end
        return tuple(found)

    def _s(self, one: Seen) -> float:
        if self.line is None:
            return 1.0
        cached_tokens = one.cached_tokens if self.reads_rest else 0
        return self.line.ttft_s(max(one.prompt_tokens - cached_tokens, 1))


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
