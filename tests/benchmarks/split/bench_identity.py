"""The same bytes from a model cut in two as from the whole one, in three processes, in every combination.

The layer server runs in a process of its own, the device in another, the whole model in a third, each with one thread.
First the whole model answers each prompt, and reads prompts in chunks of each size; then the split model, with chunks
of the same sizes: drafting and not, with float32 and with float16 on the wire. One answer is written at a time, the
seeds are the prompts' numbers. The ids, the text and the end of each answer are compared.

Where they differ, the whole model's own context up to there is computed here, token by token, and the gap between its
two best scores is printed: logits at temperature 0, else logits over temperature with the keyed noise. It is a near-tie
if the gap is below what changes the distance of the two best logits anyway: windows (the same rows computed several at
a time; drafts are verified in such), and, for float16 only, the rounding of states on the wire. Both are measured here.

Results are added to a file of JSON lines, and answers found there are not asked for again. So a run may be stopped, and
go on with more prompts: begin with --prompts 4. --report only compares what is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "rounds"))
sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from helpers.measuring import options
from near_ties import Lab, Noise
from split_lab import AnswerProcess, cut, layer_server, model_file, prompts, say, url

from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.layer_files import Part
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.stop_flag import StopFlag

CONTEXT = 512
WHOLE = "whole"


@dataclass(frozen=True)
class Cell:
    """A combination. `wire` is "whole" for the whole model. `window`: drafted tokens; 0: none are."""

    kind: str
    layers: int
    adapter: str
    wire: str
    chunk: str
    window: int
    temperature: float

    @property
    def whole(self) -> Cell:
        """What it is compared with."""
        return Cell(self.kind, 0, "", WHOLE, self.chunk, 0, self.temperature)


class Results:
    """The file of answers. Mutable: `found`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[tuple[Cell, int], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                self.found[Cell(**one["cell"]), one["prompt"]] = one

    def add(self, cell: Cell, prompt: int, answer: Mapping[str, Any]) -> None:
        one = {"cell": asdict(cell), "prompt": prompt}
        one |= {name: answer[name] for name in ("ids", "text", "finish_reason")}
        one |= {name: answer[name] for name in ("report", "ahead") if name in answer}
        self.found[cell, prompt] = one
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(one) + "\n")


def cells(given: Any, adapter: str) -> list[Cell]:
    """All combinations of the split model, those of one endpoint behind each other."""
    return [
        Cell(given.kind, given.layers, adapter, wire, chunk, window, temperature)
        for wire in given.wires
        for chunk in given.chunks
        for window in given.windows
        if not (window and adapter == "none")
        for temperature in given.temperatures
    ]


def main(given: Any) -> None:
    results, texts = Results(Path(given.out)), prompts()[: given.prompts]
    parts = cut(given.kind, given.layers, given.adapter)
    files, wanted = parts.files, cells(given, parts.adapter)
    if not given.report:
        everything = [*dict.fromkeys(cell.whole for cell in wanted), *wanted]
        todo = [cell for cell in everything if _missing(cell, results, given)]
        say(f"{len(todo)} of {len(everything)} combinations have answers to come")
        wholes, splits = (
            [cell for cell in todo if (cell.wire == WHOLE) is is_whole] for is_whole in (True, False)
        )
        if wholes:
            with AnswerProcess() as process:
                run(process, wholes, files, 0, texts, results, given)
        if splits:
            with layer_server(files["cloud"], context=CONTEXT) as port, AnswerProcess() as process:
                run(process, splits, files, port, texts, results, given)
    report(wanted, files, texts, results, given)


def _missing(cell: Cell, results: Results, given: Any) -> list[int]:
    return [n for n in range(given.prompts) if _is_missing(results.found.get((cell, n)), given.tokens)]


def _is_missing(one: Mapping[str, Any] | None, tokens: int) -> bool:
    """Whether there is no answer, or one that was cut off at fewer tokens."""
    return one is None or (one["finish_reason"] == "length" and len(one["ids"]) < tokens)


def run(
    process: AnswerProcess,
    todo: Sequence[Cell],
    files: Mapping[Part, Path],
    port: int,
    texts: Sequence[str],
    results: Results,
    given: Any,
) -> None:
    opened = None
    for cell in todo:
        kind = (cell.wire, cell.chunk, cell.window)
        if opened != kind:
            process.call("close")
            if cell.wire == WHOLE:
                chunk = CONTEXT if cell.chunk == "all" else int(cell.chunk)
                process.call(
                    "open_whole",
                    name="model",
                    path=model_file(cell.kind),
                    chunk=chunk,
                    context_tokens=CONTEXT,
                )
            else:
                process.call(
                    "open_split",
                    name="model",
                    device=files["device"],
                    base_url=url(port),
                    wire=cell.wire,
                    context_tokens=CONTEXT,
                    chunks="all" if cell.chunk == "all" else int(cell.chunk),
                    window=cell.window,
                    always=True,
                    branches=given.branches,
                )
            opened = kind
        began_s, missing = time.monotonic(), _missing(cell, results, given)
        for n in missing:
            answer = process.call(
                "ask",
                name="model",
                messages=[{"role": "user", "content": texts[n]}],
                temperature=cell.temperature,
                seed=n,
                max_tokens=given.tokens,
            )
            results.add(cell, n, answer)
        say(f"{_name(cell)}: {len(missing)} answers in {time.monotonic() - began_s:.0f} s")


def _name(cell: Cell) -> str:
    return f"{cell.kind} {cell.wire} chunk {cell.chunk} window {cell.window} T={cell.temperature:g}"


def report(
    wanted: Sequence[Cell], files: Mapping[Part, Path], texts: Sequence[str], results: Results, given: Any
) -> None:
    rows, differing = compare(wanted, results, given)
    if not rows:
        print("No answers yet.")
        return
    whole = [one.whole for one in wanted if one.temperature == 0] or [one.whole for one in wanted]
    known = [
        (texts[n], results.found[whole[-1], n]["ids"])
        for n in range(len(texts))
        if (whole[-1], n) in results.found
    ]
    say("measuring what changes numbers anyway")
    lab = Lab(model_file(given.kind))
    try:
        noise = lab.noise(known)
        rounding = rounding_noise(files, [(lab.prompt(text), list(ids)) for text, ids in known[:8]])
    finally:
        lab.close()
    looked = look(differing, texts, results, noise, rounding, given)
    show(rows, noise, rounding, looked)
    if given.json:
        content = {
            "prompts": given.prompts,
            "tokens": given.tokens,
            "cells": rows,
            "noise": noise.summary(),
            "rounding": Noise({"float16": rounding}).summary(),
            "differences": looked,
        }
        Path(given.json).write_text(json.dumps(content, indent=1), encoding="utf-8")


def compare(
    wanted: Sequence[Cell], results: Results, given: Any
) -> tuple[list[dict[str, Any]], list[tuple[Cell, int]]]:
    """One row for each combination with answers, and which answers differ."""
    rows, differing = [], []
    for cell in wanted:
        pairs = [
            (n, results.found[cell, n], results.found[cell.whole, n])
            for n in range(given.prompts)
            if (cell, n) in results.found and (cell.whole, n) in results.found
        ]
        if not pairs:
            continue
        others = [
            n
            for n, one, own in pairs
            if any(one[key] != own[key] for key in ("ids", "text", "finish_reason"))
        ]
        differing += [(cell, n) for n in others]
        undrafted = replace(cell, window=0)
        beside = [
            (one, results.found[undrafted, n]) for n, one, _ in pairs if (undrafted, n) in results.found
        ]
        changed = sum(one["ids"] != other["ids"] for one, other in beside)
        reports = [one["report"] for _, one, _ in pairs if one.get("report")]
        counts = {
            name: sum(one[name] for one in reports)
            for name in ("rounds", "drafted", "judged", "accepted", "distributed_tokens")
        }
        ahead = [sum(one["ahead"][place] for _, one, _ in pairs) for place in (0, 1)]
        rows.append(
            asdict(cell)
            | {"answers": len(pairs), "tokens": sum(len(own["ids"]) for _, _, own in pairs)}
            | {
                "differing": len(others),
                "changed_by_drafts": changed if cell.window else None,
                "ahead": ahead,
            }
            | counts
        )
    return rows, differing


def look(
    differing: Sequence[tuple[Cell, int]],
    texts: Sequence[str],
    results: Results,
    noise: Noise,
    rounding: Sequence[float],
    given: Any,
) -> list[dict[str, Any]]:
    """The whole model's scores where answers differ."""
    places: dict[tuple[str, int, float, int], dict[str, Any]] = {}
    seen: dict[tuple[str, int, float, int], list[Cell]] = defaultdict(list)
    for chunk in dict.fromkeys(cell.chunk for cell, _ in differing):
        lab = Lab(model_file(given.kind), batch=CONTEXT if chunk == "all" else int(chunk))
        try:
            for cell, n in differing:
                if cell.chunk != chunk:
                    continue
                own, other = results.found[cell.whole, n]["ids"], results.found[cell, n]["ids"]
                found = lab.difference(texts[n], own, other, temperature=cell.temperature, seed=n)
                key = chunk, n, cell.temperature, found.at
                seen[key].append(cell)
                places[key] = {
                    "chunk": chunk,
                    "prompt": n,
                    "temperature": cell.temperature,
                    "at": found.at,
                    "gap": found.gap,
                    "between": found.between,
                }
        finally:
            lab.close()
    largest = max(map(abs, rounding), default=0.0)
    for key, one in places.items():
        scale = one["temperature"] or 1.0
        has_f32 = any(cell.wire == "float32" for cell in seen[key])
        one["near_tie"] = one["gap"] <= noise.most / scale
        one["by_rounding"] = not has_f32 and one["gap"] <= largest / scale
        one["cells"] = [f"{cell.wire}/{cell.window}" for cell in seen[key]]
    return sorted(places.values(), key=lambda one: -one["gap"])


def rounding_noise(files: Mapping[Part, Path], answers: Sequence[tuple[list[int], list[int]]]) -> list[float]:
    """By how much the distance of the two best logits changes when states are rounded to float16, both ways."""
    common: dict[str, Any] = {"context_tokens": CONTEXT, "threads": 1, "gpu_layers": 0}
    device = DeviceModel(files["device"], batch_tokens=CONTEXT, keep_loading=lambda: True, **common)
    cloud = StateModel(files["cloud"], "cloud", most_rows=CONTEXT, **common)
    head = StateModel(files["head"], "head", most_rows=CONTEXT, **common)
    changes: list[float] = []
    try:
        device.begin(StopFlag())
        for prompt, ids in answers:
            device.cut(0, 0)
            up = device.compute_states(0, 0, [*prompt, *ids[:-1]]).copy()
            found = []
            for dtype in (np.float32, np.float16):
                cloud.cut(0, 0)
                head.cut(0, 0)
                down = cloud.compute([StateRows(0, 0, up.astype(dtype), len(prompt) - 1)])[0].copy()
                scaled = down / np.abs(down).max(axis=1, keepdims=True)  # the head's norm takes it away again
                found.append(head.compute([StateRows(0, 0, scaled.astype(dtype))])[0].copy())
            exact, rounded = found
            second, first = np.argsort(exact, axis=1)[:, -2:].T
            place = np.arange(len(exact))
            apart = exact[place, first] - exact[place, second]
            changes += (rounded[place, first] - rounded[place, second] - apart).tolist()
    finally:
        for model in (device, cloud, head):
            model.close()
    return changes


def show(
    rows: Sequence[Mapping[str, Any]],
    noise: Noise,
    rounding: Sequence[float],
    looked: Sequence[Mapping[str, Any]],
) -> None:
    print("| weights | wire | chunk | window | T | answers | tokens | of drafting | rounds | accepted of judged "
          "| ahead, used | differing | from the same undrafted |")  # fmt: skip
    print("|" + "---|" * 13)
    for one in rows:
        rate = f"{one['accepted']} of {one['judged']}" if one["judged"] else "–"
        cells = [one["kind"], one["wire"], one["chunk"], one["window"], one["temperature"], one["answers"]]
        cells += [one["tokens"], one["distributed_tokens"], one["rounds"], rate]
        cells += [f"{one['ahead'][0]}, {one['ahead'][1]}", one["differing"]]
        cells.append("–" if one["changed_by_drafts"] is None else one["changed_by_drafts"])
        print(f"| {' | '.join(map(str, cells))} |")
    answers, differing = (sum(one[name] for one in rows) for name in ("answers", "differing"))
    print(f"\n{differing} of {answers} answers differ, {sum(one['tokens'] for one in rows)} tokens in all.")
    print("\nWhat changes the distance of the two best logits anyway:\n")
    print("| what | positions | median | P99 | max |\n|---|---|---|---|---|")
    ways = noise.summary() | Noise({"states rounded to float16": list(rounding)}).summary()
    for way, figures in ways.items():
        numbers = " | ".join(f"{figures[name]:.2g}" for name in ("median", "p99", "max"))
        print(f"| {way} | {figures['positions']} | {numbers} |")
    if not looked:
        return
    print("\nEach place where an answer first differs, the widest gap first:\n")
    print(
        "| prompt | chunk | T | position | gap of the two best | of the two tokens | near-tie | wire/window |"
    )
    print("|" + "---|" * 8)
    for one in looked:
        between = "–" if one["between"] is None else f"{one['between']:.2g}"
        said = "yes" if one["near_tie"] else "by the rounding" if one["by_rounding"] else "NO"
        print(
            f"| {one['prompt']} | {one['chunk']} | {one['temperature']} | {one['at']} | {one['gap']:.2g} | {between} | "
            f"{said} | {', '.join(one['cells'])} |"
        )


if __name__ == "__main__":
    main(
        options(
            __doc__,
            kind=("Q8_0", "kind of weights, such as F16, Q8_0"),
            layers=(2, "that the device keeps"),
            adapter=("shipped", "`shipped`, an adapter's file (.npz), `untrained` or `none`"),
            prompts=(64, "how many of the prompts"),
            tokens=(32, "most tokens of an answer"),
            wires=(["float32", "float16"], "formats of states on the wire"),
            chunks=(["1", "16", "64", "all"], "tokens of a prompt's chunk"),
            windows=([0, 4], "drafted tokens; 0: none"),
            branches=(2, "tokens behind which is drafted ahead"),
            temperatures=([0.0, 0.8], "temperatures"),
            out=("split_identity.jsonl", "file of answers, added to"),
            json=("", "file for the figures"),
            report=(False, "compare only"),
        )
    )
