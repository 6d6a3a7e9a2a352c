"""The first word after a restart, with a long system prompt: with the saved prompt and without, by turns.

    python tests/benchmarks/warm/bench_first_word.py

Every figure is of a process of its own, which loads the model and asks one question behind a system prompt of --tokens
tokens. One earlier process has asked another question behind the same system prompt and has saved it. The question that
is measured was never asked before. Times are from the request to the first word, the load of the model included. "from
launch" is the ratio counted from the start of the interpreter, "CPU" the processor time from the request to the first
word, which depends less on what else the machine does. The model's file and the saved prompt are in the system's cache,
as after a restart of a program.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.measuring import Columns, met, options

from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.sequences import SequenceModel
from disco.endpoints.saved_prompts import saved_prompts

TARGET = 5.0
PROGRAM = Path(__file__).with_name("answer_process.py")


def system_prompt(local: str, tokens: int) -> str:
    """Return rules of a shop that have at least so many tokens."""
    sizes = {"context_tokens": 512, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
    model = SequenceModel(resolve_model(local), **sizes, keep_loading=lambda: True)
    text, number = "You work in a shop for garden tools. Keep to these rules.", 0
    while len(model.tokenize(text, special=False)) < tokens:
        number += 1
        text += f" Rule {number}: whoever asks for tool {number} learns that it costs {7 * number} euros."
    model.close()
    return text


def ask(system: str, question: str, **given: Any) -> dict[str, Any]:
    """Start a process that asks the question; return its report."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    command = [sys.executable, str(PROGRAM), repr(time.time()), json.dumps({"messages": messages, **given})]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(ran.stdout.splitlines()[-1])


def ratio_of(given: Any) -> float:
    """Print the row, and return its ratio."""
    system = system_prompt(given.local, given.tokens)
    columns = Columns(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        how = {"local": given.local}
        made = ask(system, "What is a spade?", **how, prompt_cache=folder)
        (saved,) = saved_prompts(folder)
        found: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
        for turn in range(given.turns):
            for name in ("without", "with") if turn % 2 else ("with", "without"):
                cache = folder if name == "with" else None
                question = f"How much is tool {turn + 3}?"
                found[name].append(ask(system, question, **how, prompt_cache=cache))
        assert [one["text"] for one in found["with"]], "no answer"
        assert all(one["cached_tokens"] == saved.tokens for one in found["with"])
        assert all(one["cached_tokens"] == 0 for one in found["without"])
    medians = {
        name: {
            key: statistics.median(one[key] for one in reports)
            for key in ("first_word_s", "from_launch_s", "cpu_s")
        }
        for name, reports in found.items()
    }
    ratio = medians["without"]["first_word_s"] / medians["with"]["first_word_s"]
    whole = medians["without"]["from_launch_s"] / medians["with"]["from_launch_s"]
    columns.row(
        found["with"][0]["prompt_tokens"],
        saved.tokens,
        saved.size_bytes / 2**20,
        medians["without"]["first_word_s"],
        medians["with"]["first_word_s"],
        ratio,
        whole,
        medians["without"]["cpu_s"],
        medians["with"]["cpu_s"],
        made["closing_s"],
    )
    return ratio


COLUMNS = (
    "prompt >7 | saved >6 | MiB >5.1f | without s >10.2f | with s >7.2f | ratio >6.1f | "
    "from launch >12.1f | CPU without s >14.2f | with s >7.2f | closing s >10.2f"
)


def main() -> None:
    """Print the table and the verdict."""
    given = options(
        __doc__,
        local=("smollm2-135m", "the model"),
        tokens=(1500, "length of the system prompt"),
        turns=(5, "processes of each kind"),
    )
    ratio = ratio_of(given)
    print(f"target: at least {TARGET:g} times sooner: {ratio:.1f}, {met(TARGET, ratio)}")


if __name__ == "__main__":
    main()
