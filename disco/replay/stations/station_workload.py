"""A trace with all draws made for any number of stations: columns of shape (n, k), drawn once for all plans.

Each station has its own random streams, which depend only on the seed and on the station's name. So every plan gets the
same draws (common random numbers), and adding or reordering stations does not change the draws of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from disco.errors import ConfigurationError, nearest
from disco.profiles import Empirical, LinearFit
from disco.replay.stations.station import Station, Timing, check_stations, key_of
from disco.replay.workload.trace import Gaps, Trace

__all__ = ["KnownTimes", "StationWorkload", "first_token_times", "resolve_stations", "token_times"]

# Numbers of a station's random streams; together with the seed and the station's key they seed a generator.
_TTFT_STREAM, _TPOT_STREAM, _FAULT_STREAM, _AGAIN_STREAM = 21, 22, 13, 11

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """Values of one station that are known before the draws. Columns of shape (n,); None: nothing is known.

    Attributes:
        ttft_s, tpot_s: NaN where unknown.
        answer_tokens: lengths of the station's answers, if its model writes more or less than the trace says.
        cached_tokens: tokens of the prompt that the station need not read at its first attempt.
        prompt_tokens: lengths of the prompts as the station counts them, if not as the trace says.
        told_tokens: what the station is charged for a prompt if it is stopped before it reports its usage, and its TTFT
            is no line: a client's estimate.
        gaps: times between tokens; they take precedence over `tpot_s`.
        logp: for each request, the log probability (natural) of each token of the station's answer, for a judge; of
            tokens behind the last one nothing is known, as where a server gives none.
        label_scores: for each request with classes, the log probability (natural) of each class as the answer.
    """

    ttft_s: ArrayLike | None = None
    tpot_s: ArrayLike | None = None
    answer_tokens: ArrayLike | None = None
    cached_tokens: ArrayLike | None = None
    prompt_tokens: ArrayLike | None = None
    told_tokens: ArrayLike | None = None
    gaps: Gaps | None = None
    logp: Sequence[Sequence[float]] | None = None
    label_scores: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True, slots=True)
class StationWorkload:
    """Requests in order of arrival, and what each of k stations would do for each of them.

    Attributes:
        names: names of the k stations, in the order of the columns.
        arrival_s: times of arrival, s; shape (n,).
        prompt_tokens: shape (n,).
        answer_tokens: after the limit, at least 1; shape (n,) if all stations have the same lengths, or (n, k).
        ttft_s: of a first attempt with the model loaded and the station idle; shape (n, k).
        tpot_s: per token after the first; shape (n, k).
        faulty: whether the station's fault hits its first attempt; shape (n, k).
        again: by station, the seed of draws after first attempts (a migration's target, a second try); stations with
            the same seed share one stream per request.
        max_tokens: limit of every answer; None: no limit.
        limits: by request, the limit of its answer; empty: `max_tokens` is.
        gaps: times between tokens by station name, where they are known.
        cached_tokens: tokens of the prompt that a station need not read at its first attempt; shape (n, k); None:
            none.
        counted_tokens: lengths of the prompts as each station counts them; shape (n, k); None: `prompt_tokens`, by
            which plans are made.
        told_tokens: what is charged for a prompt where no usage was reported, see `KnownTimes`; shape (n, k); None: all
            of it.
        logp: log probabilities by station name, where they are known; see `KnownTimes`.
        classes: the texts of which each answer is one; empty: answers are free.
        label_scores: by station name, with classes for all stations; see `KnownTimes`.
        tasks: what kind of request each one is, for the histories of a judge; empty: all are alike.
    """

    names: tuple[str, ...]
    arrival_s: Floats
    prompt_tokens: Ints
    answer_tokens: Ints
    ttft_s: Floats
    tpot_s: Floats
    faulty: Bools
    again: tuple[tuple[int, ...], ...]
    max_tokens: int | None = None
    gaps: Mapping[str, Gaps] = field(default_factory=dict)
    cached_tokens: Ints | None = None
    counted_tokens: Ints | None = None
    told_tokens: Ints | None = None
    logp: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    label_scores: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    tasks: Sequence[str] = ()
    limits: Sequence[int | None] = ()

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def answers_of(self, column: int) -> Ints:
        """Return the lengths of the answers of the station in this `column`; shape (n,)."""
        return self.answer_tokens if self.answer_tokens.ndim == 1 else self.answer_tokens[:, column]

    def limit_of(self, row: int) -> int | None:
        """Return the limit of the answer to the request of this `row`, tokens; None: it has none."""
        return self.limits[row] if self.limits else self.max_tokens

    def take(self, start: int, stop: int) -> StationWorkload:
        """Return requests `start` to `stop`. Draws after first attempts differ: they depend on the row number."""
        rows = slice(start, min(stop, len(self)))
        columns: dict[str, Any] = {name: getattr(self, name) for name in (*_COLUMNS, *_OPTIONAL)}
        for name, column in columns.items():
            columns[name] = None if column is None else column[rows]
        return replace(
            self,
            **columns,
            gaps={name: gaps.take(rows.start, rows.stop) for name, gaps in self.gaps.items()},
            logp={name: logp[rows] for name, logp in self.logp.items()},
            label_scores={name: scores[rows] for name, scores in self.label_scores.items()},
            tasks=self.tasks[rows],
            limits=self.limits[rows],
        )

    def check(self) -> None:
        """Check that the columns match each other.

        Raises:
            ConfigurationError: they do not; the message names the column.
        """
        n, k = len(self), len(self.names)
        if n == 0:
            raise ConfigurationError("a workload needs at least one request")
        if len(self.again) != k:
            raise ConfigurationError(f"{len(self.again)} streams do not fit {k} stations")
        wide, narrow = ("ttft_s", "tpot_s", "faulty", *_OPTIONAL), ("arrival_s", "prompt_tokens")
        for column in (*narrow, *wide, "answer_tokens"):
            values = getattr(self, column)
            if values is None:
                continue
            shapes = {"answer_tokens": ((n,), (n, k))}.get(column, ((n, k),) if column in wide else ((n,),))
            if values.shape not in shapes:
                raise ConfigurationError(
                    f"column {column} has shape {values.shape} for {n} requests and {k} stations"
                )
            if not (np.isfinite(values) & (values >= 0)).all():
                raise ConfigurationError(f"column {column} holds a value that is negative or not finite")
        if self.answer_tokens.min() < 1:
            raise ConfigurationError("column answer_tokens holds an answer without a token")
        if (np.diff(self.arrival_s) < 0).any():
            raise ConfigurationError("column arrival_s is not in order of arrival")
        self._check_scores()

    def _check_scores(self) -> None:
        """Check that what a judge reads belongs to these requests and classes."""
        n = len(self)
        lengths = {f"logp of {name!r}": len(logp) for name, logp in self.logp.items()}
        lengths |= {f"label_scores of {name!r}": len(scores) for name, scores in self.label_scores.items()}
        lengths |= {"tasks": len(self.tasks) or n, "limits": len(self.limits) or n}
        for name, length in lengths.items():
            if length != n:
                raise ConfigurationError(f"{name} has {length} entries for {n} requests")
        for name, logp in self.logp.items():
            if any(not -math.inf < value <= 0.0 for row in logp for value in row):
                raise ConfigurationError(
                    f"logp of {name!r} holds a log probability that is above 0 or not finite"
                )
        if not self.classes:
            return
        if len(self.classes) < 2:
            raise ConfigurationError("classes needs at least two texts of which an answer is one")
        for name in self.names:
            scores = self.label_scores.get(name, ())
            if not scores or any(
                len(row) != len(self.classes) or not all(map(math.isfinite, row)) for row in scores
            ):
                raise ConfigurationError(
                    f"label_scores of {name!r} must have a finite number for each of the {len(self.classes)} classes "
                    "and each request"
                )


_COLUMNS = ("arrival_s", "prompt_tokens", "answer_tokens", "ttft_s", "tpot_s", "faulty")
_OPTIONAL = ("cached_tokens", "counted_tokens", "told_tokens")


def resolve_stations(
    trace: Trace,
    stations: Sequence[Station],
    *,
    seed: int,
    max_tokens: int | None = None,
    known: Mapping[str, KnownTimes] | None = None,
    classes: Sequence[str] = (),
    tasks: Sequence[str] = (),
) -> StationWorkload:
    """Draw what a trace and `known` leave open.

    From the trace, arrivals, prompts and answer lengths are used. Its times are those of one device and one server; if
    they are the times of a station, pass them in `known`.

    Args:
        trace: all of it is resolved.
        stations: their names must differ.
        seed: seed of all draws; at least 0.
        max_tokens: limit of every answer; None: no limit.
        known: known values by station name.
        classes: see `StationWorkload`.
        tasks: see `StationWorkload`.

    Raises:
        ConfigurationError: two stations have the same name, `known` names an unknown station or has a column of a
            wrong shape.
    """
    stations = check_stations(stations)
    names = tuple(station.name for station in stations)
    known = known or {}
    for name in known:
        if name not in names:
            raise ConfigurationError(f"no station is called {name!r}. {nearest(name, names)}")
    n = len(trace)
    columns = [_Column(station, known.get(station.name, KnownTimes()), trace, seed) for station in stations]
    own = [column.tokens("answer_tokens") for column in columns]
    shared = all(tokens is None for tokens in own)
    lengths = (
        trace.output_tokens
        if shared
        else np.stack([trace.output_tokens if t is None else t for t in own], axis=1)
    )
    answer_tokens = np.maximum(lengths, 1)
    if max_tokens is not None:
        answer_tokens = np.minimum(answer_tokens, max_tokens)
    counted = _wide([column.tokens("prompt_tokens") for column in columns], trace.prompt_tokens)
    lengths_read = trace.prompt_tokens[:, None] if counted is None else counted
    cached = _wide([column.tokens("cached_tokens") for column in columns], np.zeros(n, dtype=np.int64))
    told = _wide([column.tokens("told_tokens") for column in columns], trace.prompt_tokens)
    workload = StationWorkload(
        names=names,
        arrival_s=trace.arrival_s,
        prompt_tokens=trace.prompt_tokens,
        answer_tokens=answer_tokens,
        ttft_s=np.stack([column.ttft_s() for column in columns], axis=1),
        tpot_s=np.stack([column.tpot_s() for column in columns], axis=1),
        faulty=np.stack([column.faulty() for column in columns], axis=1),
        again=tuple((seed, _AGAIN_STREAM, key_of(name)) for name in names),
        max_tokens=max_tokens,
        gaps={name: times.gaps for name, times in known.items() if times.gaps is not None},
        logp={name: times.logp for name, times in known.items() if times.logp is not None},
        classes=tuple(classes),
        label_scores={
            name: times.label_scores for name, times in known.items() if times.label_scores is not None
        },
        tasks=tasks,
        cached_tokens=None if cached is None else np.minimum(cached, lengths_read),
        counted_tokens=counted,
        told_tokens=told,
    )
    workload.check()
    return workload


def _wide(columns: Sequence[Ints | None], usual: Ints) -> Ints | None:
    """Return the stations' columns side by side, `usual` where a station has none; None where none has."""
    if all(column is None for column in columns):
        return None
    return np.stack([usual if column is None else column for column in columns], axis=1)


def first_token_times(
    ttft: Timing,
    prompt_tokens: Ints,
    rng: np.random.Generator,
    known_s: Floats,
    over_s: Floats | None = None,
) -> Floats:
    """Return one side's times to first token, s. Columns of shape (n,).

    Args:
        ttft: of the side.
        prompt_tokens: a line needs no draw.
        rng: gives one number for each request, also where its time is known.
        known_s: times that are kept; NaN: unknown.
        over_s: what an unknown time is longer than, because the side was stopped then; NaN: nothing is known; None:
            nothing of any.
    """
    if isinstance(ttft, LinearFit):
        drawn_s = np.asarray(ttft.k_s_per_token * prompt_tokens + ttft.c_s, dtype=np.float64)
    else:
        levels = rng.random(prompt_tokens.size)
        if over_s is not None:
            below = np.where(np.isnan(over_s), 0.0, ttft.cdf(over_s))
            levels = np.minimum(below + (1.0 - below) * levels, 1.0)
        drawn_s = ttft.quantile(levels)
    # If no slower first token was ever seen, the bound itself is the best estimate.
    return _known_or(known_s, drawn_s if over_s is None else np.fmax(drawn_s, over_s))


def token_times(
    tpot: Empirical | None, decode_tps: float, rng: np.random.Generator, known_s: Floats
) -> Floats:
    """Return one side's times per token after the first, s; arguments as in `first_token_times` and `Station`."""
    n = known_s.size
    return _known_or(known_s, np.full(n, 1.0 / decode_tps) if tpot is None else tpot.sample(rng, n))


def _known_or(known: Floats, otherwise: Floats) -> Floats:
    unknown = np.isnan(known)
    return np.where(unknown, otherwise, known) if unknown.any() else known


@dataclass(frozen=True, slots=True)
class _Column:
    """One station's part of every column."""

    station: Station
    known: KnownTimes
    trace: Trace
    seed: int

    def ttft_s(self) -> Floats:
        known, tokens = self._times("ttft_s", self.known.ttft_s), self.trace.prompt_tokens
        if self.station.split is not None:
            return _known_or(known, np.array([self.station.split.ttft_s(n) for n in tokens.tolist()]))
        return first_token_times(self.station.ttft, tokens, self._rng(_TTFT_STREAM), known)

    def tpot_s(self) -> Floats:
        known, station = self._times("tpot_s", self.known.tpot_s), self.station
        return token_times(station.tpot, station.decode_tps, self._rng(_TPOT_STREAM), known)

    def faulty(self) -> Bools:
        fault = self.station.fault
        if fault is None:
            return np.zeros(len(self.trace), dtype=np.bool_)
        return self._rng(_FAULT_STREAM).random(len(self.trace)) < fault.probability

    def _rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, stream, key_of(self.station.name)])

    def _times(self, column: str, known: ArrayLike | None) -> Floats:
        """Return what is known of a column, s; NaN: nothing is."""
        if known is None:
            return np.full(len(self.trace), np.nan)
        values = np.asarray(known, dtype=np.float64)
        self._check_shape(column, values.shape)
        return values

    def tokens(self, column: str) -> Ints | None:
        known = getattr(self.known, column)
        if known is None:
            return None
        values = np.asarray(known, dtype=np.int64)
        self._check_shape(column, values.shape)
        return values

    def _check_shape(self, column: str, shape: tuple[int, ...]) -> None:
        n = len(self.trace)
        if shape != (n,):
            raise ConfigurationError(
                f"station {self.station.name!r}: column {column} has shape {shape} for {n} requests"
            )
