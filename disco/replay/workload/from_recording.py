"""Scenario of a recording: rates, device, server and pace, taken from the route records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.cost import Rates
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, Empirical, Rolling, ServerProfile, fit_line
from disco.replay.workload.scenario import DEFAULT_SERVER_TPS, TTFT_OVER, Scenario
from disco.replay.workload.trace import Trace

__all__ = ["DRAFTED", "is_recording", "scenario_of_routes", "without_drafts"]

DRAFTED = "drafted_tokens"  # feature: tokens of the answer from rounds with a draft
FEWEST_STARTS = 8  # of the device with a known TTFT, to fit a line
DEFAULT_DEVICE_TPS = 15.0  # if no answer of the device was long enough to measure the rate
_STEEPEST_TPS = 1e6  # prompt tokens/s, if prompts are so short that a line through their TTFTs has no slope

Floats = NDArray[np.float64]


def is_recording(trace: Trace) -> bool:
    """Return whether a trace was read from route records (format "routes"), which name their endpoints and rates."""
    return trace.features.keys() >= {"ttft_recorded_s", "device_cost_in_usd", "server_cost_in_usd"}


def without_drafts(trace: Trace) -> tuple[Trace, int]:
    """Return a recording without the server's times per token where answers were drafted, and how many were.

    Drafting made them shorter, so they are not those of the server alone.
    """
    tokens = trace.features.get(DRAFTED)
    if tokens is None:
        return trace, 0
    drafted = np.nan_to_num(np.asarray(tokens, dtype=np.float64)) > 0
    if not drafted.any():
        return trace, 0
    gaps = None if trace.gaps is None else trace.gaps.without(drafted)
    tpot_s = np.where(drafted, np.nan, trace.tpot_s)
    return replace(trace, tpot_s=tpot_s, gaps=gaps), int(drafted.sum())


def scenario_of_routes(
    trace: Trace,
    *,
    device: DeviceProfile | None = None,
    server: ServerProfile | None = None,
    name: str | None = None,
) -> Scenario:
    """Return the scenario of a recording.

    Rates, pace and the endpoints' ability to continue an answer are those of the last record. The device's line is
    fitted through the TTFTs of its warm starts over the prompt tokens it really read. The server's TTFT distribution
    counts lost races as "longer than that" (Kaplan and Meier). Line and distribution are used only for values that the
    records do not have; recorded values are replayed unchanged.

    Args:
        trace: read from route records.
        device: replaces the fit; required if the device has too few starts for a fit.
        server: its TTFTs and speed are used if the recording has none; required then.
        name: name of the scenario; None: made from the endpoints' names.

    Raises:
        ConfigurationError: the trace is not a recording, has only one side, or has too few data of one side and no
            profile was given.
    """
    if not is_recording(trace):
        raise ConfigurationError(
            f"trace {trace.name!r} was not read from route records; describe the endpoints to replay it on with "
            "profiles"
        )
    ttft, server_tps, tpot = _server(trace, server)
    profile = device or _device(trace)
    device_name, server_name = (str(_last_known(trace, side)) for side in ("device", "server"))
    pace_tps = float(trace.features["pace_tps"][-1])
    return Scenario(
        name=name or f"{device_name} × {server_name} as recorded",
        device=profile,
        device_rates=_rates(trace, "device"),
        server_rates=_rates(trace, "server"),
        ttft=ttft,
        tpot=tpot,
        server_tps=server_tps,
        pace_tps=None if np.isnan(pace_tps) else pace_tps,
        device_continues=bool(trace.features["device_continues"][-1]),
        server_continues=bool(trace.features["server_continues"][-1]),
        server_name=server_name,
    )


def _server(trace: Trace, profile: ServerProfile | None) -> tuple[Empirical, float, Empirical | None]:
    """Return TTFT, tokens/s and time per token."""
    seen = _known(trace.ttft_s)
    if seen.size:
        times = Rolling(half_life=None)
        for ttft_s in seen.tolist():
            times.observe(ttft_s)
        for over_s in _known(trace.features[TTFT_OVER]).tolist():
            times.observe_censored(over_s)
        ttft = times.snapshot()
    elif profile is not None:
        ttft = profile.ttft()
    else:
        raise ConfigurationError(
            f"the recording {trace.name!r} has no first token of the server, so the server's TTFT is unknown; name a "
            "server profile, as --server gpt-4o-mini-2024"
        )
    tpot_s = _known(trace.tpot_s)
    tpot_s = tpot_s[tpot_s > 0]
    if tpot_s.size:
        return ttft, 1.0 / float(np.median(tpot_s)), Empirical.from_samples(tpot_s)
    if profile is not None:
        return ttft, profile.decode_tps or DEFAULT_SERVER_TPS, profile.tpot()
    return ttft, DEFAULT_SERVER_TPS, None


def _device(trace: Trace) -> DeviceProfile:
    read_tokens = np.asarray(trace.features["device_read_tokens"], dtype=np.float64)
    cold = np.asarray(trace.features["device_cold"], dtype=np.bool_)
    known = ~np.isnan(trace.device_ttft_s) & ~np.isnan(read_tokens)
    warm = known & ~cold
    if warm.sum() < FEWEST_STARTS or np.ptp(read_tokens[warm]) == 0:
        raise ConfigurationError(
            f"the recording {trace.name!r} has {int(warm.sum())} warm starts of the device with a known TTFT, and a "
            f"profile needs at least {FEWEST_STARTS} with prompts of different lengths; name a device profile"
        )
    line = fit_line(read_tokens[warm], trace.device_ttft_s[warm], non_negative=True)
    k_s_per_token = max(line.k_s_per_token, 1.0 / _STEEPEST_TPS)
    tpot_s = _known(trace.device_tpot_s)
    tpot_s = tpot_s[tpot_s > 0]
    loads_s = trace.device_ttft_s[known & cold] - (k_s_per_token * read_tokens[known & cold] + line.c_s)
    return DeviceProfile(
        name=str(_last_known(trace, "device")),
        source=f"fitted to {line.n} warm starts in {trace.name}",
        prefill_tps=1.0 / k_s_per_token,
        decode_tps=1.0 / float(np.median(tpot_s)) if tpot_s.size else DEFAULT_DEVICE_TPS,
        k_s_per_token=k_s_per_token,
        c_s=line.c_s,
        r2=line.r2,
        n=line.n,
        load_s=max(float(np.median(loads_s)), 0.0) if loads_s.size else None,
    )


def _rates(trace: Trace, side: str) -> Rates:
    try:
        return Rates(
            float(_last_known(trace, f"{side}_cost_in_usd")),
            float(_last_known(trace, f"{side}_cost_out_usd")),
            float(_last_known(trace, f"{side}_cached_share")),
            is_money=bool(_last_known(trace, f"{side}_is_money")),
            j_in=_last_j(trace, f"{side}_j_in"),
            j_out=_last_j(trace, f"{side}_j_out"),
        )
    except ValueError as error:
        raise ConfigurationError(f"the recording {trace.name!r} has unusable rates: {error}") from error


def _last_j(trace: Trace, column: str) -> float | None:
    known = _known(np.asarray(trace.features[column], dtype=np.float64))
    return float(known[-1]) if known.size else None


def _last_known(trace: Trace, column: str) -> Any:
    values = trace.features[column]
    known = values != "" if values.dtype.kind in "OU" else ~np.isnan(values)
    if not known.any():
        side = column.split("_", maxsplit=1)[0]
        raise ConfigurationError(
            f"the recording {trace.name!r} was made without a {side}, so policies have no choice; describe both sides "
            "with profiles"
        )
    return values[known][-1]


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]
