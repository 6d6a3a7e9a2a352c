"""`disco split cut`: the files of both sides, and what to do with them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from disco.cli.console import Screen
from disco.cli.model_argument import model_file
from disco.endpoints.llamacpp.layers.adapter_file import Adapter, fits, holds, known_adapter, read_adapter
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.cut_check import CutCheck, check_cut
from disco.endpoints.llamacpp.layers.layer_files import Part, cut_files, read_layer_file
from disco.endpoints.llamacpp.model.gguf_files import require_gguf
from disco.endpoints.llamacpp.model.model_files import require_llama_cpp, short_name
from disco.errors import ConfigurationError, ModelFileError

__all__ = ["USUAL_LAYERS", "run_cut"]

USUAL_LAYERS = 2

_WHAT: dict[Part, str] = {
    "device": "embedding, first layers, adapter, head, vocabulary",
    "cloud": "the other layers",
    "head": "output norm and head",
}


def run_cut(screen: Screen, arguments: argparse.Namespace) -> int:
    """Cut a model; return the exit status.

    Raises:
        ConfigurationError: an option is not usable, a package is missing, or the folder cannot be written.
        ModelFileError: the model cannot be cut, or its parts do not compute what it computes.
    """
    layers = USUAL_LAYERS if arguments.layers is None else arguments.layers
    require_llama_cpp()
    require_gguf()
    with screen.step(f"Finding {arguments.model}"):
        source = model_file(arguments.model)
    folder = Path(arguments.out or f"{short_name(arguments.model)}-split").expanduser()
    found = _adapter(arguments.adapter, source, layers)
    adapter = found if isinstance(found, Adapter) else None
    if not arguments.replace:
        _keep_adapter(cut_files(source, folder)["device"], adapter)
    proofs: list[CutCheck] = []

    def check(drafts: Mapping[Part, Path]) -> None:
        with screen.step("Running both sides beside the whole model"):
            proofs.append(check_cut(source, drafts))

    with screen.bar(f"Cutting {source.name}, in bytes") as so_far:
        tensors = None if adapter is None else adapter.tensors
        files = cut_model(source, layers, folder, adapter=tensors, progress=so_far, check=check)
    _show(screen, source, files, proofs[-1])
    if adapter is None:
        if isinstance(found, str):
            screen.line("Without an adapter nothing is drafted; there is one for this model:", style="bold")
            screen.line(f"  {found}")
            screen.line("Then cut it again. To train one:")
        else:
            screen.line("Without an adapter nothing is drafted; to train one:", style="bold")
        screen.line(f"  disco adapter train {arguments.model} --layers {layers} --out {files['device']}")
    else:
        screen.line(
            f"The adapter ({adapter.facts.block}) drafts the model's own token at "
            f"{adapter.facts.greedy_acceptance:.0%} of the positions, measured on prompts it never saw."
        )
    return 0


def _adapter(named: str | None, source: Path, layers: int) -> Adapter | str | None:
    """Return the adapter that the device's file gets, or what to type to get it.

    Raises:
        ModelFileError: the named one is not usable, or for another model.
    """
    if named == "none":
        return None
    if named is None:
        return known_adapter(source, layers)
    adapter = read_adapter(Path(named).expanduser())
    fits(adapter, source, layers)
    return adapter


def _keep_adapter(device: Path, new: Adapter | None) -> None:
    """Raise ConfigurationError where a file holds an adapter that was trained, and is not the new one."""
    if not device.exists():
        return
    try:
        trained = read_layer_file(device, "device").has_adapter
        if new is not None and holds(device, new):
            return
    except ModelFileError:
        return
    if trained:
        raise ConfigurationError(
            f"{device} holds an adapter that was trained, and would lose it. Name another folder with --out, or add "
            "--replace."
        )


def _show(screen: Screen, source: Path, files: Mapping[Part, Path], proof: CutCheck) -> None:
    known = read_layer_file(files["device"], "device")
    size = {part: file.stat().st_size for part, file in files.items()}
    screen.table(
        "",
        ("file", "MB", "for", "holds"),
        [
            (file, f"{size[part] / 1e6:.1f}", "cloud" if part == "cloud" else "device", _WHAT[part])
            for part, file in files.items()
        ],
    )
    here = 1 - size["cloud"] / source.stat().st_size
    screen.line(
        f"The device keeps {known.layers} of {known.total_layers} layers, the embedding and the head: {here:.0%} of "
        f"the model's bytes. The cloud gets the other layers, and neither vocabulary nor head."
    )
    same = "the same logits, bit for bit" if proof.delta == 0 else f"logits within {proof.delta:.2g}"
    screen.line(f"Checked with {proof.tokens} tokens: {same}, as the whole model.")
    screen.line()
    screen.line("Next:", style="bold")
    screen.line(f"  on the server, with a copy of that file:  disco serve --layers {files['cloud'].name}")
    screen.line(
        f'  on the device:  tiers=[disco.Split(device="{files["device"]}", base_url="http://SERVER/v1")]'
    )
    screen.line(f"  what the cloud can read of your texts:  disco split audit {files['device']}")
