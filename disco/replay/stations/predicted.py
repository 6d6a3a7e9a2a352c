"""A recording replayed as it was made, beside what was lived: how far replay can be trusted, with intervals.

Preset, endpoints, prices and arrivals are those of the recording; dispatch and session are the live ones, and answers
meet in the queues of the endpoints on this machine, and of servers that read prompts in turn. Fitted on another
recording, or on an earlier part, nothing that was measured in an answer is copied: all its times are drawn from what
the other one shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.presets import Preset
from disco.judging import HistoryStore
from disco.replay.metrics.intervals import Figure, percentile_interval
from disco.replay.metrics.plain_numbers import plain
from disco.replay.pairs.simulated_pair import Pair
from disco.replay.stations.recorded_stations import Recording
from disco.replay.stations.replayed_presets import play
from disco.replay.stations.station_outcome import Came

__all__ = ["Beside", "Prediction", "predict"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 1_000
TOGETHER = 10
"""Answers in a row that are drawn together: those that meet at an endpoint are not independent."""

_FIT_STREAM, _BOOTSTRAP_STREAM = 51, 52  # numbers of the draws; with the seed


@dataclass(frozen=True, slots=True)
class Beside:
    """One figure as it was lived and as it is predicted.

    Attributes:
        name: with its unit.
        lived, predicted: the figure.
        error: predicted over lived less 1, or, as `of` says, predicted less lived.
        of: whether the error is a share of what was lived, or in the figure's own unit.
    """

    name: str
    lived: float
    predicted: float
    error: Figure
    of: Literal["lived", "unit"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answers that one preset planned.

    Attributes:
        preset: its name.
        answers: how many.
        figures: in the order in which they are shown.
    """

    preset: str
    answers: int
    figures: tuple[Beside, ...]

    def figure(self, name: str) -> Beside:
        """Return the figure of that name."""
        return next(one for one in self.figures if one.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and names, ready for JSON; an unknown number (NaN) is None."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def predict(
    recording: Recording,
    preset: Preset,
    *,
    fitted_on: Recording | None = None,
    seeds: int = 10,
    pair: Pair | None = None,
    histories: HistoryStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Prediction:
    """Replay the answers of a recording that its preset planned, and compare them with what was lived.

    Args:
        recording: answers of one preset (`Recording.of_preset`).
        preset: the one that they were recorded under.
        fitted_on: all times are drawn from this one, see `Recording.fitted_on`. None: a time that was measured in an
            answer is replayed in it, and others are drawn.
        seeds: how often times that are not known are drawn.
        pair: see `replay_preset`.
        histories: the scores before the recording; None: none.
        progress: called with the number of complete answers and the total, of each seed.

    Raises:
        ConfigurationError: the preset cannot be replayed, an answer is too long, or nothing is known of an endpoint.
    """
    played = []
    for seed in range(seeds):
        known = recording
        if fitted_on is not None:
            rng = np.random.default_rng([seed, _FIT_STREAM])
            known = recording.fitted_on(fitted_on, rng)
        played.append(
            play(known, preset, seed=seed, pair=pair, histories=histories, progress=progress),
        )
    lived = _columns([[one.came for one in recording.answers]], recording)
    predicted = _columns(played, recording)
    resampled = _resampled(len(recording.answers), seeds)
    found = [
        _beside(name, of, figure, lived[column], predicted[column], resampled)
        for name, column, of, figure in _figures(recording)
    ]
    return Prediction(preset.name, len(recording.answers), tuple(found))


FigureOf = Callable[[Floats], float]
Named = tuple[str, str, Literal["lived", "unit"], FigureOf]


def _figures(recording: Recording) -> list[Named]:
    """Return (name, column, what its error is a share of, how it is computed) of each figure."""
    return [
        ("TTFT P50, s", "ttft_s", "lived", lambda values: float(np.nanquantile(values, 0.5))),
        ("TTFT P90, s", "ttft_s", "lived", lambda values: float(np.nanquantile(values, 0.9))),
        ("TTFT P99, s", "ttft_s", "lived", lambda values: float(np.nanquantile(values, 0.99))),
        ("to servers, USD/1000", "bill_usd", "lived", lambda values: 1e3 * float(np.mean(values))),
        ("cost, USD/1000", "policy_cost", "lived", lambda values: 1e3 * float(np.mean(values))),
        ("tokens read", "read_tokens", "lived", _mean),
        ("tokens written", "written_tokens", "lived", _mean),
        ("answer's tokens", "answer_tokens", "lived", _mean),
        *((f"begun by {name}", f"begun by {name}", "unit", _mean) for name in recording.candidates),
        ("moved", "moved", "unit", _mean),
        ("rose", "rose", "unit", _mean),
        ("late tokens", "late_tokens", "unit", _mean),
        ("unanswered", "unanswered", "unit", _mean),
    ]


def _mean(values: Floats) -> float:
    return float(np.mean(values))


def _columns(played: Sequence[Sequence[Came | None]], recording: Recording) -> Mapping[str, Floats]:
    """Return what came of each answer as columns of shape (draws, answers)."""

    def column(of: Callable[[Came], float]) -> Floats:
        return np.array(
            [[0.0 if one is None else of(one) for one in draw] for draw in played], dtype=np.float64
        )

    columns = {
        one.name: column(lambda came, name=one.name: getattr(came, name))  # type: ignore[misc]
        for one in fields(Came)
        if one.name not in ("winner", "moves", "rose")
    }
    for name in recording.candidates:
        columns[f"begun by {name}"] = column(lambda came, name=name: came.winner == name)  # type: ignore[misc]
    columns["moved"] = column(lambda came: came.moves > 0)
    columns["rose"] = column(lambda came: came.rose)
    columns["unanswered"] = 1.0 - column(lambda came: bool(came.winner))
    columns["ttft_s"] = np.where(columns["unanswered"] > 0, math.nan, columns["ttft_s"])
    return columns


def _resampled(answers: int, draws: int) -> list[tuple[Ints, int]]:
    """Return the rows of each resample, made of stretches of answers, and the number of its draw."""
    rng = np.random.default_rng(_BOOTSTRAP_STREAM)
    stretch = min(TOGETHER, max(1, answers // TOGETHER))
    count = -(-answers // stretch)
    steps = np.arange(stretch)
    return [
        (
            ((rng.integers(0, answers, count)[:, None] + steps) % answers).ravel()[:answers],
            int(rng.integers(0, draws)),
        )
        for _ in range(RESAMPLES)
    ]


def _beside(
    name: str,
    of: Literal["lived", "unit"],
    figure: FigureOf,
    lived: Floats,
    predicted: Floats,
    resampled: Sequence[tuple[Ints, int]],
) -> Beside:
    def error(would: float, was: float) -> float:
        if of == "unit" or would == was:
            return would - was
        return would / was - 1.0 if was else math.nan

    was, would = figure(lived[0]), float(np.mean([figure(draw) for draw in predicted]))
    drawn = [error(figure(predicted[draw, rows]), figure(lived[0, rows])) for rows, draw in resampled]
    known = [one for one in drawn if not math.isnan(one)]  # a resample may have no answer that cost something
    return Beside(name, was, would, percentile_interval(error(would, was), known or [math.nan]), of)
