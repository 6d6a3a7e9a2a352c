"""`disco adapter`: its subcommand and its options. This module needs only argparse."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen

__all__ = ["add"]

_MINUTES = 30.0
_LAYERS = 2


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco adapter`."""
    subcommands = parser.add_subparsers(required=True, metavar="WHAT")
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
    train.set_defaults(run=_train)


def _train(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.adapter.adapter_train import run_train  # noqa: PLC0415 - `disco --help` needs no model

    return run_train(screen, arguments)
