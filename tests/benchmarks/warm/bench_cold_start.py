"""How long the model takes to load, with its file in the system's cache and without, beside the DiSCo paper's figures.

    python tests/benchmarks/warm/bench_cold_start.py

SmolLM2-135M as it comes (Q4_1), and as Q8_0 and F16 made from that file. Each figure is of a process of its own.
"warm": the system's cache holds the file. "cold": the file was dropped from it before (posix_fadvise, DONTNEED); the
share that stayed is printed, from mincore. The host of a virtual machine may still hold the file: then "cold" is not
the disk's time. Of --turns times, the least is printed: other work on the machine only adds. First word: of a prompt
of 20 tokens, behind the load. The paper's Table 4 has other models on other machines: what can be compared is that
loading takes many times the first word's time, not the seconds.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.measuring import Columns, options

from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised

PROGRAM = """
import json, sys, time
from pathlib import Path
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
sizes = {"context_tokens": 2048, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
from disco.endpoints.llamacpp.model.library import load_library
load_library()  # as in a program that has loaded a model before
began_at = time.perf_counter()
model = SequenceModel(Path(sys.argv[1]), **sizes, keep_loading=lambda: True)
loaded_at = time.perf_counter()
text = "Tell me about the sea, and why it is as salty as it is, in one short sentence."
model.compute([Rows(0, 0, model.tokenize(text, special=False)[:20], 19)])
model.logits()
print(json.dumps([loaded_at - began_at, time.perf_counter() - loaded_at]))
"""
PAPER = (  # Table 4 of DiSCo: GPU, size, load s
    *(("RTX 3060", size, s) for size, s in (("0.5B", 1.29), ("1.5B", 2.48), ("3B", 4.45))),
    *(("A40", size, s) for size, s in (("0.5B", 1.53), ("1.5B", 3.12), ("3B", 5.72), ("7B", 13.43))),
)


def drop(path: Path) -> None:
    """Ask the system to forget what it holds of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def held(path: Path) -> float:
    """Return the share of a file that is in the system's cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        there = (ctypes.c_ubyte * pages)()
        begin = ctypes.c_char.from_buffer(view)
        ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(len(view)), there)
        del begin
        return sum(page & 1 for page in there) / pages


def start(path: Path) -> tuple[float, float, float]:
    """Return the seconds that a process takes to load the file, to read a prompt, and altogether."""
    began_at = time.perf_counter()
    command = [sys.executable, "-c", PROGRAM, str(path)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    load_s, first_s = json.loads(ran.stdout.splitlines()[-1])
    return load_s, first_s, time.perf_counter() - began_at


def main() -> None:
    """Print the table."""
    given = options(__doc__, kinds=["Q8_0", "F16"], turns=5, local="smollm2-135m")
    names = (
        "file <6 | MiB >6.0f | cold s >7.2f | warm s >7.2f | process, cold s >16.2f | process, warm s >16.2f | "
        "first word s >13.3f | load / first >12.1f | held when cold >14.0%"
    )
    source = resolve_model(given.local)
    with tempfile.TemporaryDirectory() as folder:
        # A copy: what another process has mapped stays in the system's cache.
        own = Path(shutil.copy(source, folder))
        files = {"Q4_1": own} | {kind: requantised(source, kind, Path(folder)) for kind in given.kinds}
        columns = Columns(names)
        for name, path in files.items():
            found: dict[str, list[tuple[float, float, float]]] = {"cold": [], "warm": []}
            shares = []
            start(path)
            for _ in range(given.turns):
                drop(path)
                shares.append(held(path))
                found["cold"].append(start(path))
                found["warm"].append(start(path))
            cold_s, warm_s = (min(load for load, _, _ in found[kind]) for kind in ("cold", "warm"))
            cold_all_s, warm_all_s = (min(whole for _, _, whole in found[kind]) for kind in ("cold", "warm"))
            first_s = min(first for _, first, _ in found["warm"])
            size = path.stat().st_size / 2**20
            columns.row(
                name, size, cold_s, warm_s, cold_all_s, warm_all_s, first_s, warm_s / first_s, max(shares)
            )
    print("\nDiSCo's Table 4, as printed: load time, s, against a first token after 0.03 to 0.15 s")
    for machine in dict.fromkeys(gpu for gpu, _, _ in PAPER):
        print(f"  {machine}: " + ", ".join(f"{size} {s:.2f}" for gpu, size, s in PAPER if gpu == machine))


if __name__ == "__main__":
    main()
