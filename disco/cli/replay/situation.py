"""What `disco replay` and `disco tune` work on: requests out of a file or drawn, and endpoints with their prices.

Here are the options that say so, and what is made of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from disco.amounts import plural
from disco.cli.console import Screen
from disco.cli.shared_options import add_price, check_least, parse_price
from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED, ExchangeRate
from disco.dispatch.policies.policy_registry import AUTO
from disco.errors import ConfigurationError
from disco.profiles import (
    LengthsProfile,
    available_profiles,
    load_device,
    load_lengths,
    load_server,
    user_profile_dir,
)
from disco.replay.formats import Skipped, read_trace
from disco.replay.report.advice import ENOUGH_STARTS
from disco.replay.workload.from_recording import (
    exchange_rate_of,
    first_tokens,
    fits_device,
    has_side,
    is_recording,
    other_endpoints,
    scenario_of_routes,
    with_recorded_price,
)
from disco.replay.workload.scenario import Scenario, scenario_for
from disco.replay.workload.synthetic import Arrivals, synthetic_trace
from disco.replay.workload.trace import Trace
from disco.replay.workload.trace_survey import Survey

__all__ = [
    "DEFAULT_EXCHANGE_RATE",
    "SYNTHETIC",
    "ScenarioOptions",
    "add_endpoints",
    "add_file",
    "add_max_tokens",
    "add_processes",
    "add_synthetic",
    "auto_policy",
    "described",
    "left_out",
    "made_up",
    "parse_exchange_rate",
    "read",
    "situation_of",
]

SYNTHETIC: Final = "synthetic"  # in place of a file
SHIPPED_DEVICE = "xiaomi14-qwen1.5-0.5b"
SHIPPED_SERVER = "gpt-4o-mini-2024"
_DEFAULT_SERVER = f"Server: the shipped profile {SHIPPED_SERVER}; name others with --server."
SHIPPED_LENGTHS = "lengths-azure-conv-2023"
DEFAULT_EXCHANGE_RATE: Final = (
    "4e-12"  # USD per 10⁶ FLOPs: a laptop on mains power, as in the preset "balanced"
)
NAMED_RATES: Final = {
    "device-constrained": PAPER_DEVICE_CONSTRAINED,
    "server-constrained": PAPER_SERVER_CONSTRAINED,
}


def add_file(parser: argparse.ArgumentParser) -> None:
    """Add a trace file, and how it is read."""
    parser.add_argument("trace", metavar="FILE", help="the trace: CSV, JSON lines or Parquet")
    trace = parser.add_argument_group("the file")
    trace.add_argument("--format", default="auto", metavar="F", help="its format (default: by its columns)")
    trace.add_argument(
        "--skip-invalid",
        action="store_true",
        help="skip unusable rows, and report how many and why (of route records they always are, but for those of a "
        "newer disco)",
    )


def add_synthetic(parser: argparse.ArgumentParser) -> None:
    """Add what is drawn in place of a file."""
    parser.set_defaults(trace=SYNTHETIC)
    synthetic = parser.add_argument_group("the requests")
    synthetic.add_argument(
        "--requests", type=int, default=10_000, metavar="N", help="how many (default: %(default)s)"
    )
    synthetic.add_argument(
        "--arrivals",
        default="poisson",
        help="arrival process: `poisson`, `gamma` or `per-client` (default: %(default)s)",
    )
    synthetic.add_argument(
        "--mean-interval",
        type=float,
        default=30.0,
        metavar="S",
        help="mean seconds between arrivals (default: 30)",
    )
    synthetic.add_argument(
        "--lengths", metavar="FILE", help="prompt lengths to use instead of the shipped ones"
    )


def add_endpoints(parser: argparse.ArgumentParser) -> None:
    """Add a device and a server, and what they cost."""
    where = parser.add_argument_group("the endpoints")
    where.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="device profile, by name or path; may be given several times (default: the one that `disco profile` "
        "measured last, else a shipped one)",
    )
    where.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="NAME",
        help="server profile, as --device (default: a shipped one)",
    )
    add_price(where, default="the profile's")
    where.add_argument(
        "--exchange-rate",
        metavar="X",
        help="value of the device's work: USD per 10^6 FLOPs, or `device-constrained` or "
        "`server-constrained` for the paper's two (default: that of a recording, else "
        f"{DEFAULT_EXCHANGE_RATE}, a laptop on mains power)",
    )
    add_max_tokens(where)


def add_max_tokens(parser: argparse._ActionsContainer) -> None:
    """Add a limit of every answer."""
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="limit of every answer, tokens (default: none)"
    )


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add what computes."""
    processes = parser.add_argument_group("processes")
    processes.add_argument(
        "--jobs", type=int, metavar="N", help="processes (default: one, or one per core if that saves time)"
    )
    processes.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of this Dask scheduler")


def parse_exchange_rate(text: str) -> ExchangeRate:
    """Parse an exchange rate: USD per 10⁶ FLOPs, or the name of one of the paper's two rates.

    Raises:
        ConfigurationError: the text is neither a number, 0 or more, nor a known name.
    """
    if text in NAMED_RATES:
        return NAMED_RATES[text]
    try:
        return ExchangeRate(usd_per_mflop=float(text))
    except ValueError as error:
        raise ConfigurationError(
            f"an exchange rate is USD per 10^6 FLOPs, 0 or more, or {' or '.join(NAMED_RATES)}, not {text!r}"
        ) from error


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """The scenarios that the options describe.

    Attributes:
        scenarios: each device with each server.
        notes: the sources of the numbers, for the reader.
        exchange_rate: λ at which the devices are priced, USD per 10⁶ FLOPs; None: as in the recording.
        assumed: of a recording, the sides ("device", "server") that it shows too few first tokens of, and how many.
    """

    scenarios: list[Scenario]
    notes: list[str]
    exchange_rate: float | None
    assumed: Mapping[str, int] = field(default_factory=dict)


def situation_of(
    arguments: argparse.Namespace,
    workload: Trace | Survey | None,
    *,
    pace_tps: float | None = None,
) -> ScenarioOptions:
    """Make scenarios from the options.

    A recording contains the endpoints it was made on. A profile in the options replaces one of them.

    Args:
        arguments: those of `add_endpoints`.
        workload: the trace, or its survey; None if requests are made from the profiles.
        pace_tps: the reader's pace in tokens/s; None: no pace.

    Raises:
        ConfigurationError: a profile is not known, or a price or an exchange rate is missing or invalid.
    """
    exchange_rate = parse_exchange_rate(arguments.exchange_rate or DEFAULT_EXCHANGE_RATE)
    price = None if arguments.price is None else parse_price(arguments.price)
    check_least(arguments, max_tokens=1)
    if isinstance(workload, Trace) and is_recording(workload) and not _redescribed(arguments):
        return _as_recorded(arguments, workload)
    notes = []
    devices: Sequence[str | Path] = arguments.device
    if not devices:
        device, how = _default_device()
        devices = [device]
        notes.append(how)
    servers = arguments.server
    if not servers:
        servers = [SHIPPED_SERVER]
        notes.append(_DEFAULT_SERVER)
    if workload is not None:
        notes.append(_where_ttft_comes_from(workload))
    scenarios = [
        scenario_for(
            load_device(device),
            load_server(server),
            exchange_rate=exchange_rate,
            price=price,
            trace=workload if isinstance(workload, Trace) else None,
            max_tokens=arguments.max_tokens,
            pace_tps=pace_tps,
        )
        for device in devices
        for server in servers
    ]
    if isinstance(workload, Survey):
        scenarios = [replace(s, lengths=workload.lengths, ttft=workload.ttft or s.ttft) for s in scenarios]
    return ScenarioOptions(_told_apart(scenarios), notes, exchange_rate.usd_per_mflop)


def _redescribed(arguments: argparse.Namespace) -> bool:
    """Return whether the options describe both endpoints or their costs, so that the recorded ones are not used."""
    devices, servers = arguments.device, arguments.server
    return bool(
        (devices and servers)
        or max(len(devices), len(servers)) > 1
        or arguments.price is not None
        or arguments.exchange_rate is not None
    )


def _as_recorded(arguments: argparse.Namespace, trace: Trace) -> ScenarioOptions:
    """Return the scenario of a recording. A side whose times it does not have gets those of a profile, and a note."""
    (device,) = arguments.device or [None]
    (server,) = arguments.server or [None]
    sides: dict[str, Any] = {
        "device": None if device is None else load_device(device),
        "server": None if server is None else load_server(server),
    }
    notes = [
        "Endpoints, prices and pace are those of the recording. Use --price or --exchange-rate for others."
    ]
    seen = first_tokens(trace)
    assumed = {side: n for side, n in seen.items() if n < ENOUGH_STARTS and sides[side] is None}
    if sides["device"] is None and has_side(trace, "device") and not fits_device(trace):
        chosen, how = _default_device()
        sides["device"] = with_recorded_price(load_device(chosen), trace)
        notes.append(
            f"The recording has {plural(seen['device'], 'first token')} of the device, too few for its speed. {how}"
        )
    if sides["server"] is None and has_side(trace, "server") and not seen["server"]:
        sides["server"] = load_server(SHIPPED_SERVER)
        notes.append(f"The recording has no first token of the server. {_DEFAULT_SERVER}")
    if getattr(arguments, "device_slots", None) is None:
        notes.append(
            "Each answer is replayed as if the device were free. --preset lets answers wait for each other."
        )
    scenario = scenario_of_routes(trace, **sides)
    if others := other_endpoints(trace):
        notes.append(
            f"A policy chooses between one device and one server, but the recording has {', '.join(others)}, too: "
            "times are those of the endpoint of each side that an answer used, prices those of the two that the table "
            "names. --preset replays every endpoint."
        )
    notes.append(exchange_rate_of(trace)[1])
    return ScenarioOptions([replace(scenario, max_tokens=arguments.max_tokens)], notes, None, assumed)


def read(screen: Screen, arguments: argparse.Namespace) -> tuple[Trace, list[str]]:
    """Read the trace file; return the trace and notes about it."""
    path = Path(arguments.trace)
    if not path.exists() and not path.suffix:
        raise ConfigurationError(
            f"there is no file {path}; check the path, or write `synthetic` before all options to draw requests"
        )
    with screen.step(f"Reading {path.name}"):
        trace, skipped = read_trace(path, format=arguments.format, skip_invalid=arguments.skip_invalid)
    return trace, [described(trace), *left_out(skipped)]


def left_out(skipped: Skipped) -> list[str]:
    """Return a line for each reason for which rows were left out."""
    return [f"Left out: {told}" for told in skipped.named()]


def made_up(arguments: argparse.Namespace) -> tuple[partial[Trace], list[str]]:
    """Return a function of a seed that makes the `synthetic` requests, and notes about them."""
    lengths = load_lengths(arguments.lengths or SHIPPED_LENGTHS)
    trace = partial(_made_up, arguments.requests, arguments.arrivals, arguments.mean_interval, lengths)
    return trace, [f"{described(trace(0))} Lengths: {lengths.name}."]


def _made_up(
    requests: int, arrivals: Arrivals, mean_interval_s: float, lengths: LengthsProfile, seed: int
) -> Trace:
    return synthetic_trace(
        requests=requests, seed=seed, prompts=lengths, arrivals=arrivals, mean_interval_s=mean_interval_s
    )


def described(workload: Trace | Survey) -> str:
    """Return a sentence or two about the workload."""
    if isinstance(workload, Survey):
        requests, lasts_s = workload.requests, workload.lasts_s
        prompts, answers = workload.lengths.mean(), workload.output_tokens
    else:
        requests, lasts_s = len(workload), float(workload.arrival_s[-1] - workload.arrival_s[0])
        prompts, answers = float(workload.prompt_tokens.mean()), float(workload.output_tokens.mean())
    text = (
        f"{workload.name}: {requests:,} requests over {lasts_s / 3600:.1f} h, on average {prompts:.0f} prompt and "
        f"{answers:.0f} output tokens."
    )
    return f"{text} {workload.source}." if workload.source else text


def auto_policy(scenarios: Sequence[Scenario]) -> str:
    """Return the policy that "auto" selects on these scenarios; "auto" itself if they differ."""
    regimes = {scenario.regime for scenario in scenarios}
    if len(regimes) > 1:
        return AUTO
    return "wait_time" if regimes == {"device-constrained"} else "length_threshold"


def _default_device() -> tuple[str | Path, str]:
    """Return the profile measured last on this machine, else a shipped one, and a sentence about the choice."""
    folder = user_profile_dir()
    own = [name for name in available_profiles("device") if (folder / f"{name}.toml").is_file()]
    if own:
        latest = max(own, key=lambda name: (folder / f"{name}.toml").stat().st_mtime)
        return latest, f"Device: {latest}, measured on this machine; name others with --device."
    return SHIPPED_DEVICE, (
        f"Device: the shipped profile {SHIPPED_DEVICE}; measure this machine with `disco profile`, or name another "
        "with --device."
    )


def _where_ttft_comes_from(workload: Trace | Survey) -> str:
    known = (
        workload.ttft_known if isinstance(workload, Survey) else float(np.mean(~np.isnan(workload.ttft_s)))
    )
    if known == 1.0:
        return "The server's TTFTs are the trace's own."
    if known == 0.0:
        return "The trace has no TTFTs of the server: they are drawn from the server's profile."
    return f"{known:.0%} of the server's TTFTs are the trace's own; the others are drawn."


def _told_apart(scenarios: list[Scenario]) -> list[Scenario]:
    """Number scenarios of the same name (profiles given twice, or two files of one name), so that results differ."""
    seen: dict[str, int] = {}
    named = []
    for scenario in scenarios:
        seen[scenario.name] = count = seen.get(scenario.name, 0) + 1
        named.append(scenario if count == 1 else replace(scenario, name=f"{scenario.name} ({count})"))
    return named
