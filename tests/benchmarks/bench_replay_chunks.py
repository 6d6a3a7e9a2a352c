"""Long traces: peak memory and speed of a replay in chunks, over traces of 1, 4 and 16 million requests.

Each trace is replayed in a process of its own, whose peak resident memory is what the operating system says it was.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers.measuring import Columns, options

from disco.cost import PAPER_DEVICE_CONSTRAINED
from disco.profiles import load_device, load_server
from disco.replay import Arm, scenario_for, sweep_chunks
from disco.replay.workload.trace_survey import survey

CHUNK_ROWS = 1 << 18
ARMS = [Arm("wait_time", 0.3), Arm("random", 0.3), Arm("server_only", 0.0)]


def write(path: Path, requests: int) -> None:
    """A trace of that many requests, half of which know the server's time to first token."""
    types = {"arrival_s": pa.float64(), "prompt_tokens": pa.int64(), "output_tokens": pa.int64()}
    schema = pa.schema(types | {"ttft_s": pa.float64()})
    rng = np.random.default_rng(1)
    at_s = 0.0
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, requests, CHUNK_ROWS):
            n = min(CHUNK_ROWS, requests - start)
            arrival_s = at_s + rng.exponential(0.01, n).cumsum()
            at_s = float(arrival_s[-1])
            ttft_s = 0.25 + 0.15 * rng.pareto(2.2, n)
            prompts, answers = (
                np.clip(rng.lognormal(middle, spread, n), 1, most).astype(np.int64)
                for middle, spread, most in ((4.0, 1.0, 8_000), (4.5, 0.8, 2_000))
            )
            columns = [arrival_s, prompts, answers, pa.array(ttft_s, mask=rng.random(n) < 0.5)]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=CHUNK_ROWS)


def replay(path: str) -> None:
    """In the child process: survey, replay, and print what it took as JSON."""
    device, server = load_device("pixel7pro-bloom-1.1b"), load_server("gpt-4o-mini-2024")
    scenario = scenario_for(device, server, exchange_rate=PAPER_DEVICE_CONSTRAINED)
    began_at = time.perf_counter()
    surveyed = survey(path, chunk_rows=CHUNK_ROWS)
    surveyed_at = time.perf_counter()
    cells = sweep_chunks(path, [scenario], ARMS, chunk_rows=CHUNK_ROWS, surveyed=surveyed)
    took_s = time.perf_counter() - surveyed_at
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"requests": cells[0].summary.requests, "survey_s": surveyed_at - began_at, "replay_s": took_s}
    print(json.dumps({**found, "peak_mib": peak_kib / 1024}))


def main() -> None:
    millions = options(__doc__, millions=([1.0, 4.0, 16.0], "of requests, of each trace")).millions
    print(f"{len(ARMS)} arms, chunks of {CHUNK_ROWS:,} requests, Parquet, one process\n")
    table = Columns(
        "requests >12, | file MiB >10.0f | survey s >10.2f | replay s >10.2f | "
        "arms × requests/s >18,.0f | peak MiB >10.0f"
    )
    with tempfile.TemporaryDirectory(prefix="disco-bench-") as folder:
        path = Path(folder) / "trace.parquet"
        for million in millions:
            write(path, int(million * 1_000_000))
            command = [sys.executable, __file__, "--replay", str(path)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            speed = found["requests"] * len(ARMS) / found["replay_s"]
            took = found["survey_s"], found["replay_s"]
            table.row(found["requests"], path.stat().st_size / 2**20, *took, speed, found["peak_mib"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--replay"]:
        replay(sys.argv[2])
    else:
        main()
