"""`disco split`: its subcommands and their options."""

from __future__ import annotations

import argparse
from typing import Any

from disco.cli.serving.serve_setup import KEY_VARIABLE
from disco.cli.shared_options import WHOLE_MODEL, add_json, add_key_file, add_prompts, add_threads
from disco.cli.split.split_audit import run_audit
from disco.cli.split.split_check import run_check
from disco.cli.split.split_cut import USUAL_LAYERS, run_cut

__all__ = ["add"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco split`."""
    subcommands = parser.add_subparsers(required=True)
    model = f"the whole model: {WHOLE_MODEL}"
    cut = subcommands.add_parser(
        "cut",
        help="write the files of both sides",
        description="Writes three files: the device's, the cloud's, and the head, which stays on the device. They "
        "are run beside the whole model before they count. What the cloud can read of your texts: disco split audit.",
    )
    cut.add_argument("model", metavar="MODEL", help=model)
    _add_layers(cut)
    cut.add_argument("--out", metavar="FOLDER", help="where the files are written (default: NAME-split)")
    cut.add_argument(
        "--adapter",
        metavar="FILE",
        help="of `disco adapter train`, or none (default: that of a package for this model, where it is installed)",
    )
    cut.add_argument(
        "--replace", action="store_true", help="replace a file of the device whose adapter was trained"
    )
    cut.set_defaults(run=run_cut)
    audit = subcommands.add_parser(
        "audit",
        help="find out what the cloud can read of your texts",
        description="Attacks the split as the cloud could, which knows the model: finds a prompt's tokens from the "
        "states that the device sends, and an answer's from those that the cloud computes. Texts are not stored, nor "
        "printed without --show.",
    )
    audit.add_argument(
        "model", metavar="MODEL", help=f"{model}; or the device's file of a model that was cut"
    )
    _add_layers(audit)
    audit.add_argument("--text", metavar="FILE", help="a text of yours (default: six shipped ones)")
    audit.add_argument("--show", action="store_true", help="print what was recovered")
    add_threads(audit)
    add_json(audit)
    audit.set_defaults(run=run_audit)
    _add_check(subcommands)


def _add_check(subcommands: Any) -> None:
    check = subcommands.add_parser(
        "check",
        help="measure a split with its server: the link, the chunks, and whether drafting pays",
        description="Asks a layer server what it has, measures the link and both sides, and writes sample answers with "
        "and without drafts.",
    )
    check.add_argument("device", metavar="DEVICE_FILE", help="NAME.device.gguf; NAME.head.gguf is beside it")
    check.add_argument("--base-url", metavar="URL", required=True, help="of the layer server")
    add_key_file(check, KEY_VARIABLE)
    check.add_argument(
        "--wire", choices=("float16", "float32"), default="float16", help="how states are sent (%(default)s)"
    )
    add_prompts(check, tokens=48)
    add_threads(check, default=1)
    add_json(check)
    check.set_defaults(run=run_check)


def _add_layers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--layers", type=int, metavar="N", help=f"how many layers the device keeps (default: {USUAL_LAYERS})"
    )
