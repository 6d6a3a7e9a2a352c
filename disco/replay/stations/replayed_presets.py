"""What recorded answers come to under another preset, which the event engine follows as a live client does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from disco.dispatch.presets import Preset
from disco.errors import ConfigurationError
from disco.judging import FileStore, HistoryStore
from disco.rates import Rates
from disco.replay.pairs.simulated_pair import Pair
from disco.replay.stations.as_live import AsLive
from disco.replay.stations.recorded_stations import Recording
from disco.replay.stations.station import Station
from disco.replay.stations.station_outcome import Came, came_of
from disco.replay.stations.station_simulator import simulate_stations
from disco.replay.verdicts import read_histories
from disco.session.records.route_record import RouteRecord

__all__ = ["PresetFigures", "as_it_was", "kept_histories", "play", "replay_preset", "with_drafts"]


@dataclass(frozen=True, slots=True)
class PresetFigures:
    """The figures of one preset; means over answers, and over seeds.

    Attributes:
        preset: its name; "as it was" for what was recorded.
        answers: how many were answered.
        unanswered: share of the requests that no endpoint answered: none was able, or a budget was spent.
        ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s: to the first token that the reader got, s.
        bill_usd: paid to servers, per request.
        policy_cost: as policies count it, USD per request.
        first: share of answers that each endpoint began.
        moved: share of answers that another endpoint went on with.
        rose: share of answers that a higher tier gave in place of a lower one.
        late_tokens: tokens after the reader's deadline, per answer.
    """

    preset: str
    answers: int
    unanswered: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    bill_usd: float
    policy_cost: float
    first: Mapping[str, float]
    moved: float
    rose: float
    late_tokens: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and names, ready for JSON; an unknown number (NaN) is None."""
        row = asdict(self)
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in row.items()
        }


def as_it_was(recording: Recording) -> PresetFigures:
    """Return the figures of what was recorded."""
    return _figures("as it was", [one.came for one in recording.answers], tuple(recording.candidates))


def play(
    recording: Recording,
    preset: Preset,
    *,
    seed: int = 0,
    max_tokens: int | None = None,
    pair: Pair | None = None,
    histories: HistoryStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Came | None]:
    """Replay the requests of a recording once; return what each came to, None where no endpoint could answer.

    See `replay_preset`.
    """
    stations = recording.stations(preset)
    if pair is not None:
        stations = with_drafts(stations, pair, preset)
    workload = recording.workload(stations, seed=seed, max_tokens=max_tokens)
    came: list[Came | None] = [None] * len(workload)

    def note(row: int, record: RouteRecord) -> None:
        came[row] = came_of(record)

    as_live = AsLive(preset, histories, seed, recording.answers[0].created_s)
    simulate_stations(workload, stations, as_live, on_record=note, progress=progress)
    return came


def replay_preset(
    recording: Recording,
    preset: Preset,
    *,
    seeds: int = 1,
    max_tokens: int | None = None,
    pair: Pair | None = None,
    histories: HistoryStore | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PresetFigures:
    """Replay the requests of a recording under a preset, and return its figures.

    Args:
        recording: the requests, and what is known of the endpoints.
        preset: followed as by a live client; see `AsLive`.
        seeds: how often times that are not known are drawn.
        max_tokens: a limit of every answer besides its own; None: none.
        pair: the cheapest server verifies what the device drafts; see `with_drafts`.
        histories: the scores before the recording; None: none.
        progress: called with the number of complete answers and the total, of each seed.

    Raises:
        ConfigurationError: the preset cannot be replayed, or an answer is too long.
    """
    found = []
    for seed in range(seeds):
        came = play(
            recording,
            preset,
            seed=seed,
            max_tokens=max_tokens,
            pair=pair,
            histories=histories,
            progress=progress,
        )
        found.append(_figures(preset.name, came, tuple(recording.times)))
    return found[0] if seeds == 1 else _mean(found)


def _figures(preset: str, came: Sequence[Came | None], names: Sequence[str]) -> PresetFigures:
    """Return the figures of these requests; `names`: the endpoints."""
    ended = [one for one in came if one is not None]
    times_s = np.array([one.ttft_s for one in ended if not math.isnan(one.ttft_s)] or [math.nan])
    p50_s, p90_s, p99_s = np.quantile(times_s, (0.5, 0.9, 0.99)).tolist()
    winners = [one.winner for one in ended if one.winner]
    answers = len(winners)
    return PresetFigures(
        preset=preset,
        answers=answers,
        unanswered=1.0 - answers / len(came),
        ttft_mean_s=float(times_s.mean()),
        ttft_p50_s=p50_s,
        ttft_p90_s=p90_s,
        ttft_p99_s=p99_s,
        bill_usd=math.fsum(one.bill_usd for one in ended) / len(came),
        policy_cost=math.fsum(one.policy_cost for one in ended) / len(came),
        first={name: winners.count(name) / max(answers, 1) for name in names},
        moved=sum(one.moves > 0 for one in ended) / max(answers, 1),
        rose=sum(one.rose for one in ended) / max(answers, 1),
        late_tokens=math.fsum(one.late_tokens for one in ended) / max(answers, 1),
    )


def kept_histories(path: Path) -> HistoryStore:
    """Return the histories of scores that a client kept in a file, as they are now.

    Raises:
        ConfigurationError: there is no such file, or it holds none.
    """
    read_histories(path)  # a client begins without them then; who names a file here means it
    return FileStore(path)


def with_drafts(stations: Sequence[Station], pair: Pair, preset: Preset) -> tuple[Station, ...]:
    """Return the stations where the cheapest server verifies what the model on this machine drafts.

    Args:
        stations: not changed.
        pair: its times; those of the drafter may be left to the device, and the time per token of the server alone is
            the pair's.
        preset: its [speculate] counts where it has one, else that of the pair.

    Raises:
        ConfigurationError: there is no server, or no model that drafts.
    """
    servers = [s for s in stations if s.reach != "device" and not s.standby]
    device = next((s for s in stations if s.reach == "device"), None)
    if not servers or device is None:
        lacks = "server that could verify" if not servers else "model on this machine that could draft"
        raise ConfigurationError(f"--pair: the recording has times of no {lacks}")
    server = min(servers, key=lambda s: (s.rates.cost_out, s.rates.cost_in))
    if "speculate" in preset.model_fields_set:
        rules = preset.speculate
        pair = replace(
            pair,
            window=rules.window,
            max_window=rules.max_window,
            parallel=rules.parallel,
            min_gain=rules.min_gain,
            drafter="n-gram" if rules.drafter == "ngram" else "device",
        )
    if pair.drafter == "device":
        line = device.candidate()
        pair = replace(
            pair,
            drafter=device.name,
            rates=device.rates,
            read_tps=line.prefill_tps if pair.read_tps is None else pair.read_tps,
            draft_s=1.0 / device.decode_tps if pair.draft_s is None else pair.draft_s,
        )
    else:
        pair = replace(pair, rates=Rates(), draft_s=pair.draft_s or 0.0)
    verifies = replace(
        server,
        decode_tps=1.0 / pair.alone_s,
        tpot=None,
        pair=pair,
        parks=False,
        pauses=False,
        follows=False,
    )
    return tuple(verifies if s is server else s for s in stations)


def _mean(found: Sequence[PresetFigures]) -> PresetFigures:
    """Return the mean of each figure over seeds."""
    means: dict[str, Any] = {}
    for name in PresetFigures.__slots__:
        values = [getattr(one, name) for one in found]
        if name == "first":
            means[name] = {key: sum(v[key] for v in values) / len(values) for key in values[0]}
        elif name == "answers":
            means[name] = round(sum(values) / len(values))
        else:
            means[name] = values[0] if name == "preset" else sum(values) / len(values)
    return PresetFigures(**means)
