"""Held-out acceptance of an adapter by data size and by block, and the same adapter in torch and in llama.cpp.

First the model writes answers, once; they are kept in --folder, so that the table can be made again with other recipes.
Then an adapter of each block is trained on the first answers up to each size, each for the same processor time, and
measured on held-out answers at temperatures 0 and 0.8 over the whole vocabulary. Last, the best one is put into a
device's file, and llama.cpp's drafts on the same answers are compared with torch's.

    python tests/benchmarks/split/bench_adapter.py --model MODEL.gguf --folder /tmp/answers --sizes 10000,40000

Needs the extra `adapter`. Answers to learn from take about 10 ms a token on two free cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from disco.adapter.answers import Answer, answer_tokens, load_answers, save_answers
from disco.adapter.making import Order, write_answers
from disco.adapter.model_facts import ModelFacts, read_facts
from disco.adapter.recipe import Recipe
from disco.adapter.training import agreement, train
from disco.endpoints.llamacpp.layers.adapter_file import (
    Adapter,
    AdapterFacts,
    read_adapter,
    weights_name,
    write_adapter,
)
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.model.model_files import resolve_model

LAYERS = 2


class Lines:
    """Prints how far the answers are, now and then."""

    def __init__(self) -> None:
        self.next = 0

    def writing(self, what: str, tokens: int, seconds: float) -> None:
        if tokens >= self.next:
            self.next = tokens + 5_000
            print(f"{what}: {tokens:,} tokens after {seconds:.0f} s", flush=True)

    def training(self, progress: object) -> None: ...


def answers_in(folder: Path, facts: ModelFacts, order: Order) -> tuple[list[Answer], list[Answer]]:
    """Return held-out answers and those to learn from, written now where the folder has none."""
    if not list(folder.glob("train-*.npz")):
        held_out, answers = write_answers(order, facts, Lines(), share=1.0)
        folder.mkdir(parents=True, exist_ok=True)
        save_answers(folder / "heldout-000.npz", held_out)
        for shard, begin in enumerate(range(0, len(answers), 100)):
            save_answers(folder / f"train-{shard:03}.npz", answers[begin : begin + 100])
    held_out, answers = (
        [one for path in sorted(folder.glob(f"{kind}-*.npz")) for one in load_answers(path)]
        for kind in ("heldout", "train")
    )
    return held_out, answers


def first(answers: list[Answer], tokens: int) -> list[Answer]:
    """Return the first answers, up to so many tokens."""
    ends = np.cumsum([one.tokens for one in answers])
    return answers[: max(1, int(np.searchsorted(ends, tokens, side="right")))]


def in_llama_cpp(source: Path, adapter: Adapter, held_out: list[Answer]) -> dict[str, float]:
    """Return the acceptance of an adapter's drafts by llama.cpp, at both temperatures."""
    with tempfile.TemporaryDirectory() as folder:
        device = cut_model(source, LAYERS, Path(folder), adapter=adapter.tensors)["device"]
        model = DeviceModel(
            device, context_tokens=512, threads=1, batch_tokens=384, gpu_layers=0, keep_loading=lambda: True
        )
        model.forget()
        hits: dict[str, list[bool]] = {}
        for one in held_out:
            model.cut(0, 0)
            model.compute_states(0, 0, one.ids[:-1].tolist(), logits_from=one.prompt_tokens - 1)
            places = range(one.prompt_tokens - 1, len(one.ids) - 1)
            best = [int(model.logits(place).argmax()) for place in places]
            hits.setdefault(f"{one.temperature:g}", []).extend((best == one.top_ids[:, 0]).tolist())
        model.close()
    return {temperature: float(np.mean(found)) for temperature, found in hits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="a whole model")
    parser.add_argument("--folder", type=Path, required=True, help="of the answers, and of what was trained")
    parser.add_argument("--tokens", type=int, default=200_000, help="of answers, where they are written now")
    parser.add_argument("--minutes", type=float, default=30, help="for the answers, at most")
    parser.add_argument("--sizes", default="10000,20000,40000,80000", help="of the data, tokens")
    parser.add_argument("--blocks", default="attention,full")
    parser.add_argument("--train-s", type=float, default=120, help="processor time of each training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--recipe", default="{}", help="fields of the recipe, JSON")
    parser.add_argument(
        "--check", type=Path, help="only compare this adapter in llama.cpp with what its file says"
    )
    given = parser.parse_args()
    source = resolve_model(given.model)
    facts = read_facts(source, LAYERS)
    order = Order(source, LAYERS, tokens=given.tokens, seconds=60 * given.minutes, threads=given.threads)
    held_out, answers = answers_in(given.folder, facts, order)
    print(f"held out: {len(held_out)} answers, {answer_tokens(held_out):,} tokens")
    if given.check is not None:
        adapter = read_adapter(given.check)
        print(f"torch: {adapter.facts.greedy_acceptance:.4f} {adapter.facts.sampled_acceptance:.4f}")
        print(f"llama.cpp, {source.name}: {in_llama_cpp(source, adapter, held_out)}")
        return

    import torch

    torch.set_num_threads(given.threads)
    print("| block | data, tokens | passes | seen | T = 0 | T = 0.8 |\n|---|---|---|---|---|---|")
    for block in given.blocks.split(","):
        for size in map(int, given.sizes.split(",")):
            some = first(answers, size)
            recipe = Recipe(block=block, **{"epochs": 1e9, **json.loads(given.recipe)})
            seen: list[int] = []
            layer = train(
                facts,
                some,
                held_out,
                recipe,
                until=time.process_time() + given.train_s,
                told=lambda progress, seen=seen: seen.append(progress.tokens),
                clock=time.process_time,
            )
            reached = [
                agreement(facts, layer, [one for one in held_out if one.temperature == temperature])
                for temperature in (0.0, 0.8)
            ]
            tokens = answer_tokens(some)
            print(
                f"| {block} | {tokens:,} | {seen[-1] / tokens:.1f} | {seen[-1]:,} | {reached[0]:.3f} "
                f"| {reached[1]:.3f} |",
                flush=True,
            )
            write_adapter(
                given.folder / f"{block}-{size}.npz",
                layer.tensors(),
                AdapterFacts(weights_name(source), LAYERS, block, tokens, *reached, made="bench_adapter.py"),
            )


if __name__ == "__main__":
    sys.exit(main())
