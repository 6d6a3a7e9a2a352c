"""Time per token of a real pair beside the formula and the fleet simulator, by window and round trip.

A verify server (one slot is used, one thread) runs in a process of its own, the drafter (one thread) is here, and a
third process is the network: it holds every byte for half a round trip. Drafting is forced, at temperature 0, in turn
and with two windows in flight. For each round trip the target alone answers the same prompt within the same minute.

A draft is the same model with fewer bits in a weight, and F32 stands for a large target: it is bound by memory as one.

Measured: from the first verdict on a window to the last one on a window of full size, over the tokens written
meanwhile; the beginning, in which the target writes alone while the drafter reads, does not count. Each cell is
measured in several passes over the whole table; the median counts. The terms of the formula (`speculate.predict`) are
of the same answers: seconds per drafted token, median round trip (what neither queue nor batch explains), median batch
by rows, and the acceptance of this draft over all cells. The simulator gets the same times, and where the draft agrees
with each answer (as `python -m papers.fleet record` finds it) in place of the acceptance.

Needs an idle machine with two cores: about ten minutes. --quick tries it in two.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import anyio
import openai
from delay_link import links
from helpers.measuring import options
from pair_lab import KEY, ask, at_hand, device, model_file, verify_server
from papers.fleet.agreement import Choice, agreement
from papers.local_model import LocalModel
from round_terms import Span, Terms, WatchedDrafter, simulated_s, span_of

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative.pairing import Pairing

PROMPTS = ("Tell me a short story about a lighthouse.", "How do I start a vegetable garden?")


@dataclass(frozen=True)
class Cell:
    """One line of the table. `parallel`: windows in flight."""

    target: str
    draft: str
    round_trip_ms: float
    parallel: int
    window: int

    @property
    def least(self) -> int:
        """Tokens of a window that counts as full. In parallel, its first may be settled before it is sent."""
        return self.window if self.parallel == 1 else max(1, self.window - 1)


@dataclass
class Measured:
    """What one cell has shown. Mutable."""

    terms: Terms = field(default_factory=Terms)
    token_s: list[float] = field(default_factory=list)  # of each pass
    alone_s: list[float] = field(default_factory=list)  # of the target alone, in the same pass
    spans: list[tuple[int, Span]] = field(default_factory=list)  # (prompt, part), of the newest pass
    fallbacks: int = 0


Table = dict[Cell, Measured]


async def main(given: Any) -> list[dict[str, Any]]:
    if given.quick:
        given.passes, given.tokens = 1, 64
    given.targets, given.drafts = at_hand(given.targets), at_hand(given.drafts)
    table: Table = {}
    answers: dict[tuple[str, int], tuple[list[int], list[int]]] = {}  # (target, prompt) -> prompt and answer
    began_s = time.monotonic()
    for target in given.targets:
        with verify_server(model_file(target), slots=2) as (_, port), links(port, given.rtts) as ports:
            for draft in given.drafts if target == given.targets[0] else given.drafts[:1]:
                # Beside the first pair, one round trip is enough to see where drafting loses.
                is_first = (target, draft) == (given.targets[0], given.drafts[0])
                rtts = given.rtts if is_first else [given.beside]
                await measure(target, draft, {rtt: ports[rtt] for rtt in rtts}, table, answers, given)
    say(f"measured in {time.monotonic() - began_s:.0f} s; now where the drafts agree")
    return evaluate(table, recorded(table, answers))


async def measure(
    target: str,
    draft: str,
    ports: dict[float, int],
    table: Table,
    answers: dict[tuple[str, int], tuple[list[int], list[int]]],
    given: Any,
) -> None:
    model = device(draft)
    drafter = WatchedDrafter(model.drafter())
    try:
        await drafter.warm_up()
        for number in range(given.passes):
            for rtt, port in ports.items():
                began_s = time.monotonic()
                cells = [Cell(target, draft, rtt, p, w) for p in given.parallel for w in given.windows]
                await turn(cells, port, drafter, table, answers, given)
                say(
                    f"{target} with {draft}, {rtt:g} ms, pass {number + 1} of {given.passes}: "
                    f"{time.monotonic() - began_s:.0f} s"
                )
    finally:
        await model.aclose()


async def turn(
    cells: list[Cell],
    port: int,
    drafter: WatchedDrafter,
    table: Table,
    answers: dict[tuple[str, int], tuple[list[int], list[int]]],
    given: Any,
) -> None:
    """One pass over one round trip: the target alone, then each window, for each prompt."""
    url = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0, timeout=600) as sdk:
        server = OpenAIEndpoint(client=sdk)
        alone, pairing = Pairing(None), Pairing(drafter)
        took: dict[Cell | None, list[tuple[float, int]]] = defaultdict(list)
        spans: dict[Cell, list[tuple[int, Span]]] = defaultdict(list)
        try:
            for one in (alone, pairing):
                await one.ask(sdk)
            for prompt in range(given.prompts):
                asked = await ask(
                    server, alone, PROMPTS[prompt], tokens=given.tokens, temperature=0.0, seed=1, window=1
                )
                came = [one.came_s for one in asked.watch.carried]
                took[None].append(
                    (came[-1] - came[0], len(asked.watch.ids) - len(asked.watch.carried[0].verdict.ids))
                )
                for cell in cells:
                    drafter.drafts.clear()
                    asked = await ask(
                        server,
                        pairing,
                        PROMPTS[prompt],
                        tokens=given.tokens,
                        temperature=0.0,
                        seed=1,
                        window=cell.window,
                        parallel=cell.parallel,
                    )
                    answers[cell.target, prompt] = asked.watch.prompt_ids, asked.watch.ids
                    measured = table.setdefault(cell, Measured())
                    measured.terms.add(asked.watch.carried, drafter.drafts, cell.window, cell.least)
                    measured.fallbacks += asked.report.switches - 1
                    if (span := span_of(asked.watch, cell.least)) is not None:
                        took[cell].append((span.took_s, span.last - span.first))
                        spans[cell].append((prompt, span))
        finally:
            await alone.aclose()
            await pairing.aclose()
        for cell in cells:
            if took[cell]:
                table[cell].token_s.append(per_token(took[cell]))
                table[cell].alone_s.append(per_token(took[None]))
                table[cell].spans = spans[cell]


def per_token(parts: list[tuple[float, int]]) -> float:
    return sum(seconds for seconds, _ in parts) / sum(tokens for _, tokens in parts)


def recorded(
    table: Table, answers: dict[tuple[str, int], tuple[list[int], list[int]]]
) -> dict[tuple[str, str, int], bytes]:
    """Where each draft agrees with each target's answers: by (target, draft, prompt)."""
    found = {}
    for draft in dict.fromkeys(cell.draft for cell in table):
        model = LocalModel(model_file(draft), threads=1, context_tokens=512)
        try:
            for target in dict.fromkeys(cell.target for cell in table if cell.draft == draft):
                for (name, prompt), (prompt_ids, ids) in answers.items():
                    if name == target:
                        found[target, draft, prompt] = agreement(model, prompt_ids, ids, Choice()).accepts
        finally:
            model.close()
    return found


def evaluate(table: Table, agreed: dict[tuple[str, str, int], bytes]) -> list[dict[str, Any]]:
    """One row for each cell."""
    rates: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for cell, measured in table.items():
        rates[cell.target, cell.draft][0] += measured.terms.accepted
        rates[cell.target, cell.draft][1] += measured.terms.judged
    rows = []
    for cell, measured in table.items():
        if not measured.token_s or not measured.terms.drafts or not measured.terms.wires:
            say(f"{cell}: too few windows of full size; fell back {measured.fallbacks} times")
            continue
        accepted, judged = rates[cell.target, cell.draft]
        acceptance, terms = accepted / judged, measured.terms
        live_s, alone_s = median(measured.token_s), median(measured.alone_s)
        formula_s = terms.formula_s(cell.window, acceptance, cell.parallel)
        parts = [(agreed[cell.target, cell.draft, prompt], span) for prompt, span in measured.spans]
        model_s = simulated_s(terms, cell.window, cell.parallel, parts)
        ratios = [alone / live for alone, live in zip(measured.alone_s, measured.token_s, strict=True)]
        rows.append(
            asdict(cell)
            | {
                "acceptance": acceptance,
                "draft_ms": 1e3 * terms.draft_s,
                "round_trip_measured_ms": 1e3 * terms.round_trip_s,
                "batch_ms": {rows: 1e3 * median(s) for rows, s in sorted(terms.batches.items())},
                "live_ms": 1e3 * live_s,
                "passes_ms": [1e3 * one for one in measured.token_s],
                "formula_ms": 1e3 * formula_s,
                "formula_deviation": live_s / formula_s - 1,
                "simulator_ms": 1e3 * model_s,
                "simulator_deviation": live_s / model_s - 1,
                "alone_ms": 1e3 * alone_s,
                "speed_up": median(ratios),
                "fallbacks": measured.fallbacks,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("| target | draft | RTT ms | in flight | window | draft ms | round trip ms | batch ms (rows) | α | live ms "
          "| formula | off % | simulator | off % | alone ms | × alone |")  # fmt: skip
    print("|" + "---|" * 16)
    for one in rows:
        rows_of_batch = max(one["batch_ms"])
        cells = [one["target"], one["draft"], f"{one['round_trip_ms']:g}", one["parallel"], one["window"]]
        cells += [f"{one['draft_ms']:.1f}", f"{one['round_trip_measured_ms']:.1f}"]
        cells += [f"{one['batch_ms'][rows_of_batch]:.1f} ({rows_of_batch})", f"{one['acceptance']:.3f}"]
        cells += [f"{one['live_ms']:.1f}"]
        for what in ("formula", "simulator"):
            cells += [f"{one[f'{what}_ms']:.1f}", f"{100 * one[f'{what}_deviation']:+.1f}"]
        cells += [f"{one['alone_ms']:.1f}", f"{one['speed_up']:.2f}"]
        print(f"| {' | '.join(map(str, cells))} |")
    for what in ("formula", "simulator"):
        off = [abs(one[f"{what}_deviation"]) for one in rows]
        print(
            f"\n{what}: {sum(one <= 0.1 for one in off)} of {len(off)} cells within 10 %, median "
            f"{100 * median(off):.1f} %, largest {100 * max(off):.1f} %"
        )
    fallbacks = sum(one["fallbacks"] for one in rows)
    if fallbacks:
        print(
            f"\n{fallbacks} times an answer fell back to the target alone in the middle: the machine was busy."
        )


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    chosen = options(
        __doc__,
        targets=(["F32", "Q8_0"], "the first with all round trips"),
        drafts=(["Q8_0", "Q4_0"], "the first with all round trips"),
        windows=[1, 2, 4, 8],
        rtts=([0.0, 10.0, 30.0, 60.0], "round trips, ms"),
        beside=(10.0, "the only round trip of the other pairs, ms"),
        parallel=([1, 2], "windows in flight"),
        passes=3,
        prompts=(1, "1 or 2"),
        tokens=(160, "most tokens of an answer"),
        json=("", "file for the figures"),
        quick=(False, "one pass, short answers"),
    )
    found = anyio.run(main, chosen)
    show(found)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(found, indent=1), encoding="utf-8")
