"""The same bytes with and without drafting: SmolLM2 drafts for SmolLM2 in two processes, in every combination.

A verify server runs in a process of its own with 8 slots and one thread; the drafters are here. First the target alone
answers each prompt, one answer at a time (window 0). Then, 8 answers at once, each combination of target, draft, window
and temperature answers the same prompts with the same seeds; answers with odd numbers have two windows in flight. The
ids, the text and the end of each answer are compared with those of the target alone.

Where they differ, the target's own context up to there is computed here, one token at a time, and the gap between its
two best scores is printed: logits at temperature 0, else logits over temperature with the keyed noise. It is a near-tie
if the gap is below the noise of windows: by how much the distance of the two best logits changes when the same rows are
computed in windows, or beside other answers; that is measured here, too.

Windows that choose are forced to draft at least one token. Where "adaptive" has no weights, "optimal" and "dynamic"
stand for it. The draft "none" is the target alone again, but 8 answers at once.

Results are added to a file of JSON lines, and answers found there are not asked for again. So a run may be stopped, and
go on with more prompts: begin with --prompts 8. --report only compares what is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import anyio
import openai
from helpers.measuring import options
from near_ties import Lab, Noise
from pair_lab import KEY, Asked, ask, at_hand, device, drafter_of, model_file, prompts, verify_server

import disco.speculate
from disco.endpoints.drafter import NgramDrafter
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative.pairing import Pairing

ALONE = ("none", "0")
# What stands for "adaptive" while it has no weights.
HAS_WEIGHTS = (Path(disco.speculate.__path__[0]) / "data" / "awc.json").is_file()
ADAPTIVE = ["adaptive"] if HAS_WEIGHTS else ["optimal", "dynamic"]


@dataclass(frozen=True)
class Cell:
    """A combination. `window` "0" is the target alone, one answer at a time."""

    target: str
    draft: str
    window: str
    temperature: float


def cells(targets: list[str], drafts: list[str], windows: list[str], temperatures: list[float]) -> list[Cell]:
    """All combinations, those of one target and one draft behind each other."""
    found = []
    for target in targets:
        found += [Cell(target, *ALONE, temperature) for temperature in temperatures]
        for draft in drafts:
            for window in ["alone"] if draft == "none" else windows:
                found += [Cell(target, draft, window, temperature) for temperature in temperatures]
    return found


class Results:
    """The file of answers. Mutable: `found`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[tuple[Cell, int], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                self.found[Cell(**one["cell"]), one["prompt"]] = one

    def add(self, cell: Cell, prompt: int, asked: Asked) -> None:
        report = asked.report
        one = {
            "cell": asdict(cell),
            "prompt": prompt,
            "ids": asked.watch.ids,
            "text": asked.text,
            "finish_reason": asked.finish_reason,
            "rounds": report.rounds,
            "drafted": report.drafted,
            "judged": report.judged,
            "accepted": report.accepted,
            "distributed_tokens": report.distributed_tokens,
        }
        self.found[cell, prompt] = one
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")


async def main(given: Any) -> None:
    results, texts = Results(Path(given.out)), prompts()[: given.prompts]
    given.targets, given.drafts = at_hand(given.targets), at_hand(given.drafts)
    wanted = cells(given.targets, given.drafts, given.windows, given.temperatures)
    todo = [cell for cell in wanted if any((cell, n) not in results.found for n in range(len(texts)))]
    if not given.report:
        for target in dict.fromkeys(cell.target for cell in todo):
            await run_target(target, [cell for cell in todo if cell.target == target], texts, results, given)
    report(wanted, texts, results, given)


async def run_target(target: str, todo: list[Cell], texts: list[str], results: Results, given: Any) -> None:
    with verify_server(model_file(target), slots=8) as (_, port):
        say(f"{target}: verify server on port {port}")
        async with openai.AsyncOpenAI(
            api_key=KEY, base_url=f"http://127.0.0.1:{port}/v1", max_retries=0, timeout=600
        ) as sdk:
            for draft in dict.fromkeys(cell.draft for cell in todo):
                await run_draft(
                    OpenAIEndpoint(client=sdk),
                    draft,
                    [c for c in todo if c.draft == draft],
                    texts,
                    results,
                    given,
                )


async def run_draft(
    server: OpenAIEndpoint, draft: str, todo: list[Cell], texts: list[str], results: Results, given: Any
) -> None:
    devices = [device(draft) for _ in range(8)] if draft not in ("none", "n-gram") else []
    pairings = [Pairing(drafter_of(one)) for one in devices]
    while len(pairings) < 8:
        pairings.append(Pairing(NgramDrafter() if draft == "n-gram" else None))
    try:
        for one in devices:
            await one.warm_up()
        for pairing in pairings:
            await pairing.ask(server.client)
        for cell in todo:
            began_s = time.monotonic()
            queue = [n for n in range(len(texts)) if (cell, n) not in results.found]
            many = len(queue)
            lanes = pairings[:1] if cell.window == "0" else pairings
            async with anyio.create_task_group() as group:
                for pairing in lanes:
                    group.start_soon(run_lane, server, pairing, cell, queue, texts, results, given.tokens)
            if many:
                say(
                    f"{cell.target} {cell.draft} {cell.window} T={cell.temperature}: {many} in "
                    f"{time.monotonic() - began_s:.1f} s"
                )
    finally:
        for pairing in pairings:
            await pairing.aclose()
        for one in devices:
            await one.aclose()


async def run_lane(
    server: OpenAIEndpoint,
    pairing: Pairing,
    cell: Cell,
    queue: list[int],
    texts: list[str],
    results: Results,
    tokens: int,
) -> None:
    window: str | int = int(cell.window) if cell.window.isdigit() else cell.window
    while queue:
        prompt = queue.pop(0)
        asked = await ask(
            server,
            pairing,
            texts[prompt],
            tokens=tokens,
            temperature=cell.temperature,
            seed=prompt,
            window=1 if window in (0, "alone") else window,
            parallel=1 + prompt % 2,
        )
        results.add(cell, prompt, asked)


def report(wanted: list[Cell], texts: list[str], results: Results, given: Any) -> None:
    content: dict[str, Any] = {"prompts": len(texts), "tokens": given.tokens, "targets": {}}
    for target in dict.fromkeys(cell.target for cell in wanted):
        rows, differing = compare([cell for cell in wanted if cell.target == target], results, len(texts))
        noise, looked = None, []
        if rows:
            noise, looked = look(target, differing, texts, results)
        show(target, rows, noise, looked)
        content["targets"][target] = {
            "cells": rows,
            "noise": None if noise is None else noise.summary(),
            "differences": looked,
        }
    if given.json:
        Path(given.json).write_text(json.dumps(content, indent=1), encoding="utf-8")


def compare(
    wanted: Iterable[Cell], results: Results, count: int
) -> tuple[list[dict[str, Any]], list[tuple[Cell, int]]]:
    """One row for each combination with answers, and which answers differ."""
    rows, differing = [], []
    for cell in wanted:
        if cell.window == "0":
            continue
        alone = Cell(cell.target, *ALONE, cell.temperature)
        pairs = [
            (n, results.found[cell, n], results.found[alone, n])
            for n in range(count)
            if (cell, n) in results.found and (alone, n) in results.found
        ]
        if not pairs:
            continue
        others = [
            n
            for n, one, own in pairs
            if any(one[name] != own[name] for name in ("ids", "text", "finish_reason"))
        ]
        differing += [(cell, n) for n in others]
        total = {
            name: sum(one[name] for _, one, _ in pairs)
            for name in ("rounds", "drafted", "judged", "accepted")
        }
        rows.append(
            asdict(cell)
            | {
                "answers": len(pairs),
                "tokens": sum(len(own["ids"]) for _, _, own in pairs),
                "distributed": sum(one["distributed_tokens"] for _, one, _ in pairs),
                "differing": len(others),
                **total,
            }
        )
    return rows, differing


def look(
    target: str, differing: list[tuple[Cell, int]], texts: list[str], results: Results
) -> tuple[Noise, list[dict[str, Any]]]:
    """Measure the target's noise, and its scores where answers differ."""
    lab = Lab(model_file(target))
    try:
        alone = Cell(target, *ALONE, 0.0)
        known = [
            (texts[n], results.found[alone, n]["ids"])
            for n in range(len(texts))
            if (alone, n) in results.found
        ]
        noise = lab.noise(known)
        places: dict[tuple[int, float, int], dict[str, Any]] = {}
        seen: dict[tuple[int, float, int], list[str]] = defaultdict(list)
        for cell, n in differing:
            own = results.found[Cell(target, *ALONE, cell.temperature), n]["ids"]
            found = lab.difference(
                texts[n], own, results.found[cell, n]["ids"], temperature=cell.temperature, seed=n
            )
            key = n, cell.temperature, found.at
            seen[key].append(f"{cell.draft}/{cell.window}")
            scale = 1.0 if cell.temperature == 0 else cell.temperature
            places[key] = {
                "prompt": n,
                "temperature": cell.temperature,
                "at": found.at,
                "gap": found.gap,
                "between": found.between,
                "near_tie": found.gap <= noise.most / scale,
                "cells": seen[key],
            }
        return noise, list(places.values())
    finally:
        lab.close()


def show(target: str, rows: list[dict[str, Any]], noise: Noise | None, looked: list[dict[str, Any]]) -> None:
    print(f"\n## Target {target}\n")
    if noise is None:
        print("No answers yet.")
        return
    print("| draft | window | T | answers | tokens | drafted for | rounds | acceptance | differing |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in rows:
        rate = f"{one['accepted'] / one['judged']:.3f}" if one["judged"] else "–"
        print(
            f"| {one['draft']} | {one['window']} | {one['temperature']} | {one['answers']} | {one['tokens']} | "
            f"{one['distributed']} | {one['rounds']} | {rate} | {one['differing']} |"
        )
    answers, differing = (sum(one[name] for one in rows) for name in ("answers", "differing"))
    print(f"\n{differing} of {answers} answers differ, {sum(one['tokens'] for one in rows)} tokens in all.")
    print("\nWhat windows change in the distance of the two best logits:\n")
    print("| rows | positions | median | P99 | max |\n|---|---|---|---|---|")
    for way, figures in noise.summary().items():
        print(
            f"| {way} | {figures['positions']} | {figures['median']:.2g} | {figures['p99']:.2g} | "
            f"{figures['max']:.2g} |"
        )
    if not looked:
        return
    print("\nEach place where an answer first differs:\n")
    print("| prompt | T | position | gap of the two best | of the two tokens | near-tie | in |")
    print("|---|---|---|---|---|---|---|")
    for one in looked:
        between = "–" if one["between"] is None else f"{one['between']:.2g}"
        said = "yes" if one["near_tie"] else "NO"
        print(
            f"| {one['prompt']} | {one['temperature']} | {one['at']} | {one['gap']:.2g} | {between} | {said} | "
            f"{', '.join(one['cells'])} |"
        )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    anyio.run(
        main,
        options(
            __doc__,
            prompts=(64, "how many of the prompts"),
            tokens=(64, "most tokens of an answer"),
            targets=(["F16", "Q8_0"], "kinds of weights, such as F16, Q8_0, Q4_0, F32"),
            drafts=(["none", "n-gram", "Q8_0", "Q4_0", "Q2_K"], "drafts"),
            windows=(["4", "8", "1", *ADAPTIVE], "windows; 0 is always run"),
            temperatures=([0.0, 0.8], "temperatures"),
            out=("identity.jsonl", "file of answers, added to"),
            json=("", "file for the figures"),
            report=(False, "compare only"),
        ),
    )
