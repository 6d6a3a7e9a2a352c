"""The paper's ablation (HAT, Table V) live in its form, by round trip; accept length; sweeps of eta and of k.

PC: the prompt goes in chunks (ours, `makespan`; without it in one piece). SD: drafts of the device's adapter, which end
at a token less sure than eta (0.6, that token included). PD: while a draft is verified, the device drafts behind k
candidates for its last token. Drafting is forced wherever it is on: the last row of each table shows what the window
that chooses for itself (`optimal`) makes of it, which drafts only where that is predicted to pay.

The layer server, the device and the link are three processes. Each cell is a few answers to ordinary prompts of about
as many tokens, at temperature 0, new to all caches; ways take turns in random order, and the median of the answers
counts. TTFT: from the question to the first text. TBT: from there to the end, over the tokens in between.

Accept length, in the paper's way: tokens of a round with a draft, the model's own included; 1 where nothing is drafted.
Beside it the accepted drafts of a round, one less.

Results are added to a file of JSON lines, and measured cells are not measured again. Needs an idle machine with two
cores: about 20 minutes. --quick tries it in two.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "rounds"))
sys.path.insert(0, str(Path(__file__).parent))
from delay_link import Link, links
from helpers.measuring import options
from split_lab import NOTE, AnswerProcess, cut, layer_server, prompts, say, url

CONTEXT = 640
ETA, BRANCHES, MOST = 0.6, 2, 8
TABLE = ("none", "PC", "SD", "SD+PD", "SD+PC", "all")
CHOSEN = "all, chosen"
PAPER = {  # TTFT/TBT in ms, SpecBench and CNN/DM
    "none": ("655.6/52.3", "1989.0/128.1"),
    "PC": ("384.0/39.4", "1038.7/74.2"),
    "SD": ("655.3/38.3", "1993.5/84.3"),
    "SD+PD": ("657.9/33.8", "1992.1/74.9"),
    "SD+PC": ("384.3/30.6", "1039.1/49.3"),
    "all": ("384.2/26.4", "1039.9/43.5"),
}


@dataclass(frozen=True)
class Cell:
    """One way at one round trip.

    Attributes:
        setting: what is the same for all: weights, layers, adapter, link, reply, lengths.
        part: which table.
        name: the line.
        eta: 0: the window chooses.
        branches: k; 0: nothing is drafted ahead.
    """

    setting: str
    part: str
    name: str
    round_trip_ms: float
    chunks: str
    drafts: bool
    eta: float
    branches: int


def cells(given: Any, adapter: str) -> list[Cell]:
    same = (
        given.kind,
        given.layers,
        adapter,
        given.link,
        given.reply,
        given.prompt_words,
        given.tokens,
        given.steps,
    )
    setting, found = " ".join(map(str, same)), []
    for ms in given.rtts:
        for name in TABLE:
            drafts = name not in ("none", "PC")
            chunks = "makespan" if "PC" in name or name == "all" else "all"
            branches = BRANCHES if "PD" in name or name == "all" else 0
            found.append(Cell(setting, "table", name, ms, chunks, drafts, ETA, branches))
        found.append(Cell(setting, "table", CHOSEN, ms, "makespan", True, 0.0, BRANCHES))
    for ms in given.beside:
        found += [Cell(setting, "eta", f"{eta:g}", ms, "makespan", True, eta, BRANCHES) for eta in given.etas]
        found += [Cell(setting, "k", f"{k}", ms, "makespan", True, ETA, k) for k in given.branches]
    return found


def main(given: Any) -> None:
    if given.quick:
        given.rtts, given.beside, given.prompts, given.tokens = [0.0, 60.0], [60.0], 1, 16
        given.etas, given.branches = [0.3, 0.9], [0, 4]
    out = Path(given.out)
    answers: dict[tuple[Cell, int], dict[str, Any]] = {}
    if out.exists():
        for line in out.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            answers[Cell(**one["cell"]), one["prompt"]] = one
    parts = cut(given.kind, given.layers, given.adapter)
    wanted = cells(given, parts.adapter)
    todo = {cell: [n for n in range(given.prompts) if (cell, n) not in answers] for cell in wanted}
    if any(todo.values()) and not given.report:
        up, down = (1e6 * float(one) for one in given.link.split("/"))
        shaped = {ms: Link(ms, up, down) for ms in dict.fromkeys(cell.round_trip_ms for cell in wanted)}
        with (
            layer_server(parts.files["cloud"], context=CONTEXT) as port,
            links(port, list(shaped.values())) as ports,
        ):
            for part, ms in dict.fromkeys((cell.part, cell.round_trip_ms) for cell in wanted if todo[cell]):
                group = {
                    cell: ns
                    for cell, ns in todo.items()
                    if (cell.part, cell.round_trip_ms) == (part, ms) and ns
                }
                with AnswerProcess() as process:
                    for record in measure(
                        process, group, parts.files["device"], url(ports[shaped[ms]]), given
                    ):
                        answers[Cell(**record["cell"]), record["prompt"]] = record
                        with out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(record) + "\n")
    rows = [row for cell in wanted if (row := evaluate(cell, answers, given)) is not None]
    show(rows, given, parts.adapter)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def measure(
    process: AnswerProcess, group: Mapping[Cell, Sequence[int]], device: Path, base_url: str, given: Any
) -> Iterator[dict[str, Any]]:
    """Yield the answers of all ways at one round trip, by turns."""
    began_s, count = time.monotonic(), 0
    for cell in group:
        window: dict[str, Any] = {"window": 0}
        if cell.drafts:
            forced = {"window": "confidence", "eta": cell.eta, "always": True}
            window = (forced if cell.eta else {"window": "optimal"}) | {"branches": cell.branches}
        process.call(
            "open_split",
            name=cell.name,
            device=device,
            base_url=base_url,
            context_tokens=CONTEXT,
            chunks=cell.chunks,
            reply=given.reply,
            max_window=MOST,
            steps=given.steps,
            **window,
        )
        # The first answer allocates, and shows the estimates what drafting is like.
        process.call("ask", name=cell.name, messages=question(-1, given), **params(16))
    for n in range(given.prompts):
        turn = [cell for cell, missing in group.items() if n in missing]
        for cell in random.sample(turn, len(turn)):
            answer = process.call("ask", name=cell.name, messages=question(n, given), **params(given.tokens))
            keys = ("came", "chunk", "prompt_tokens", "report", "ahead", "finish_reason")
            yield {"cell": asdict(cell), "prompt": n} | {key: answer[key] for key in keys}
            count += 1
    say(f"{cell.part}, {cell.round_trip_ms:g} ms: {count} answers in {time.monotonic() - began_s:.0f} s")


def question(number: int, given: Any) -> list[dict[str, str]]:
    """A conversation of about `given.prompt_words` words: some of the 64 prompts, one of which is to be answered."""
    texts = prompts()
    order = random.Random(number).sample(range(len(texts)), len(texts))
    asked, others, words = texts[order[0]], [], 0
    for place in order[1:]:
        if words >= given.prompt_words:
            break
        others.append(f"- {texts[place]}")
        words += len(texts[place].split())
    listed = "\n".join(others)
    return [
        {"role": "user", "content": f"Here are questions from our box:\n{listed}\nAnswer this one: {asked}"}
    ]


def params(tokens: int) -> dict[str, Any]:
    return {"temperature": 0.0, "seed": 1, "max_tokens": tokens}


def evaluate(
    cell: Cell, answers: Mapping[tuple[Cell, int], Mapping[str, Any]], given: Any
) -> dict[str, Any] | None:
    """A row; None where there is no answer yet."""
    found = [answers[cell, n] for n in range(given.prompts) if (cell, n) in answers]
    if not found:
        return None
    first, between = [], []
    for one in found:
        came = one["came"]
        first.append(came[0][0])
        if (tokens := sum(count for _, count in came[1:])) >= 4:
            between.append((came[-1][0] - came[0][0]) / tokens)
    reports = [one["report"] for one in found if one["report"] is not None]
    rounds = sum(count for one in reports for drafted, count in one["windows"] if drafted)
    total = {
        key: sum(one[key] for one in reports)
        for key in ("drafted", "judged", "accepted", "distributed_tokens")
    }
    ahead = [sum(one["ahead"][place] for one in found) for place in (0, 1)]
    return asdict(cell) | {
        "answers": len(found),
        "prompt_tokens": median(one["prompt_tokens"] for one in found),
        "chunk": median(min(one["chunk"], one["prompt_tokens"]) for one in found),
        "first_s": median(first),
        "between_s": median(between) if between else None,
        "rounds": rounds,
        "accepted_per_round": total["accepted"] / rounds if rounds else 0.0,
        "accept_length": 1 + total["accepted"] / rounds if rounds else 1.0,
        "drafted_per_round": total["drafted"] / rounds if rounds else 0.0,
        "acceptance": total["accepted"] / total["judged"] if total["judged"] else None,
        "ahead": ahead,
        **total,
    }


def show(rows: Sequence[Mapping[str, Any]], given: Any, adapter: str) -> None:
    if not rows:
        print("Nothing is measured yet.")
        return
    sizes = sorted(one["prompt_tokens"] for one in rows)
    print(
        f"Link {given.link} MB/s up/down, reply {given.reply!r}, prompts of about {median(sizes):.0f} tokens, "
        f"{given.tokens} tokens of an answer; adapter: {adapter}.\n"
    )
    if table := [one for one in rows if one["part"] == "table"]:
        ablation(table)
    details("## Drafts, by round trip", [one for one in table if one["drafts"]], "way")
    for part, title in (
        ("eta", "## Sweep of eta"),
        ("k", "## Sweep of k, candidates for the last drafted token"),
    ):
        details(title, [one for one in rows if one["part"] == part], part)
    print(f"\n{NOTE.format(cores=os.cpu_count())}")


def ablation(table: Sequence[Mapping[str, Any]]) -> None:
    """The paper's table, a column for each round trip, and what drafting gains."""
    trips = list(dict.fromkeys(one["round_trip_ms"] for one in table))
    cells = {(one["name"], one["round_trip_ms"]): one for one in table}
    print("## TTFT/TBT in ms, by round trip\n")
    print("| | paper, SpecBench | paper, CNN/DM | " + " | ".join(f"{ms:g} ms" for ms in trips) + " |")
    print("|" + "---|" * (3 + len(trips)))
    for name in (*TABLE, CHOSEN):
        figures = [_pair(cells.get((name, ms))) for ms in trips]
        print(f"| {name} | {' | '.join((*PAPER.get(name, ('–', '–')), *figures))} |")
    print("\nTBT without drafts over TBT with (above 1: drafting pays; PC on both sides):\n")
    print("| | " + " | ".join(f"{ms:g} ms" for ms in trips) + " |\n|" + "---|" * (1 + len(trips)))
    for name in ("SD+PC", "all", CHOSEN):
        print(
            f"| {name} | {' | '.join(_gain(cells.get(('PC', ms)), cells.get((name, ms))) for ms in trips)} |"
        )


def details(title: str, rows: Sequence[Mapping[str, Any]], what: str) -> None:
    if not rows:
        return
    print(f"\n{title}\n")
    print(f"| round trip ms | {what} | TBT ms | accept length (paper's) | accepted per round | drafted per round | "
          "accepted of judged | rounds | drafted ahead | of it used |")  # fmt: skip
    print("|" + "---|" * 10)
    for one in rows:
        rate = "–" if one["acceptance"] is None else f"{one['acceptance']:.2f}"
        cells = [
            f"{one['round_trip_ms']:g}",
            one["name"],
            _ms(one["between_s"]),
            f"{one['accept_length']:.2f}",
        ]
        cells += [
            f"{one['accepted_per_round']:.2f}",
            f"{one['drafted_per_round']:.2f}",
            rate,
            str(one["rounds"]),
        ]
        cells += [str(one["ahead"][0]), str(one["ahead"][1])]
        print(f"| {' | '.join(cells)} |")


def _pair(one: Mapping[str, Any] | None) -> str:
    return "–" if one is None else f"{_ms(one['first_s'])}/{_ms(one['between_s'])}"


def _gain(without: Mapping[str, Any] | None, one: Mapping[str, Any] | None) -> str:
    if without is None or one is None or not without["between_s"] or not one["between_s"]:
        return "–"
    return f"{without['between_s'] / one['between_s']:.2f}"


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.1f}"


if __name__ == "__main__":
    main(
        options(
            __doc__,
            kind=("Q8_0", "kind of weights"),
            layers=(2, "that the device keeps"),
            adapter=("shipped", "`shipped`, an adapter's file (.npz), or `untrained`"),
            link=("0.5/1", "MB/s up/down"),
            rtts=([0.0, 10.0, 30.0, 60.0, 120.0], "round trips of the table, ms"),
            beside=([30.0, 120.0], "round trips of the sweeps, ms"),
            etas=([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], "thresholds"),
            branches=([0, 1, 2, 4], "k of parallel drafting"),
            steps=(4, "tokens drafted behind each candidate"),
            reply=("last", "rows of a prompt that come down: last, or all as the paper's"),
            prompts=(3, "answers of a cell"),
            prompt_words=(150, "words of a prompt, about"),
            tokens=(48, "most tokens of an answer"),
            out=("split_ablation.jsonl", "file of answers, added to"),
            json=("", "file for the figures"),
            report=(False, "evaluate only what is there"),
            quick=(False, "two round trips, one short answer each"),
        )
    )
