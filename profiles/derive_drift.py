"""Derive the times of servers and the users' arrivals that `python -m papers.drift` ships; each part names its source.

    python profiles/derive_drift.py DATA_FOLDER

DATA_FOLDER holds `ttft_deepseek_v3_2025/ttft.csv`, `ttft_gpt41nano_2026/ttft.csv`,
`ttft_llmperf_leaderboard_2023/ttft.csv` (columns provider, model, run, timestamp, ttft_s, error) and
`arrivals_servegen_2025/client_windows.csv.gz` (columns model, client, window_start_s, rate_rps, iat_cv).
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

OUT = Path(__file__).parent.parent / "disco" / "replay" / "drift" / "data"
LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.85, 0.9, 0.95, 0.98, 1.0)
DAY_WINDOWS, WINDOW_S = 144, 600
USERS = 10
SERVEGEN = "f891d1189eb32b3868dfc443800c4150548c282a"
ABOUT_USERS = (
    "ten clients of a model service: each hour's share of the day's requests, and the coefficient of variation of the "
    "intervals (median of the 600-s windows). The volume is not theirs."
)

Row = dict[str, str]


def main(arguments: list[str]) -> int:
    """Write both files."""
    if len(arguments) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    data = Path(arguments[0])
    write("server_times.toml", server_times(data))
    write("users.toml", users(data / "arrivals_servegen_2025/client_windows.csv.gz"))
    return 0


def write(name: str, lines: list[str]) -> None:
    """Write a file of the package's data."""
    (OUT / name).write_text(
        "\n".join(["# Written by profiles/derive_drift.py.", *lines, ""]), encoding="utf-8"
    )
    sys.stdout.write(f"{OUT / name}\n")


def server_times(data: Path) -> list[str]:
    """Return the quantile tables of three traces, segment by segment in the order of the trace."""
    lines = [f"levels = {list(LEVELS)}"]
    lines += trace(
        "deepseek-v3-2025",
        data / "ttft_deepseek_v3_2025/ttft.csv",
        lambda row: row["timestamp"][:13],
        about="the DeepSeek API (V3) over 70 hours, one segment an hour; requests come one every 82 s",
        source="github.com/tom-doerr/llm_api_testing, commit 66a28f184a8cd2cca4e567003692584edca93090",
        licence="MIT",
        interval_s=82.0,
    )
    lines += trace(
        "gpt-4.1-nano-2026",
        data / "ttft_gpt41nano_2026/ttft.csv",
        lambda row: row["run"],
        about="gpt-4.1-nano in 25 runs of a load test, one segment a run",
        source="github.com/johnsonafool/llmperf-test, commit c15ec8c38518756a3c6af1f51fb434865410628f",
        licence="Apache-2.0",
        interval_s=30.0,
    )
    lines += trace(
        "llmperf-hosts-2023",
        data / "ttft_llmperf_leaderboard_2023/ttft.csv",
        lambda row: f"{row['provider']} {row['model']}",
        about="Llama-2 on eight hosts, one segment a host and model: a client whose provider changes",
        source="github.com/ray-project/llmperf-leaderboard, commit 27aa9b6a6c4282f6d5599b9199fbb57256a2dcd8",
        licence="Apache-2.0",
        interval_s=30.0,
    )
    return lines


def trace(
    name: str,
    path: Path,
    key: Callable[[Row], str],
    *,
    about: str,
    source: str,
    licence: str,
    interval_s: float,
) -> list[str]:
    """Return a trace as a table of TOML: per segment the number of rows and the quantiles at LEVELS, s."""
    segments: dict[str, list[float]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["ttft_s"] and not row["error"]:
                segments[key(row)].append(float(row["ttft_s"]))
    lines = ["", "[[trace]]", f'name = "{name}"', f'about = "{about}"', f'source = "{source}"']
    lines += [f'licence = "{licence}"', f"interval_s = {interval_s}", "segments = ["]
    for segment, times in segments.items():
        values = [round(float(value), 3) for value in np.quantile(times, LEVELS)]
        lines.append(f'  {{ name = "{segment}", rows = {len(times)}, ttft_s = {values} }},')
    return [*lines, "]"]


def users(path: Path) -> list[str]:
    """Return ten clients' days: the share of requests in each hour, and the variation of the intervals.

    Of all clients that sent requests in at least 120 of the first day's 144 windows, ordered by how uneven their day
    is, ten at even distances are taken.
    """
    rates: dict[tuple[str, str], np.ndarray] = {}
    cvs: dict[tuple[str, str], list[float]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            window = int(float(row["window_start_s"]) // WINDOW_S)
            if window < DAY_WINDOWS:
                who = row["model"], row["client"]
                rates.setdefault(who, np.zeros(DAY_WINDOWS))[window] = float(row["rate_rps"])
                if row["iat_cv"]:
                    cvs[who].append(float(row["iat_cv"]))
    busy = [who for who, rate in rates.items() if np.count_nonzero(rate) >= 120 and cvs[who]]
    busy.sort(key=lambda who: (float(rates[who].std() / rates[who].mean()), who))
    chosen = [busy[round(i * (len(busy) - 1) / (USERS - 1))] for i in range(USERS)]
    lines = [
        f'source = "github.com/alibaba/ServeGen, commit {SERVEGEN}; cite arXiv 2505.09999"',
        'licence = "Apache-2.0"',
        f'about = "{ABOUT_USERS}"',
    ]
    for model, client in chosen:
        hourly = rates[model, client].reshape(24, 6).sum(axis=1)
        shares = [round(float(share), 5) for share in hourly / hourly.sum()]
        cv = round(float(np.median(cvs[model, client])), 3)
        lines += ["", "[[user]]", f'client = "{model}/{client}"', f"cv = {cv}", f"hourly = {shares}"]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
