"""A fleet in its steady state, in a short run.

A short run of whole answers would be biased: those that begin and end in it are mostly those of fast servers (an A6000
takes three times as long for an answer as an H100). So two things are done.

Of the first answers of a run only a random part is asked for, as if the rest were written already: what is left is then
spread as it is after a long time, so that fast and slow servers end answers in their proportion at once.

The figures are those of a window of time, not of answers: TPOT is all time that answers spent behind their first token,
over all tokens that they got in it, also those of answers that are still under way. TTFT is the mean over the first
tokens in the window. Requests per second follow from both and the length of answers by Little's law.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any, Final, NamedTuple

from disco.errors import ConfigurationError
from disco.replay import DraftedRequest
from papers.dsd.calibrated import DataSet
from papers.dsd.paper_fleets import paper_fleet
from papers.dsd.printed_values import Cell
from papers.fleet.fleet_job import Answer
from papers.fleet.fleet_simulator import Simulation, requests_of
from papers.fleet.fleet_topology import expand

__all__ = ["SPAN", "Point", "Span", "steady_point"]


class Span(NamedTuple):
    """Length of a run, in units of the usual time of an answer: before the window, and the window."""

    warm_up: float
    window: float


SPAN: Final = Span(2.5, 1.25)
"""Of the calibration, and of all figures but those of routing."""
_TIMES: Final = 20
"""So often all requests are at hand for a run: more than any takes."""


class Point(NamedTuple):
    """A simulated fleet, mean over runs.

    Attributes:
        cell: its figures, in the paper's size.
        alone: share of tokens that were written without a draft.
        window: mean of rounds with a draft.
        busy: share of the servers' time in passes.
    """

    cell: Cell
    alone: float
    window: float
    busy: float


def steady_point(
    data: DataSet, span: Span, *, drafters: int, rtt_ms: float, seed: int, share: float = 1.0, **changed: Any
) -> Point:
    """Return the figures of a fleet.

    Args:
        data: requests, and what was calibrated for them.
        span: of the run.
        drafters: of the paper's whole fleet.
        rtt_ms: round trip.
        seed: of requests, routing and what is under way.
        share: of each answer's tokens that is simulated; requests/s are those of whole answers.
        changed: see `paper_fleet`.

    Raises:
        ConfigurationError: the answers are too short for a figure.
    """
    part = replace(data, output_tokens=share * data.output_tokens)
    begins_s = span.warm_up * part.usual_ms / 1e3
    ends_s = begins_s + span.window * part.usual_ms / 1e3
    scenario = paper_fleet(
        part, drafters=drafters, rtt_ms=rtt_ms, until_ms=1e3 * ends_s, seed=seed, **changed
    )
    topology = expand(scenario)
    requests = requests_of(scenario)
    under_way = _under_way(requests[: len(topology.drafters)], Random(f"{seed} under way"))
    # The loop begins with its list again at the end, and what is under way must not come twice.
    whole = requests[len(under_way) :] + requests * _TIMES
    simulation = Simulation(scenario, topology, under_way + whole)
    before: dict[int, tuple[int, int]] = {}
    busy_s: list[float] = []

    def note(_now: float, _nothing: object) -> None:
        before.update({answer.number: (answer.length, len(answer.windows)) for answer in simulation.begun})
        busy_s.extend(target.busy_s for target in simulation.targets)

    simulation.schedule(begins_s, note, None)
    simulation.run()
    tokens, time_s = 0, 0.0
    windows: list[int] = []
    firsts: list[float] = []
    for answer in simulation.begun:
        length, rounds = before.get(answer.number, (0, 0))
        tokens += max(answer.length - 1, 0) - max(length - 1, 0)
        time_s += _decoding_s(answer, begins_s, ends_s)
        windows += answer.windows[rounds:]
        if begins_s <= answer.first_s <= ends_s:
            firsts.append(answer.first_s - answer.arrived_s)
    if not firsts or not tokens:
        raise ConfigurationError(f"no answer of {data.name} begins in so short a run: choose a larger share")
    drafted = [window for window in windows if window]
    ttft_ms = 1e3 * fmean(firsts) + data.admission_ms
    tpot_ms = 1e3 * time_s / tokens
    cell = Cell(1e3 * drafters / (ttft_ms + data.output_tokens * tpot_ms), ttft_ms, tpot_ms)
    spent = [
        (target.busy_s - busy) / (ends_s - begins_s)
        for target, busy in zip(simulation.targets, busy_s, strict=True)
    ]
    return Point(
        cell,
        alone=(len(windows) - len(drafted)) / tokens,
        window=fmean(drafted or [0]),
        busy=min(1.0, fmean(spent)),
    )


def _under_way(requests: list[DraftedRequest], rng: Random) -> list[DraftedRequest]:
    """Return the requests as they are in the middle: each with a random part of its answer left.

    Their prompts were read before: all at once they would fill slow servers for longer than the run.
    """
    made = []
    for one in requests:
        written = int(rng.random() * one.output_tokens)
        left = one.output_tokens - written
        made.append(replace(one, prompt_tokens=1, output_tokens=left, accepts=one.accepts[written:]))
    return made


def _decoding_s(answer: Answer, begins_s: float, ends_s: float) -> float:
    """Return how long an answer was between its first and its last token, within the window."""
    if answer.first_s < 0:
        return 0.0
    last_s = answer.done_s if answer.done_s >= 0 else ends_s
    return max(0.0, min(last_s, ends_s) - max(answer.first_s, begins_s))
