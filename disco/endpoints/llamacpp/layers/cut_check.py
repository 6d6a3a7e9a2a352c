"""Proves freshly cut files: they are run beside the whole model, in a process of their own.

llama.cpp aborts the whole process on some files that it should refuse, and a file of ours must not end the process of
whoever cuts it. The program is `python -m disco.endpoints.llamacpp.layers.cut_check SOURCE DEVICE CLOUD HEAD`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import Part
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.errors import DiscoError, ModelFileError

__all__ = ["MOST_DELTA", "CutCheck", "check_cut", "compare"]

MOST_DELTA: Final = 0.01
"""Largest difference of a logit that passes. With float32 states there is none where both run the same code."""
_PIECES: Final = (16, 5, 1, 1, 1)  # tokens computed at once: a prompt, a window, steps
_CONTEXT_TOKENS: Final = 256
_MAIN: Final = "disco.endpoints.llamacpp.layers.cut_check"
_REFUSED: Final = 3  # exit status: the error is told on standard output
# What may be kept of the process's last words, as in `host.host_process`.
_LAST_WORDS: Final = re.compile(
    r"GGML_ASSERT\([^\n]{0,200}?\) failed|CUDA error: [a-z ]{0,60}|std::bad_alloc"
)


@dataclass(frozen=True, slots=True)
class CutCheck:
    """What the parts of a model computed, beside the whole model.

    Attributes:
        tokens: how many were compared.
        delta: largest difference of a logit.
        differing: tokens after which the most probable next one is another.
    """

    tokens: int
    delta: float
    differing: int


def check_cut(source: Path, files: Mapping[Part, Path], *, within_s: float = 600.0) -> CutCheck:
    """Run the parts of a model beside the whole one, in a process of its own.

    Args:
        source: the whole model.
        files: the parts.
        within_s: the process is ended after so many seconds.

    Raises:
        ModelFileError: llama.cpp refused a part, or crashed on it, or the parts compute something else.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        _MAIN,
        str(source),
        *(str(files[p]) for p in ("device", "cloud", "head")),
    ]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a plain text
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, a module of ours
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": path},
            timeout=within_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ModelFileError(
            f"The parts of {source.name} were not computed within {within_s:g} s, so they were removed. Cut it where "
            "more memory is free."
        ) from None
    if done.returncode not in (0, _REFUSED):
        words = _LAST_WORDS.search(done.stderr.decode("utf-8", "replace"))
        after = f" after {words[0]}" if words else ""
        raise ModelFileError(
            f"llama.cpp {_ending(done.returncode)}{after} with the parts of {source.name}, so they were removed. "
            "This model cannot be cut with this version of llama-cpp-python, or memory ran out."
        )
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if done.returncode == _REFUSED:
        raise ModelFileError(
            f"llama.cpp refuses the parts of {source.name}, so they were removed: {told['error']}"
        )
    found = CutCheck(**told)
    if not found.delta <= MOST_DELTA:  # NaN as well
        raise ModelFileError(
            f"The parts of {source.name} compute other numbers than the whole model (a logit differs by "
            f"{found.delta:.3g}, and {found.differing} of {found.tokens} next tokens), so they were removed. disco "
            "cannot cut this model."
        )
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended its process with status {code}"
    try:
        return f"crashed ({signal.Signals(-code).name})"
    except ValueError:
        return f"crashed (signal {-code})"


def compare(source: Path, files: Mapping[Part, Path]) -> CutCheck:
    """Run the whole model and then its parts over the same tokens, in the same pieces, in this process."""
    threads = max(1, (os.cpu_count() or 2) - 1)
    options: dict[str, Any] = {
        "context_tokens": _CONTEXT_TOKENS,
        "threads": threads,
        "batch_tokens": _PIECES[0],
        "gpu_layers": 0,
        "keep_loading": lambda: True,
    }
    whole = SequenceModel(source, **options)
    try:
        # Any tokens do, and these need no tokenizer.
        ids = [7919 * place % whole.vocabulary_tokens for place in range(1, sum(_PIECES) + 1)]
        expected = _logits_of_whole(whole, ids)
    finally:
        whole.close()
    found = _logits_of_parts(files, ids, options)
    return CutCheck(
        tokens=len(ids),
        delta=float(np.abs(expected - found).max()),
        differing=int((expected.argmax(1) != found.argmax(1)).sum()),
    )


def _logits_of_whole(whole: SequenceModel, ids: Sequence[int]) -> npt.NDArray[np.float32]:
    rows, at = [], 0
    for count in _PIECES:
        whole.compute([Rows(0, at, ids[at : at + count])])
        rows += [whole.logits(place).copy() for place in range(count)]
        at += count
    return np.array(rows)


def _logits_of_parts(
    files: Mapping[Part, Path], ids: Sequence[int], options: Mapping[str, Any]
) -> npt.NDArray[np.float32]:
    given: dict[str, Any] = {
        "context_tokens": options["context_tokens"],
        "threads": options["threads"],
        "most_rows": options["batch_tokens"],
        "gpu_layers": options["gpu_layers"],
    }
    models: list[DeviceModel | StateModel] = []
    try:
        device = DeviceModel(files["device"], **options)
        models.append(device)
        cloud = StateModel(files["cloud"], "cloud", **given)
        models.append(cloud)
        head = StateModel(files["head"], "head", **given)
        models.append(head)
        device.forget()
        rows, at = [], 0
        for count in _PIECES:
            states = device.compute_states(0, at, ids[at : at + count])
            deep = cloud.compute([StateRows(0, at, states)])[0]
            head.cut(0, 0)
            rows.append(head.compute([StateRows(0, 0, deep)])[0].copy())
            at += count
    finally:
        for model in models:
            model.close()
    return np.concatenate(rows)


def main(paths: Sequence[str]) -> int:
    """Compare, and print what was found as JSON; return the exit status."""
    source, device, cloud, head = map(Path, paths)
    try:
        found = compare(source, {"device": device, "cloud": cloud, "head": head})
    except DiscoError as error:
        print(json.dumps({"error": str(error)}))  # noqa: T201 - to the process that started this one
        return _REFUSED
    print(json.dumps(asdict(found)))  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
