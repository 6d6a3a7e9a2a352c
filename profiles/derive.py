"""Derive the shipped server and length profiles from public traces; each profile names its trace as its source.

    python profiles/derive.py DATA_FOLDER [OUTPUT_FOLDER]

DATA_FOLDER holds `ttft_deepseek_v3_2025/ttft.csv`, `ttft_gpt41nano_2026/ttft.csv`,
`ttft_coder543_2024/ttft.csv`, `ttft_llmperf_leaderboard_2023/ttft.csv` (columns provider, model, run,
ttft_s, tpot_s, error), `arrivals_azure_2023/conv.csv` (prompt_tokens, output_tokens), and two files of
`lengths_alpaca/` (prompt_tokens, output_tokens).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from disco.profiles import LengthsProfile, QuantileTable, ServerProfile, save_profile

LLMPERF = "27aa9b6a6c4282f6d5599b9199fbb57256a2dcd8"
HOSTED_LLAMA = "LLaMA-3.1-70b (hosted)"
FAST = (
    "A fast server. No trace of Command is public. Of all servers here this one is nearest to the paper's forecasting "
    "errors for Command: there 0.09 s are 39 %, which is a TTFT of about 0.23 s. This server varies less: 0.06 s are "
    "25 %."
)
COMMENT = "Written by profiles/derive.py from the source named below."
# Dense where most values are and in the tail, so that the mean between two levels is nearly exact.
LEVELS = (
    0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75,
    0.8, 0.83, 0.86, 0.88, 0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.9925,
    0.995, 0.9975, 0.999, 1.0,
)  # fmt: skip

Row = dict[str, str]


def main(arguments: list[str]) -> int:
    """Write all profiles; the folder of this script is the default output."""
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write(__doc__ or "")
        return 2
    data = Path(arguments[0])
    out = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parent
    profiles: list[ServerProfile | LengthsProfile] = [*servers(data), azure(data), alpaca(data)]
    for profile in profiles:
        sys.stdout.write(f"{save_profile(profile, out / f'{profile.name}.toml', comment=COMMENT)}\n")
    return 0


def servers(data: Path) -> Iterable[ServerProfile]:
    """Yield the server profiles."""
    yield server(
        data / "ttft_deepseek_v3_2025/ttft.csv",
        lambda row: row["run"] == "ancient-rome",
        name="deepseek-v3-2025",
        source="github.com/tom-doerr/llm_api_testing, commit 66a28f184a8cd2cca4e567003692584edca93090",
        licence="MIT",
        provider="deepseek",
        model="deepseek-chat (DeepSeek-V3)",
        collected="2025-01-11 to 2025-01-14, around the clock",
        stands_for="DeepSeek-V2.5",
        conditions="official API, one request at a time, one fixed prompt of about 6 tokens",
        notes="Failed requests were not logged. The source counts words, not tokens, so there is no tpot.",
        price="deepseek-v2.5",
    )
    yield server(
        data / "ttft_gpt41nano_2026/ttft.csv",
        lambda row: "@20260127" in row["run"],
        name="gpt-4.1-nano-2026",
        source="github.com/johnsonafool/llmperf-test, commit c15ec8c38518756a3c6af1f51fb434865410628f",
        licence="Apache-2.0",
        provider="openai",
        model="gpt-4.1-nano",
        collected="runs of 2026-01-27",
        stands_for="GPT-4o-mini",
        conditions="official API, 1 to 50 requests at once, prompts of 68 to 12207 tokens (half below 165)",
        notes="Tokens were counted with the Llama tokenizer, not the model's own.",
        price="gpt-4o-mini",
    )
    yield server(
        data / "ttft_coder543_2024/ttft.csv",
        lambda row: row["model"] == "gpt-4o-mini",
        name="gpt-4o-mini-2024",
        source="github.com/coder543/llm-speed-benchmark, commit ace686c7f51f0e649d3f321fa6e97a80a7b26fdd",
        licence="MIT",
        provider="openai",
        model="gpt-4o-mini",
        collected="July and August 2024",
        conditions="official API, one request at a time, one fixed prompt of about 78 tokens",
        notes="Too few rows for a tail: P99 lies between the two slowest. TTFT rounded to 0.01 s at source.",
        price="gpt-4o-mini",
    )
    for provider, note, stands_for, price in (
        ("together", "A server with little variation.", HOSTED_LLAMA, "llama-3.1-70b-hyperbolic"),
        ("replicate", "A server with a very long tail.", HOSTED_LLAMA, "llama-3.1-70b-hyperbolic"),
        ("anyscale", FAST, "Command", "command"),
    ):
        yield server(
            data / "ttft_llmperf_leaderboard_2023/ttft.csv",
            _hosted_by(provider),
            name=f"llama-2-70b-{provider}-2023",
            source=f"github.com/ray-project/llmperf-leaderboard, commit {LLMPERF}",
            licence="Apache-2.0",
            provider=provider,
            model="llama-2-70b-chat",
            collected="2023-12-19, 03:00 PST",
            stands_for=stands_for,
            conditions="client in AWS us-west-2, 5 requests at once, prompt 550 tokens, about 150 generated",
            notes=note,
            price=price,
        )


def _hosted_by(provider: str) -> Callable[[Row], bool]:
    return lambda row: (row["provider"], row["model"]) == (provider, "llama-2-70b-chat")


def server(path: Path, keep: Callable[[Row], bool], **about: Any) -> ServerProfile:
    """Return a server profile of the successful requests that `keep` selects."""
    rows = [row for row in read(path) if keep(row) and not row["error"] and row["ttft_s"]]
    tpot_s = [float(row["tpot_s"]) for row in rows if row["tpot_s"]]
    return ServerProfile(
        **about,
        rows=len(rows),
        ttft_s=table([float(row["ttft_s"]) for row in rows], 4),
        tpot_s=table(tpot_s, 6) if tpot_s else None,
    )


def azure(data: Path) -> LengthsProfile:
    """Return prompt and answer lengths of a conversation service."""
    rows = read(data / "arrivals_azure_2023/conv.csv")
    return LengthsProfile(
        name="lengths-azure-conv-2023",
        source=(
            "github.com/Azure/AzurePublicDataset, commit b469a113cedca53ddc3bdea71a143dc4b7d8700c, "
            "AzureLLMInferenceTrace_conv.csv; cite Patel et al., Splitwise, ISCA 2024"
        ),
        licence="CC-BY-4.0",
        collected="2023-11-16, about one hour",
        notes="A service's conversations with their history: far longer prompts than a first question.",
        rows=len(rows),
        prompt_tokens=table([float(row["prompt_tokens"]) for row in rows], 0),
        output_tokens=table([float(row["output_tokens"]) for row in rows], 0),
    )


def alpaca(data: Path) -> LengthsProfile:
    """Return lengths of first questions: prompts as instructions, answers as a chat model writes them."""
    prompts = read(data / "lengths_alpaca/alpaca_lengths_o200k.csv")
    answers = read(data / "lengths_alpaca/alpaca_en_demo_lengths_o200k.csv")
    return LengthsProfile(
        name="lengths-alpaca-2023",
        source=(
            "prompts: original Alpaca records (Antelofski/alpaca-lora alpaca_small.json, commit 4247f486, and "
            "wushihong615/LLM-backdoor-detection alpaca_data.json, commit f25cdec); answers: hiyouga/LLaMA-Factory "
            "data/alpaca_en_demo.json, commit ff6d4d12. Lengths only, counted with o200k_base"
        ),
        licence="lengths only; the texts that were counted are CC BY-NC 4.0 and Apache-2.0",
        collected="2023 (prompts), 2024 (answers)",
        notes="First questions without a system prompt or history: far shorter than a service's conversations.",
        rows=len(prompts),
        prompt_tokens=table([float(row["prompt_tokens"]) for row in prompts], 0),
        output_tokens=table([float(row["output_tokens"]) for row in answers], 0),
    )


def table(values: list[float], digits: int) -> QuantileTable:
    """Return the quantile table of a sample, rounded to `digits` decimals."""
    quantiles = np.round(np.quantile(values, LEVELS), digits)
    return QuantileTable(
        levels=LEVELS,
        values=tuple(float(value) for value in quantiles),
        mean=round(float(np.mean(values)), max(digits, 1)),
    )


def read(path: Path) -> list[Row]:
    """Return all rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
