"""A split model in its three processes: the layer server, the device, and a link between them; and the whole model."""

from __future__ import annotations

import hashlib
import multiprocessing
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "rounds"))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from answer_process import serve
from helpers import tests_path  # noqa: F401 - finds the tests' helpers
from pair_lab import FOLDER, KEY, model_file, prompts
from server.command_process import running

from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.layer_files import Part, cut_files, read_layer_file
from disco.errors import ModelFileError

__all__ = [
    "NOTE",
    "AnswerProcess",
    "Cut",
    "cut",
    "layer_server",
    "model_file",
    "prompts",
    "say",
    "url",
]

HIDDEN = 576  # of SmolLM2-135M
NOTE = (
    "Device, link and layer server share this machine's cores ({cores} here), one thread each; nothing is pinned. What "
    "another process takes is in the live figures and not in the predicted ones."
)


@dataclass(frozen=True)
class Cut:
    """A model's parts, and a name for its adapter that no other one has."""

    files: Mapping[Part, Path]
    adapter: str


def cut(kind: str, layers: int, adapter: str) -> Cut:
    """Cut SmolLM2 with weights of a kind; done once.

    Args:
        kind: of weights, such as Q8_0.
        layers: that the device keeps.
        adapter: a file of `disco adapter train` (.npz); "shipped": disco's own, else "untrained"; "none": nothing is
            drafted; "untrained": one that changes nothing, but is marked as one, so that drafts are made. They are
            seldom right.
    """
    source = model_file(kind)
    tensors = _adapter(adapter, source, layers)
    name = "none"
    if tensors is not None:
        digest = hashlib.sha256(b"".join(tensors[key].tobytes() for key in sorted(tensors))).hexdigest()[:6]
        kept = "untrained" if len(tensors) == 1 else Path(adapter).stem
        name = f"{kept}-{digest}"
    folder = FOLDER / f"split-{layers}-{name}"
    files = cut_files(source, folder)
    try:
        is_cut = all(read_layer_file(file, part).layers == layers for part, file in files.items())
    except ModelFileError:
        is_cut = False
    if not is_cut or min(file.stat().st_mtime for file in files.values()) < source.stat().st_mtime:
        say(f"cutting {source.name} behind layer {layers}, adapter: {name}")
        files = cut_model(source, layers, folder, adapter=tensors)
    return Cut(files, name)


def _adapter(name: str, source: Path, layers: int) -> dict[str, Any] | None:
    if name == "none":
        return None
    if name == "shipped":
        from disco.endpoints.llamacpp.layers.adapter_file import Adapter, known_adapter

        sys.path.append(str(Path(__file__).parents[3] / "examples" / "adapter-smollm2"))
        shipped = known_adapter(source, layers)
        if isinstance(shipped, Adapter):
            return shipped.tensors
        say("there is no adapter for this model: an untrained one drafts")
    if name in ("shipped", "untrained"):
        return {"attn_norm.weight": np.ones(HIDDEN, np.float32)}  # the rest is zeros: nothing is added
    with np.load(name) as file:
        return {key: file[key].astype(np.float32) for key in file.files if key != "facts"}


@contextmanager
def layer_server(cloud: Path, *, slots: int = 8, context: int = 512, threads: int = 1) -> Iterator[int]:
    """Run `disco serve --layers`; give its port."""
    numbers = {"--slots": slots, "--context": context, "--threads": threads}
    options = [str(one) for pair in numbers.items() for one in pair]
    given = ("--layers", str(cloud), *options, "--preset", "private")
    with running(*given, DISCO_SERVER_KEY=KEY) as (_, (_, port)):
        yield port


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


class AnswerProcess:
    """A process that opens endpoints and answers with them; see `answer_process.Answers` for its methods."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._mine, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, KEY), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, method: str, /, **given: Any) -> Any:
        """Call a method there and return what it returns.

        Raises:
            RuntimeError: it raised an error; the text is its traceback.
        """
        self._mine.send((method, given))
        is_well, result = self._mine.recv()
        if not is_well:
            raise RuntimeError(result)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mine.close()  # the process ends
        self._process.join(10)
        self._process.kill()


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
