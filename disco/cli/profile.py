"""`disco profile`: measure how fast this machine runs a model, and save that as a device profile."""

from __future__ import annotations

import argparse
import datetime
import platform
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from disco.cli.console import Screen
from disco.cli.shared_options import LOCAL_MODEL, add_runtime, add_threads
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.cost.model_flops import ModelShapes
from disco.endpoints.llamacpp.runtime.speed_benchmark import Measurement
from disco.endpoints.runtimes import Runtime
from disco.profiles import (
    DeviceProfile,
    Energy,
    FlopsPerToken,
    LinearFit,
    fit_line,
    save_profile,
    user_profile_dir,
)

if TYPE_CHECKING:
    from disco.endpoints.host import HostEndpoint

__all__ = ["add", "measure_device", "run_profile"]

QUICK = (16, 64, 128)
FULL = (16, 32, 64, 128, 256, 512, 1024)


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco profile`."""
    parser.add_argument("local", nargs="?", default=LOCAL_MODEL, help="as for chat (default: %(default)s)")
    add_threads(parser)
    add_runtime(parser)
    parser.add_argument("--no-save", action="store_true", help="show the figures, but do not save them")
    parser.set_defaults(run=_run)


async def _run(screen: Screen, arguments: argparse.Namespace) -> int:
    return await run_profile(
        screen,
        arguments.local,
        runtime=arguments.runtime,
        threads=arguments.threads,
        save=not arguments.no_save,
    )


async def run_profile(
    screen: Screen, model: str, *, threads: int | None, save: bool, runtime: Runtime = "auto"
) -> int:
    """Measure `model`, show the fit, and save it for the next `AsyncDisco(local=model)`."""
    device = model_endpoint(model, runtime=runtime, threads=threads)
    try:
        profile = await measure_device(device, screen, name=device.profile_name, quick=False)
    finally:
        await device.aclose()
    if save:
        path = save_profile(
            profile,
            user_profile_dir() / f"{profile.name}.toml",
            comment=f"Measured by `disco profile {model}`. Used whenever this model runs here; safe to delete.",
        )
        screen.line(f"Saved as {path}. AsyncDisco(local={model!r}) uses it from now on.")
    return 0


async def measure_device(
    device: HostEndpoint,
    screen: Screen,
    *,
    name: str,
    quick: bool,
    lengths: Sequence[int] | None = None,
) -> DeviceProfile:
    """Measure load time, prefill and decode, and fit TTFT = k·l + c.

    Args:
        device: the endpoint. Must not be busy; its model is loaded afresh.
        screen: shows the progress and the result.
        name: the name of the profile.
        quick: measure for a few seconds instead of a minute, and print no table; enough for a first plan.
        lengths: of the prompts that are read, tokens. None: short ones where `quick` is True. A token of a long prompt
            takes longer, so a plan for long ones needs some.
    """
    lengths = lengths or (QUICK if quick else FULL)
    with screen.step("Measuring this machine") as show:
        measured = await device.measure(
            prompt_tokens=lengths,
            depths=(32,) if quick else (32, 256, 1024),
            repeats=1 if quick else 3,
            progress=lambda done, total: show(done, f"step {done} of {total}"),
        )
        flops = _flops(device)
    line = fit_line(
        [p.tokens for p in measured.prefill], [p.seconds_s for p in measured.prefill], non_negative=True
    )
    profile = _profile(name, measured, line, flops)
    if quick:
        screen.line(
            f"  this machine: prefill {profile.prefill_tps:.0f} tokens/s, decode {profile.decode_tps:.0f} tokens/s, "
            f"load {measured.load_s:.2f} s",
            style="dim",
        )
    else:
        _show(screen, profile, measured)
    return profile


def _flops(device: HostEndpoint) -> tuple[FlopsPerToken, str]:
    """Return the FLOPs of a token, and where they come from."""
    header = device.header
    shapes = None if header is None else ModelShapes.of(header.metadata, vocabulary=header.tokens)
    if shapes is not None:
        return shapes.flops(), "FLOPs per token follow from the shapes in the model's file."
    # A forward pass multiplies and adds every parameter once per token.
    flops = 2.0 * (device.parameters or 0)
    same = FlopsPerToken(prompt_tokens=(128.0,), prefill=(flops,), decode=flops)
    return same, "FLOPs per token are twice the number of parameters."


def _energy(measured: Measurement) -> Energy | None:
    """Return what tokens took, J; None where the platform does not count it."""
    read = [(p.energy_j, p.tokens) for p in measured.prefill if p.energy_j is not None]
    written = [d.j_per_token for d in measured.decode if d.j_per_token is not None]
    if not read or not written:
        return None
    joules = sum(energy_j for energy_j, _ in read) / sum(tokens for _, tokens in read)
    return Energy(prefill_j_per_token=joules, decode_j_per_token=median(written))


def _profile(
    name: str, measured: Measurement, line: LinearFit, flops: tuple[FlopsPerToken, str]
) -> DeviceProfile:
    return DeviceProfile(
        name=name,
        source=f"measured on this machine with llama.cpp, {measured.threads} thread(s)",
        device=f"{platform.system()} {platform.machine()}",
        measured_on=datetime.datetime.now(tz=datetime.UTC).date(),
        prefill_tps=1.0 / line.k_s_per_token,
        decode_tps=median(d.tps for d in measured.decode),
        k_s_per_token=line.k_s_per_token,
        c_s=line.c_s,
        r2=line.r2,
        n=line.n,
        load_s=measured.load_s,
        context_tokens=measured.context_tokens,
        flops=flops[0],
        energy=_energy(measured),
        notes=flops[1],
    )


def _show(screen: Screen, profile: DeviceProfile, measured: Measurement) -> None:
    rows = []
    for tokens in sorted({p.tokens for p in measured.prefill}):
        seconds = median(p.seconds_s for p in measured.prefill if p.tokens == tokens)
        fitted = profile.line.ttft_s(tokens)
        rows.append((tokens, f"{seconds:.3f}", f"{fitted:.3f}", f"{tokens / seconds:.0f}"))
    screen.table("Prefill", ("prompt tokens", "seconds", "fitted", "tokens/s"), rows)
    decode = [
        (depth, f"{median(d.tps for d in measured.decode if d.depth_tokens == depth):.0f}")
        for depth in sorted({d.depth_tokens for d in measured.decode})
    ]
    screen.table("Decode", ("depth in tokens", "tokens/s"), decode)
    screen.line(
        f"TTFT = k·l + c with k = {profile.line.k_s_per_token * 1e3:.3f} ms/token, c = {profile.c_s * 1e3:.1f} ms, "
        f"R² = {profile.line.r2:.4f} (n = {profile.n}); load {measured.load_s:.2f} s"
    )
