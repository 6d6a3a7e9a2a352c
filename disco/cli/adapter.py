"""`disco adapter train`: trains the layer that drafts on the device of a model cut in two."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from disco.adapter.making import Order, make_adapter, require_torch
from disco.adapter.training import Progress
from disco.cli.console import Screen
from disco.cli.model_argument import model_file
from disco.endpoints.llamacpp.layers.adapter_file import fits_weights, put_adapter, write_adapter
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file
from disco.endpoints.llamacpp.model.gguf_files import require_gguf
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, short_name
from disco.errors import ConfigurationError

__all__ = ["add"]

_TOKENS = 400_000
_SECONDS = 20.0  # between two lines about the answers


_MINUTES = 30.0
_LAYERS = 2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco adapter`."""
    subcommands = parser.add_subparsers(required=True)
    train = subcommands.add_parser(
        "train",
        help="train an adapter on the model's own answers",
        description="The model answers built-in prompts; an adapter learns from these answers to go on from the "
        "device's first layers, and is measured on other prompts. Needs torch: pip install 'disco-llm[adapter]'. "
        "Nothing is sent anywhere.",
    )
    train.add_argument(
        "model", metavar="MODEL", help="the whole model: a name, a GGUF file or hf:owner/repo/file"
    )
    train.add_argument(
        "--layers",
        type=int,
        default=_LAYERS,
        metavar="N",
        help=f"how many layers the device keeps (default: {_LAYERS})",
    )
    train.add_argument(
        "--block",
        choices=("full", "attention"),
        default="full",
        help="the adapter's shape: a full layer, or its attention alone, which is smaller and worse (default: full)",
    )
    train.add_argument(
        "--tokens", type=int, metavar="N", help="of answers to learn from, at most (default: as time allows)"
    )
    train.add_argument(
        "--minutes",
        type=float,
        default=_MINUTES,
        metavar="M",
        help=f"for everything; about 60 %% are for the answers (default: {_MINUTES:.0f})",
    )
    train.add_argument("--threads", type=int, metavar="N", help="of the computation (default: all cores)")
    train.add_argument("--seed", type=int, default=1, metavar="N", help="of all that is drawn (default: 1)")
    train.add_argument(
        "--out",
        metavar="FILE",
        help="an adapter's file to be written, or NAME.device.gguf, which is cut already and gets the adapter "
        "(default: MODEL.mN.npz in this folder)",
    )
    train.set_defaults(run=run_train)


class _Told:
    """Prints where the work is. Mutable: when it last did."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._what, self._at = "", 0.0

    def writing(self, what: str, tokens: int, seconds: float) -> None:
        if what == self._what and seconds < self._at + _SECONDS:
            return
        self._what, self._at = what, seconds
        if seconds > 0:
            self._screen.line(f"  {what} answers: {tokens:>8,} tokens, {tokens / seconds:,.0f} a second")

    def training(self, progress: Progress) -> None:
        self._screen.line(
            f"  training: {progress.share:4.0%} after {progress.seconds:,.0f} s, {progress.tokens:>9,} tokens, "
            f"loss {progress.loss:.3f}, held-out acceptance {progress.acceptance:.3f}"
        )


def run_train(screen: Screen, arguments: argparse.Namespace) -> int:
    """Train an adapter; return the exit status.

    Raises:
        ConfigurationError: an option is not usable, or a package is missing.
        ModelFileError: no adapter can be trained for the model, or the file to be changed is of another one.
    """
    require_llama_cpp()
    require_gguf()
    require_torch()
    if not arguments.minutes > 0:
        raise ConfigurationError(f"--minutes must be more than 0, not {arguments.minutes:g}.")
    for name in ("tokens", "threads"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ConfigurationError(f"--{name} must be at least 1, not {getattr(arguments, name)}.")
    source = model_file(arguments.model)
    out = Path(
        arguments.out or f"{Path(short_name(arguments.model)).name}.m{arguments.layers}.npz"
    ).expanduser()
    _check_out(out, source, arguments.layers)
    order = Order(
        path=source,
        layers=arguments.layers,
        block=arguments.block,
        tokens=arguments.tokens or _TOKENS,
        seconds=60 * arguments.minutes,
        threads=arguments.threads or os.cpu_count() or 1,
        seed=arguments.seed,
    )
    screen.line(f"{source.name}, {order.layers} layers on the device, {order.threads} threads:")
    adapter = make_adapter(order, _Told(screen))
    if out.suffix == ".gguf":
        put_adapter(out, adapter)
    else:
        write_adapter(out, adapter.tensors, adapter.facts)
    known = adapter.facts
    screen.line(
        f"Held-out acceptance: {known.greedy_acceptance:.3f} at temperature 0, {known.sampled_acceptance:.3f} at 0.8: "
        "the share of positions at which the draft's best token is the model's."
    )
    screen.line(
        f"Written to {out}" + ("" if out.suffix == ".gguf" else f" (disco split cut --adapter {out})")
    )
    return 0


def _check_out(out: Path, source: Path, layers: int) -> None:
    """Raise the error now that would otherwise come when the work is done."""
    if out.suffix != ".gguf":
        if not out.resolve().parent.is_dir():
            raise ConfigurationError(f"There is no folder {out.parent} for {out.name}. Make it first.")
        return
    known = read_layer_file(out, "device")
    if known.layers != layers:
        raise ConfigurationError(f"{out} keeps {known.layers} layers: add --layers {known.layers}.")
    fits_weights(out, source)
