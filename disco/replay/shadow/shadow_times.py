"""How long each endpoint takes, as far as a recording shows: measured in an answer itself, else drawn.

A drawn time is one of those that the endpoint took in other answers to prompts of about the same length, where there
are enough of them: the fitted line times the ratio of another answer to that line. The line is by what the endpoint
reads of a prompt; a server has none, if its time does not depend on that. Where an endpoint was stopped before it
wrote, the draw is from beyond that time.
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

__all__ = ["ENOUGH_STARTS", "FEWEST_STARTS", "EndpointTimes", "came_behind"]

FEWEST_STARTS = 5
"""First tokens of an endpoint in the recording from which on its times are taken from it."""

ENOUGH_STARTS = 20
"""First tokens from which on these times count as expected, and not as assumed: fewer say little about slow answers."""

IN_BAND = 50
"""First tokens of prompts of about the same length from which on these are a distribution of their own."""

ALL_READING = 0.5
"""R² of a server's times to first token by what it read, below which it counts as one that does not read in turn. One
machine had 0.59 to 0.95, a large provider 0.002 (gpt-4.1-nano, 2026)."""

_MOST_BANDS = 10
_LEVELS = 50  # of a distribution that is made of several
_BEYOND = 20  # levels of a distribution, of which the mean is taken
_ROUNDS = 4  # of a line that is fitted again by what came of it
_HIGHEST = float(np.nextafter(1.0, 0.0))
_STEEPEST_TPS = 1e6  # prompt tokens/s, if prompts are so short that a line through their TTFTs has no slope
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EndpointTimes:
    """The times of one endpoint.

    Attributes:
        line: of an endpoint on a device, its TTFT by the tokens it reads, by which plans are made.
        ttft: its TTFT, from its start; with a line, as a multiple of the line's.
        tpot: time per token; None: not seen.
        learnt: the recording shows enough of them; False: they are few, or what the client assumed when it planned.
        bands: TTFT for prompts of up to so many tokens, in order, as a multiple of the line's or of `by_length`; longer
            ones count as those of the last. Empty where too few were seen.
        cached: tokens of the prompt in its cache; None: not seen.
        overlap_s: of a server that reads one prompt at a time (`Station.overlap_s`): `bands`, `by_length` and `ratio`
            are of times from its turn. None: it does not, as a large provider, or the recording does not show it.
        by_length: of a server, its TTFT by the tokens it reads; None: it does not depend on them.
        ratio: of a server, its TTFT as a multiple of that.
    """

    line: LinearFit | None
    ttft: Empirical
    tpot: Empirical | None
    learnt: bool
    bands: tuple[tuple[float, Empirical], ...] = ()
    cached: Empirical | None = None
    overlap_s: float | None = None
    by_length: LinearFit | None = None
    ratio: Empirical | None = None

    @classmethod
    def of(cls, candidate: Candidate, seen: Sequence[Seen]) -> EndpointTimes:
        """Return what a recording shows of an endpoint.

        Args:
            candidate: what the client knew at last; used where the recording shows too little.
            seen: all that the recording shows of the endpoint.
        """
        rates = [one.tpot_s for one in seen if one.tpot_s]
        tpot = Empirical.from_samples(rates) if rates else None
        of = cls._of_device if candidate.place == "device" else cls._of_server
        return of(candidate, seen, tpot)

    @classmethod
    def _of_server(cls, candidate: Candidate, seen: Sequence[Seen], tpot: Empirical | None) -> EndpointTimes:
        seen = _with_usual_cache(seen)
        overlap_s = _overlap_s(seen)
        at_once = [one for one in seen if not _waited(one, overlap_s)]
        if len(_parted(at_once)[0]) < ENOUGH_STARTS:
            at_once = [_from_turn(one, overlap_s) for one in seen]
        warm, lost = _parted(at_once)
        cached = _cached(warm)
        if len(warm) < FEWEST_STARTS and (_is_believed(candidate) or not warm):
            return cls(None, _believed(candidate), tpot, learnt=False, cached=cached, overlap_s=overlap_s)
        by_length = _by_length(at_once)
        usual = _Usual(by_length)
        ratio = usual.estimated(warm, lost)
        # Plans are made with what a client sees, which is from the start.
        ttft = (
            usual.of_all(ratio, [*warm, *lost])
            if overlap_s is None
            else _Usual(None).estimated(*_parted(seen))
        )
        learnt, bands = len(warm) >= ENOUGH_STARTS, usual.bands(warm, lost)
        return cls(None, ttft, tpot, learnt, bands, cached, overlap_s, by_length, ratio)

    @classmethod
    def _of_device(cls, candidate: Candidate, seen: Sequence[Seen], tpot: Empirical | None) -> EndpointTimes:
        warm, lost = _parted(seen)
        cached = _cached(warm)
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
        usual = _Usual(line)
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

        Where the endpoint reads in turn, it is from its turn.
        """
        seen = _from_turn(seen, self.overlap_s)
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
        drawn, pace = rng.random(2).tolist()
        level = drawn
        waited, seen = _waited(seen, self.overlap_s), _from_turn(seen, self.overlap_s)
        held = seen.cached_tokens
        if self.line is None and seen.ttft_s is None:  # a server that was stopped has not said it
            held = self.cached_tokens(seen.prompt_tokens, 0.5)
        usual_s = self._usual_s(seen.prompt_tokens, held)
        ttft = self._of_length(seen.prompt_tokens)
        # Of one that waited, it is not known to some hundredths of a second when its turn came.
        if seen.ttft_s is not None and not seen.cold and not waited:
            level = _level(ttft, seen.ttft_s / usual_s, drawn)
        elif seen.over_s is not None and not waited:
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
        line = self.line or self.by_length
        return 1.0 if line is None else line.ttft_s(max(prompt_tokens - cached_tokens, 1))

    def _of_length(self, prompt_tokens: int) -> Empirical:
        for up_to, ttft in self.bands:
            if prompt_tokens <= up_to:
                return ttft
        return self.bands[-1][1] if self.bands else self.ratio or self.ttft

    def tpot_s(self, seen: Seen, usual_s: float, level: float) -> float:
        """Return the time per token of an answer, as measured, or else the quantile of that level, s.

        `usual_s` is taken where the recording shows none.
        """
        if seen.tpot_s:
            return seen.tpot_s
        return usual_s if self.tpot is None else float(self.tpot.quantile(level))


def _parted(seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen]]:
    """Return the first tokens, and those that are only known to be later; not of a model that had to be loaded."""
    warm = [one for one in seen if not one.cold]
    return [one for one in warm if one.ttft_s is not None], [one for one in warm if one.over_s is not None]


def _cached(warm: Sequence[Seen]) -> Empirical | None:
    return Empirical.from_samples([float(one.cached_tokens) for one in warm]) if warm else None


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
    """Return a server's TTFT by the tokens it reads; None where too few tell, or where it is 0 or does not grow.

    A time that is only known to be longer counts as what it is likely to have been (Buckley and James 1979). Without
    these, the line would be that of the answers in which the server was quick.
    """
    warm, lost = _parted(seen)
    tokens = np.array([_read(one) for one in warm], dtype=np.float64)
    if len(warm) < ENOUGH_STARTS or np.ptp(tokens) <= 0:
        return None
    times_s = np.array([one.ttft_s for one in warm])
    line = fit_line(tokens, times_s, non_negative=True)
    if lost:
        tokens = np.concatenate([tokens, [_read(one) for one in lost]])
        for _ in range(_ROUNDS):
            if line.ttft_s(1) <= 0.0:
                return None
            likely_s = _Usual(line).likely_s(warm, lost)
            line = fit_line(tokens, np.concatenate([times_s, likely_s]), non_negative=True)
    return line if line.k_s_per_token > 0 else None


def came_behind(seen: Sequence[Seen]) -> list[Seen]:
    """Return the first tokens of those whose endpoint had another prompt to read first."""
    return [one for one in _parted(seen)[0] if one.behind_s > 0.0]


def _overlap_s(seen: Sequence[Seen]) -> float | None:
    """Return `EndpointTimes.overlap_s`.

    A server reads in turn where its times are all reading (`ALL_READING`), and first tokens that came behind others are
    nearer to the line from their turn on than from their start, if there are such.
    """
    at_once = [one for one in seen if one.behind_s <= 0.0]
    line = _by_length(at_once)
    if line is None:
        at_once = [_from_turn(one, 0.0) for one in seen]
        line = _by_length(at_once)
    plain = _by_length(_parted(at_once)[0])
    if line is None or plain is None or plain.r2 < ALL_READING:
        return None
    behind = came_behind(seen)
    if not behind:
        return line.c_s

    def error_s(some: Sequence[Seen]) -> float:
        return float(np.median([abs((one.ttft_s or 0.0) - line.ttft_s(_read(one))) for one in some]))

    in_turn = [_from_turn(one, line.c_s) for one in behind]
    return line.c_s if error_s(in_turn) < error_s(behind) else None


def _waited(seen: Seen, overlap_s: float | None) -> bool:
    return overlap_s is not None and seen.behind_s > overlap_s


def _from_turn(seen: Seen, overlap_s: float | None) -> Seen:
    """Return the times from the turn of the prompt, see `Station.overlap_s`."""
    wait_s = 0.0 if overlap_s is None else seen.behind_s - overlap_s
    if wait_s <= 0.0 or (seen.ttft_s is not None and seen.ttft_s <= wait_s):  # it did not wait
        return seen
    over_s = None if seen.over_s is None else seen.over_s - wait_s
    return replace(
        seen,
        ttft_s=None if seen.ttft_s is None else seen.ttft_s - wait_s,
        over_s=over_s if over_s is not None and over_s > 0.0 else None,
        behind_s=0.0,
    )


def _read(seen: Seen) -> int:
    """Return how much of the prompt was not in the cache."""
    return max(seen.prompt_tokens - seen.cached_tokens, 1)


def _with_usual_cache(seen: Sequence[Seen]) -> list[Seen]:
    """Return the same of a server, which tells only with an answer what it had in its cache: else as much as usual."""
    kept = [one.cached_tokens for one in seen if one.ttft_s is not None]
    usual = round(float(np.median(kept))) if kept else 0
    return [
        one
        if one.ttft_s is not None
        else replace(one, cached_tokens=min(usual, max(one.prompt_tokens - 1, 0)))
        for one in seen
    ]


@dataclass(frozen=True, slots=True)
class _Usual:
    """Distributions of times, or of their ratio to a line by what is not in the cache."""

    line: LinearFit | None

    def estimated(self, warm: Sequence[Seen], lost: Sequence[Seen]) -> Empirical:
        """Return the distribution; `lost`: only known to be longer."""
        return _estimated(
            [(one.ttft_s or 0.0) / self.of(one) for one in warm],
            [(one.over_s or 0.0) / self.of(one) for one in lost],
        )

    def of_all(self, ratio: Empirical, seen: Sequence[Seen]) -> Empirical:
        """Return the distribution over all these prompts, s."""
        if self.line is None:
            return ratio
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        usual_s = np.array([self.of(one) for one in seen])
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

    def of(self, one: Seen) -> float:
        """Return what the line says of an answer, s; 1 where there is none."""
        return 1.0 if self.line is None else self.line.ttft_s(_read(one))

    def likely_s(self, warm: Sequence[Seen], lost: Sequence[Seen]) -> Floats:
        """Return the mean of the times that each of `lost` may have taken, s."""
        ratio, usual_s = self.estimated(warm, lost), np.array([self.of(one) for one in lost])
        over_s = np.array([one.over_s for one in lost], dtype=np.float64)
        below = np.asarray(ratio.cdf(over_s / usual_s))[:, None]
        levels = below + (1.0 - below) * ((np.arange(_BEYOND) + 0.5) / _BEYOND)
        beyond_s = np.maximum(ratio.quantile(levels) * usual_s[:, None], over_s[:, None])
        likely_s: Floats = beyond_s.mean(axis=1)
        return likely_s


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
