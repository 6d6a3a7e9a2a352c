"""How exactly the parts of a cut model compute what the whole model does, beside the whole model's own rounding.

    python tests/benchmarks/split/bench_exact.py [--kinds Q8_0 F16] [--layers 1 2 3] [--tokens 1000]

Prints Markdown. A cell is the largest difference of a logit, and how many of the most probable next tokens are others.
Small chunks take long, so they are computed for the first tokens only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import Part
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel

TEXT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
CONTEXT_TOKENS, ALL = 1024, 1024
# Tokens of a chunk -> the part of the text that is computed so.
CHUNKS = {ALL: 1.0, 64: 1.0, 16: 0.5, 1: 0.25}
WIRES: dict[str, Any] = {"float32": np.float32, "fp16": np.float16}
THREADS = max(1, (os.cpu_count() or 2) - 1)
OPTIONS: dict[str, Any] = {
    "context_tokens": CONTEXT_TOKENS,
    "threads": THREADS,
    "batch_tokens": ALL,
    "gpu_layers": 0,
    "keep_loading": lambda: True,
}
Logits = npt.NDArray[np.float32]


def chunked(
    ids: Sequence[int], chunk: int, compute: Callable[[int, Sequence[int]], Iterable[Logits]]
) -> Logits:
    """Return the logits of all tokens, computed chunk by chunk."""
    rows: list[Logits] = []
    for at in range(0, len(ids), chunk):
        rows.extend(compute(at, ids[at : at + chunk]))
    return np.array(rows)


def of_whole(model: SequenceModel, ids: Sequence[int], chunk: int) -> Logits:
    def compute(at: int, some: Sequence[int]) -> list[Logits]:
        model.compute([Rows(0, at, some)])
        return [model.logits(place).copy() for place in range(len(some))]

    model.cut(0, 0)
    return chunked(ids, chunk, compute)


class Split:
    """The three parts, loaded."""

    def __init__(self, files: dict[Part, Path]) -> None:
        sizes: dict[str, Any] = {"context_tokens": CONTEXT_TOKENS, "threads": THREADS, "most_rows": ALL}
        self.device = DeviceModel(files["device"], **OPTIONS)
        self.cloud = StateModel(files["cloud"], "cloud", gpu_layers=0, **sizes)
        self.head = StateModel(files["head"], "head", gpu_layers=0, **sizes)

    def logits(self, ids: Sequence[int], chunk: int, wire: Any) -> Logits:
        def compute(at: int, some: Sequence[int]) -> Logits:
            up = self.device.compute_states(0, at, some, logits_from=len(some)).astype(wire)
            down = self.cloud.compute([StateRows(0, at, up)])[0].astype(wire)
            self.head.cut(0, 0)
            return self.head.compute([StateRows(0, 0, down)])[0].copy()

        self.device.cut(0, 0)
        self.cloud.cut(0, 0)
        return chunked(ids, chunk, compute)

    def close(self) -> None:
        for model in (self.device, self.cloud, self.head):
            model.close()


ties: list[float] = []
"""How much more probable the whole model's choice was than the second, in logits, where the parts chose otherwise."""


def cell(expected: Logits, found: Logits, *, counts: bool = True) -> str:
    delta = np.abs(expected - found).max(1)
    other = expected.argmax(1) != found.argmax(1)
    if counts and other.any():
        best = np.sort(expected[other], axis=1)
        ties.extend((best[:, -1] - best[:, -2]).tolist())
    return f"{delta.max():.2g} ({other.sum()} of {len(other)})"


def row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=["Q8_0", "F16"])
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument(
        "--models", type=Path, help="folder of requantised models, kept (default: a temporary one)"
    )
    given = parser.parse_args()
    names = ["one piece" if chunk == ALL else f"chunks of {chunk}" for chunk in CHUNKS]
    row("weights", "layers here", "states as", *names)
    row(*["---"] * (3 + len(names)))
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.kinds:
            source = requantised(resolve_model("smollm2-135m"), kind, given.models or Path(folder))
            whole = SequenceModel(source, **OPTIONS)
            ids = whole.tokenize(TEXT.read_text(encoding="utf-8"), special=False)[: given.tokens]
            if len(ids) < given.tokens:
                sys.exit(f"the text has {len(ids)} tokens only")
            of_chunk = {chunk: ids[: int(part * len(ids))] for chunk, part in CHUNKS.items()}
            expected = {chunk: of_whole(whole, some, chunk) for chunk, some in of_chunk.items()}
            whole.close()
            noise = [
                cell(expected[ALL][: len(rows)], rows, counts=False) if chunk != ALL else "–"
                for chunk, rows in expected.items()
            ]
            row(kind, "whole model", "its own chunks beside one piece", *noise)
            for layers in given.layers:
                split = Split(cut_model(source, layers, Path(folder)))
                for wire, kind_of in WIRES.items():
                    found = [
                        cell(expected[chunk], split.logits(some, chunk, kind_of))
                        for chunk, some in of_chunk.items()
                    ]
                    row(kind, layers, wire, *found)
                split.close()
    if ties:
        print(
            f"\nWhere the most probable token was another, the whole model preferred its own by "
            f"{max(ties):.2f} at most (median {np.median(ties):.2f}) in {len(ties)} cases."
        )


if __name__ == "__main__":
    main()
