"""Run of the P/D-Device paper's evaluation: `run_pd`."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any, Final

from disco.errors import ConfigurationError
from disco.replay import Progress, run_all
from papers.pd_device.assumptions import ASSUMED, KEPT, NPU, devices
from papers.pd_device.capacity import SHARES, CapacityRow, capacity_row
from papers.pd_device.length_figures import (
    LengthRow,
    SeamRow,
    SmoothRow,
    length_rows,
    seam_rows,
    smooth_rows,
)
from papers.pd_device.mask_bytes import MaskRow, mask_rows
from papers.pd_device.request_mix import RequestMix, shipped_mix
from papers.pd_device.session_runs import SESSION_ARMS, SessionRow, run_sessions
from papers.pd_device.ttft_runs import (
    LOW_QUANTILE,
    SituationResult,
    TtftArms,
    closed_forms,
    run_situation,
    servers,
)

__all__ = ["LOW_QUANTILES", "PdResult", "run_pd"]

LOW_QUANTILES: Final = (0.0, LOW_QUANTILE, 0.05, 0.1, 0.25, 0.5)
"""Quantiles of the server's TTFT that L is computed for, in the table that compares them."""

_FEWEST: Final = 100


@dataclass(frozen=True, slots=True)
class PdResult:
    """All results from which the tables are made.

    Attributes:
        source: of the requests, with their licence.
        requests: number of requests in each situation.
        arrivals: number of arrivals in the queues.
        lengths: TTFT and L by prompt length.
        smooth: the pace of the display by L.
        seams: what happens at the seam.
        sessions: what the session does without an assist, in virtual time, on fewer requests.
        session_assists: the closed forms of the assist on the same requests.
        situations: each server with each device and refiner, on drawn requests.
        quantiles: one situation for each quantile of `LOW_QUANTILES`, on each real server with the NPU-like device.
        capacity: of the server, by L.
        masks: bytes of masks.
        took_s: duration of the whole run, s.
    """

    source: str
    requests: int
    arrivals: int
    lengths: tuple[LengthRow, ...]
    smooth: tuple[SmoothRow, ...]
    seams: tuple[SeamRow, ...]
    sessions: tuple[SessionRow, ...]
    session_assists: tuple[SituationResult, ...]
    situations: tuple[SituationResult, ...]
    quantiles: tuple[SituationResult, ...]
    capacity: tuple[CapacityRow, ...]
    masks: tuple[MaskRow, ...]
    took_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return {"assumed": [one._asdict() for one in ASSUMED], **asdict(self)}


def run_pd(
    *,
    requests: int = 5_000,
    arrivals: int | None = None,
    sessions: int = 150,
    mix: RequestMix | None = None,
    arms: TtftArms = closed_forms,
    executor: Executor | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> PdResult:
    """Compute all tables.

    Args:
        requests: number of requests in each situation.
        arrivals: number of arrivals in the queues; None: all of the table.
        sessions: number of requests in each run of sessions, at most `requests`.
        mix: where requests are drawn from; None: the shipped table.
        arms: computes the times to first token; see `TtftArms`.
        executor: runs the parts; None: in this process. Every executor gives the same figures.
        progress: called with the number of parts done, and the total.
        seed: of the draws.

    Raises:
        ConfigurationError: a number out of range.
    """
    began_at = time.monotonic()
    if requests < _FEWEST or (arrivals is not None and arrivals < _FEWEST) or sessions < 1 or seed < 0:
        raise ConfigurationError(
            f"requests and arrivals must be at least {_FEWEST}, sessions at least 1 and seed at least 0, not "
            f"{requests}, {arrivals}, {sessions} and {seed}"
        )
    mix = shipped_mix() if mix is None else mix
    drawn, queued = mix.draw(seed, requests), mix.draw(seed, arrivals)
    played = mix.draw(seed, min(requests, sessions))
    how = {"seed": seed, "arms": arms}
    tasks: list[tuple[Any, ...]] = [(capacity_row, (queued, share), {}) for share in SHARES]
    tasks += [
        (run_situation, (server, device, drawn), {**how, "kept": kept})
        for server in servers()
        for device in devices()
        for kept in (None, *KEPT[::-1])
    ]
    tasks += [
        (run_situation, (server, NPU, drawn), {**how, "low_quantile": level})
        for server in servers()
        if server.ttft is not None
        for level in LOW_QUANTILES
    ]
    tasks += [
        (run_situation, (server, device, played), how) for server in servers() for device in devices()[:2]
    ]
    tasks += [
        (run_sessions, (server, device, played, arm), {"seed": seed})
        for server in servers()
        for device in devices()[:2]
        for arm in SESSION_ARMS
    ]
    done = run_all(executor, _run_part, tasks, progress)
    results = [one for one in done if isinstance(one, SituationResult)]
    main = len(servers()) * len(devices()) * (1 + len(KEPT))
    compared = main + len(LOW_QUANTILES) * sum(server.ttft is not None for server in servers())
    return PdResult(
        source=f"{mix.source} ({mix.licence})",
        requests=len(drawn),
        arrivals=len(queued),
        lengths=length_rows(devices()),
        smooth=smooth_rows(),
        seams=seam_rows(),
        sessions=tuple(one for one in done if isinstance(one, SessionRow)),
        session_assists=tuple(results[compared:]),
        situations=tuple(results[:main]),
        quantiles=tuple(results[main:compared]),
        capacity=tuple(one for one in done if isinstance(one, CapacityRow)),
        masks=mask_rows(seed),
        took_s=time.monotonic() - began_at,
    )


def _run_part(function: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return function(*positional, **named)
