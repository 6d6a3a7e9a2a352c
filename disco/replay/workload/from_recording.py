"""Scenario of a recording: rates, device, server and pace, taken from the route records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.cost import ExchangeRate, Rates
from disco.cost import device_rates as device_rates_of
from disco.cost import server_rates as server_rates_of
from disco.dispatch.presets import CostSection, available_presets, load_preset
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, Empirical, Rolling, ServerProfile, fit_line, load_prices
from disco.profiles.profile_types import FlopsPerToken
from disco.replay.workload.scenario import DEFAULT_SERVER_TPS, TTFT_OVER, Scenario
from disco.replay.workload.trace import Trace

__all__ = [
    "DRAFTED",
    "exchange_rate_of",
    "first_tokens",
    "fits_device",
    "has_side",
    "is_recording",
    "other_endpoints",
    "scenario_of_routes",
    "with_recorded_price",
    "without_drafts",
]

DRAFTED = "drafted_tokens"  # feature: tokens of the answer from rounds with a draft
FEWEST_STARTS = 8  # of the device with a known TTFT, to fit a line
DEFAULT_DEVICE_TPS = 15.0  # if no answer of the device was long enough to measure the rate
_RATES = ("cost_in_usd", "cost_out_usd", "cached_share")
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
        device: replaces the fit; required if the device has too few starts for a fit. Where the recording was made
            without a device, this one is added, at the exchange rate of the recording.
        server: its TTFTs and speed are used if the recording has none; required then. Where the recording was made
            without a server, this one is added, at its price.
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
    device_name, device_rates, device_continues = _endpoint(trace, "device", device)
    server_name, server_rates, server_continues = _endpoint(trace, "server", server)
    ttft, server_tps, tpot = _server(trace, server)
    profile = device or _priced(_device(trace), _implied_flops(trace, device_rates))
    pace_tps = float(trace.features["pace_tps"][-1])
    return Scenario(
        name=name or f"{device_name} × {server_name} as recorded",
        device=profile,
        device_rates=device_rates,
        server_rates=server_rates,
        ttft=ttft,
        tpot=tpot,
        server_tps=server_tps,
        pace_tps=None if np.isnan(pace_tps) else pace_tps,
        device_continues=device_continues,
        server_continues=server_continues,
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
    warm = _warm(trace)
    cold = ~warm & ~np.isnan(trace.device_ttft_s) & ~np.isnan(read_tokens)
    if not fits_device(trace):
        raise ConfigurationError(
            f"the recording {trace.name!r} has {int(warm.sum())} warm starts of the device with a known TTFT, and a "
            f"profile needs at least {FEWEST_STARTS} with prompts of different lengths; name a device profile"
        )
    line = fit_line(read_tokens[warm], trace.device_ttft_s[warm], non_negative=True)
    k_s_per_token = max(line.k_s_per_token, 1.0 / _STEEPEST_TPS)
    tpot_s = _known(trace.device_tpot_s)
    tpot_s = tpot_s[tpot_s > 0]
    loads_s = trace.device_ttft_s[cold] - (k_s_per_token * read_tokens[cold] + line.c_s)
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


def exchange_rate_of(trace: Trace) -> tuple[float, str]:
    """Return λ of a recording, USD per 10⁶ FLOPs, and a sentence about where it comes from.

    It is that of the last record with a device: its own, else that of the shipped preset that it names, else the usual
    one.
    """
    devices = _is_known(trace.features["device"])
    row = int(devices.nonzero()[0][-1]) if devices.any() else len(trace) - 1
    rates, name = trace.features.get("exchange_rate"), str(trace.features["preset"][row])
    if rates is not None and rates.dtype.kind == "f" and rates[row] > 0:
        rate = float(rates[row])
        return rate, f"The exchange rate is that of the recording, {rate:.3g} USD per 10^6 FLOPs."
    if name in available_presets():
        rate = load_preset(name).cost.exchange_rate
        return rate, f"The exchange rate is that of the preset {name!r}, {rate:.3g} USD per 10^6 FLOPs."
    rate = CostSection().exchange_rate
    return rate, (
        f"The records do not say at which exchange rate the preset {name!r} counts the device's work: {rate:.3g} USD "
        "per 10^6 FLOPs is assumed, electricity from the wall."
    )


def first_tokens(trace: Trace) -> dict[str, int]:
    """Return how many first tokens of the device, its model loaded, and of the server a recording has times of."""
    return {"device": int(_warm(trace).sum()), "server": int(_known(trace.ttft_s).size)}


def fits_device(trace: Trace) -> bool:
    """Return whether a recording has enough starts of the device to fit a profile."""
    read_tokens = np.asarray(trace.features["device_read_tokens"], dtype=np.float64)
    warm = _warm(trace)
    return bool(warm.sum() >= FEWEST_STARTS and np.ptp(read_tokens[warm]) > 0)


def has_side(trace: Trace, side: str) -> bool:
    """Return whether a recording was made with an endpoint of that side, "device" or "server"."""
    return bool(_is_known(trace.features[side]).any())


def other_endpoints(trace: Trace) -> list[str]:
    """Return the endpoints of a recording but the two whose prices its scenario has, in order."""
    two = {_endpoint(trace, side, None)[0] for side in ("device", "server") if has_side(trace, side)}
    names = dict.fromkeys(
        name
        for row in dict.fromkeys(trace.features["endpoints"].tolist())
        for name in json.loads(row or "[]")
    )
    return [name for name in names if name not in two]


def with_recorded_price(profile: DeviceProfile, trace: Trace) -> DeviceProfile:
    """Return a device's profile with the FLOPs per token that the recorded rates imply; of a free device as it is."""
    return _priced(profile, _implied_flops(trace, _endpoint(trace, "device", profile)[1]))


def _priced(profile: DeviceProfile, flops: FlopsPerToken | None) -> DeviceProfile:
    return profile if flops is None else profile.model_copy(update={"flops": flops})


def _implied_flops(trace: Trace, rates: Rates) -> FlopsPerToken | None:
    """Return the FLOPs per token at which the recording's exchange rate gives these rates; None: the work is free."""
    if max(rates.cost_in, rates.cost_out) <= 0.0:
        return None
    per_usd = 1e6 / (exchange_rate_of(trace)[0] or CostSection().exchange_rate)
    least = 1e-6 * max(rates.cost_in, rates.cost_out)
    prefill, decode = (max(usd, least) * per_usd for usd in (rates.cost_in, rates.cost_out))
    return FlopsPerToken(prompt_tokens=(128.0,), prefill=(prefill,), decode=decode)


def _warm(trace: Trace) -> NDArray[np.bool_]:
    read_tokens = np.asarray(trace.features["device_read_tokens"], dtype=np.float64)
    cold = np.asarray(trace.features["device_cold"], dtype=np.bool_)
    return ~np.isnan(trace.device_ttft_s) & ~np.isnan(read_tokens) & ~cold


def _endpoint(
    trace: Trace, side: str, profile: DeviceProfile | ServerProfile | None
) -> tuple[str, Rates, bool]:
    """Return name and rates of one side, and whether it continues answers."""
    if not has_side(trace, side):
        if isinstance(profile, DeviceProfile):
            rate = ExchangeRate(usd_per_mflop=exchange_rate_of(trace)[0])
            return profile.name, device_rates_of(profile, rate), True
        if isinstance(profile, ServerProfile) and profile.price is not None:
            return profile.name, server_rates_of(load_prices().price(profile.price)), True
        other = "--server gpt-4o-mini-2024" if side == "server" else "--device xiaomi14-qwen1.5-0.5b"
        raise ConfigurationError(
            f"the recording {trace.name!r} was made without a {side}, so policies have no choice; describe one with a "
            f"profile, as {other}"
        )
    try:
        cost_in, cost_out, share = (float(_last_known(trace, f"{side}_{name}")) for name in _RATES)
        rates = Rates(
            cost_in,
            cost_out,
            share,
            is_money=bool(_last_known(trace, f"{side}_is_money")),
            j_in=_last_j(trace, f"{side}_j_in"),
            j_out=_last_j(trace, f"{side}_j_out"),
        )
    except ValueError as error:
        raise ConfigurationError(f"the recording {trace.name!r} has unusable rates: {error}") from error
    names = trace.features[side]
    row = int(_is_known(names).nonzero()[0][-1])
    return str(names[row]), rates, bool(trace.features[f"{side}_continues"][row])


def _last_j(trace: Trace, column: str) -> float | None:
    known = _known(np.asarray(trace.features[column], dtype=np.float64))
    return float(known[-1]) if known.size else None


def _last_known(trace: Trace, column: str) -> Any:
    values = trace.features[column]
    return values[_is_known(values)][-1]


def _is_known(values: NDArray[Any]) -> NDArray[np.bool_]:
    known: NDArray[np.bool_] = (
        values != ""
        if values.dtype.kind in "OU"
        else ~np.isnan(values)
        if values.dtype.kind == "f"
        else np.ones(values.shape, dtype=np.bool_)
    )
    return known


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]
