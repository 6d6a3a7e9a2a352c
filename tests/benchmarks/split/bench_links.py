"""Time to the first token and between tokens of a split model, live over shaped links, beside the recursion.

The layer server, the device and the link are three processes. The link has a rate each way and a delay, and small
buffers. For each link and each length of prompt, three ways to cut the prompt (none: in one piece; the paper's formula
(3); ours, the minimum of the recursion) and two replies ("last": one row comes down; "all": every row, as the paper's)
take turns in random order; each prompt is new to all caches. The median of the repeats counts. Before each of them the
idle machine is measured anew, since a shared machine is slower in some minutes than in others.

Predicted: `disco.speculate.chunks.prompt_s` for the chunk that was taken live, with the rates that the link is set to,
and with the medians of what was measured on the idle machine: the round trip, the device's and the cloud's
times by rows (at the depth that this prompt has on average; see `depths`), the prompt's rendering, the head and the
sampling. Time between tokens, undrafted: device + up + round trip + cloud + down + head.

The chunks are chosen live by what the endpoint itself knows (it measures its link when it opens). What (3) and the
minimum are by the idle machine's figures is in the second table.

Results are added to a file of JSON lines, and measured cells are not measured again. Needs an idle machine with two
cores: about 50 minutes. --quick tries it in two.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, median_low
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "rounds"))
sys.path.insert(0, str(Path(__file__).parent))
from delay_link import Link, links
from depths import WS_BYTES
from helpers.measuring import options
from split_lab import NOTE, AnswerProcess, cut, layer_server, say, url

from disco.endpoints.llamacpp.layers.layer_files import Part, read_layer_file
from disco.endpoints.split.wire import HEADER_BYTES
from disco.speculate.chunks import PassTimes, SplitPath, equation3, makespan_chunk, prompt_s

RULES = {"none": "all", "equation3": "equation3", "makespan": "makespan"}
REPLIES = ("last", "all")
ONE_WAY_MS = 5.0
SLOWEST_MBPS, SLOW_TOKENS = 0.1, 512  # at this rate longer prompts take too long
NOISE = 1.02
LONG = 1024
NO_END = {"0": -100, "2": -100}  # SmolLM2's tokens that end an answer
Way = tuple[str, str]  # rule, reply


def main(given: Any) -> None:
    if given.quick:
        given.links, given.prompts, given.repeats = [given.links[0], given.links[-1]], [64, 256], 1
    out = Path(given.out)
    known = (
        [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    )
    records = {(one["link"], one["prompt"]): one for one in known if one["kind"] == given.kind}
    todo = [
        (link, tokens)
        for link in given.links
        for tokens in given.prompts
        if (link, tokens) not in records
        and not (float(link.split("/")[0]) <= SLOWEST_MBPS and tokens > SLOW_TOKENS)
    ]
    if todo and not given.report:
        files = cut(given.kind, given.layers, "none").files
        context = max(given.prompts) + 64
        shaped = {
            link: Link(2 * ONE_WAY_MS, *(1e6 * float(one) for one in link.split("/"))) for link in given.links
        }
        with (
            layer_server(files["cloud"], slots=8, context=context) as port,
            links(port, list(shaped.values())) as ports,
        ):
            for link in dict.fromkeys(link for link, _ in todo):
                with AnswerProcess() as process:
                    bench = Bench(process, files, context, port, shaped[link], ports[shaped[link]])
                    bench.open()
                    for tokens in (tokens for one, tokens in todo if one == link):
                        record = {
                            "kind": given.kind,
                            "link": link,
                            "prompt": tokens,
                            **bench.measure(tokens, _repeats(tokens, given)),
                        }
                        records[link, tokens] = record
                        with out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(record) + "\n")
    rows = [row for record in records.values() for row in evaluate(record)]
    show(rows)
    if given.json:
        Path(given.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _repeats(tokens: int, given: Any) -> int:
    return max(1, given.repeats - 2 * (tokens >= LONG) - (tokens >= 2 * LONG))


class Bench:
    """One link's endpoints, in the device's process. Mutable: `_numbers`, of the prompts so far.

    Args:
        process: the device's.
        files: the model's parts.
        context: tokens of a sequence.
        port: the layer server's own, without a link.
        link, linked: the link and its port.
    """

    def __init__(
        self,
        process: AnswerProcess,
        files: Mapping[Part, Path],
        context: int,
        port: int,
        link: Link,
        linked: int,
    ) -> None:
        self._process, self._files, self._context = process, files, context
        self._direct, self._link, self._linked = url(port), link, url(linked)
        self._numbers = random.Random(0)
        self._ways: list[Way] = [(rule, reply) for reply in REPLIES for rule in RULES]

    def open(self) -> None:
        """Open the endpoints, each of which measures the link."""
        say(f"link {self._link}")
        common: dict[str, Any] = {"device": self._files["device"]}
        common |= {"context_tokens": self._context, "window": 0}
        # In one piece means one piece on the device, too.
        common["batch_tokens"] = self._context
        call = self._process.call
        call("open_split", name="direct", base_url=self._direct, chunks="all", **common)
        for rule, reply in self._ways:
            name = f"{rule}/{reply}"
            call("open_split", name=name, base_url=self._linked, chunks=RULES[rule], reply=reply, **common)
            call(
                "ask", name=name, messages=self._prompt(name, 48), **self._params(2)
            )  # the first one allocates

    def measure(self, tokens: int, repeats: int) -> dict[str, Any]:
        """Measure a prompt of so many tokens: the idle machine, then all ways in turns.

        Returns:
            idle: what was measured of the idle machine, before each repeat. live: by "rule/reply", of each repeat: the
            chunk, s to the first token, and s between tokens.
        """
        began_s = time.monotonic()
        idle: list[Any] = []
        live: dict[str, list[Any]] = {f"{rule}/{reply}": [] for rule, reply in self._ways}
        for _ in range(repeats):
            idle.append(self._idle(tokens))
            for name in random.sample(list(live), len(live)):
                answer = self._process.call(
                    "ask", name=name, messages=self._prompt(name, tokens), **self._params(9)
                )
                came = answer["came"]
                gaps = [b - a for (a, _), (b, _) in pairwise(came)]
                live[name].append(
                    {
                        "chunk": answer["chunk"],
                        "first_s": came[0][0],
                        "between_s": median(gaps) if gaps else None,
                    }
                )
        meters = {name: self._process.call("meter", name=name) for name in live}
        say(f"link {self._link}, {tokens} tokens: {time.monotonic() - began_s:.0f} s")
        return {"idle": idle, "live": live, "meters": meters}

    def _idle(self, tokens: int) -> dict[str, Any]:
        call, device = self._process.call, self._files["device"]
        found = {
            "device": call("measure_device", device=device, tokens=tokens, context_tokens=self._context),
            "cloud": call("measure_cloud", device=device, base_url=self._direct, tokens=tokens),
            "direct_rtt_s": call(
                "measure_way", device=device, base_url=self._direct, up_bps=1e9, down_bps=1e9
            ),
            "rtt_s": call(
                "measure_way",
                device=device,
                base_url=self._linked,
                up_bps=self._link.up_bps,
                down_bps=self._link.down_bps,
            ),
            "prepare_s": call("prepare_s", name="direct", messages=self._prompt("direct", tokens)),
        }
        # Head and sampling: what is left of a token's time without a link.
        came = call("ask", name="direct", messages=self._prompt("direct", tokens), **self._params(17))["came"]
        token_s = median(b - a for (a, _), (b, _) in pairwise(came))
        elsewhere_s = found["direct_rtt_s"] + found["cloud"]["last_s"]
        found["here_s"] = max(0.0, token_s - elsewhere_s)  # the device's layers, head and sampling
        found["up_bps"], found["down_bps"] = self._link.up_bps, self._link.down_bps
        found["state_bytes"] = 2 * read_layer_file(device, "device").hidden
        return found

    def _prompt(self, name: str, tokens: int) -> Any:
        number = self._numbers.randrange(100, 1000)
        return self._process.call("prompt", name=name, tokens=tokens, number=number)

    @staticmethod
    def _params(tokens: int) -> dict[str, Any]:
        return {"temperature": 0.0, "seed": 1, "max_tokens": tokens, "logit_bias": NO_END}


def evaluate(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each way of a link and a prompt."""
    idle, tokens = _middle(record["idle"]), record["prompt"]
    ways = {}
    deviations: dict[tuple[str, int], list[float]] = defaultdict(list)
    token_deviations: list[float] = []
    for name, runs in record["live"].items():
        rule, reply = name.split("/")
        chunks = [min(one["chunk"], tokens) for one in runs]
        best = _path(idle, 32)
        ideal = {
            "none": tokens,
            "equation3": equation3(best, tokens),
            "makespan": makespan_chunk(best, tokens, reply=reply),
        }[rule]
        head_s = max(0.0, idle["here_s"] - best.device_s.s(1))
        around_s = idle["prepare_s"] + head_s
        first_s = [one["first_s"] for one in runs]
        between = [one["between_s"] for one in runs if one["between_s"] is not None]
        size = idle["state_bytes"] + HEADER_BYTES + WS_BYTES
        token_s = idle["here_s"] + size / idle["up_bps"] + idle["rtt_s"] + idle["cloud"]["last_s"]
        token_s += size / idle["down_bps"]
        # Each run has its own chunk, and 62 tokens may cost more than 64: so each has its own prediction.
        runs_predicted_s = [
            around_s + prompt_s(_path(idle, chunk), tokens, chunk, reply=reply) for chunk in chunks
        ]
        for chunk, live, predicted in zip(chunks, first_s, runs_predicted_s, strict=True):
            deviations[reply, chunk].append(live / predicted - 1)
        token_deviations += [one / token_s - 1 for one in between]
        ways[name] = {
            "link": record["link"],
            "prompt": tokens,
            "reply": reply,
            "rule": rule,
            "chunk": median_low(chunks),
            "chunks": chunks,
            "first_s": median(first_s),
            "runs_s": first_s,
            "predicted_s": median(runs_predicted_s),
            "between_s": median(between) if between else None,
            "token_predicted_s": token_s,
            "ideal_chunk": ideal,
            "ideal_s": around_s + prompt_s(_path(idle, ideal), tokens, ideal, reply=reply),
        }
    # Rules that choose the same chunk do the same, and tokens behind a prompt come however it was cut: that is pooled.
    for one in ways.values():
        runs = (deviations[one["reply"], chunk] for chunk in set(one["chunks"]))
        one["deviation"] = median(deviation for same in runs for deviation in same)
        one["token_deviation"] = median(token_deviations) if token_deviations else None
    for reply in REPLIES:
        ours, paper, none = (ways[f"{rule}/{reply}"] for rule in ("makespan", "equation3", "none"))
        for one in (ours, paper, none):
            one["of_none"] = median(_ratios(one, [none]))
        ratios = _ratios(ours, [one for one in (paper, none) if one["chunks"] == paper["chunks"]])
        ours["of_equation3"] = median(ratios)
        ours["is_other"] = sorted(ours["chunks"]) != sorted(paper["chunks"])
        ours["is_slower"] = ours["is_other"] and min(ratios) > 1 and ours["of_equation3"] > NOISE
        ours["is_slower_predicted"] = ours["ideal_s"] > paper["ideal_s"] * 1.001  # headers depend on chunks
    return list(ways.values())


def _ratios(one: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ratio of a way's time to the mean of others', by repeat: all ran within the same minute."""
    means = [mean(same) for same in zip(*(other["runs_s"] for other in others), strict=True)]
    return [a / b for a, b in zip(one["runs_s"], means, strict=True)]


def _middle(samples: Sequence[Any]) -> Any:
    """Return the medians of equally shaped measurements."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: _middle([one[name] for one in samples]) for name in first}
    if isinstance(first, list | tuple):
        return [_middle(same) for same in zip(*samples, strict=True)]
    return first if first is None else median(samples)


def _path(idle: Mapping[str, Any], chunk: int) -> SplitPath:
    """What the recursion takes. Each chunk's headers count as bytes of its states."""
    return SplitPath(
        up_bps=idle["up_bps"],
        down_bps=idle["down_bps"],
        rtt_s=idle["rtt_s"],
        state_bytes=idle["state_bytes"] + round((HEADER_BYTES + WS_BYTES) / chunk),
        device_s=PassTimes(idle["device"]["points"]),
        cloud_s=PassTimes(idle["cloud"]["points"], pass_rows=idle["cloud"]["pass_rows"]),
    )


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        print("Nothing is measured yet.")
        return
    print("## Time to the first token, and between tokens, ms\n")
    print("| link up/down MB/s | prompt | reply | cut | chunk | TTFT live | recursion | off % | × none | × (3) | "
          "TBT live | predicted | off % |")  # fmt: skip
    print("|" + "---|" * 13)
    for one in rows:
        cells = [one["link"], one["prompt"], one["reply"], one["rule"], one["chunk"]]
        cells += [_ms(one["first_s"]), _ms(one["predicted_s"]), f"{100 * one['deviation']:+.1f}"]
        cells += [f"{one['of_none']:.2f}", f"{one['of_equation3']:.2f}" if "of_equation3" in one else ""]
        if one["between_s"] is None:
            cells += ["–", _ms(one["token_predicted_s"]), "–"]
        else:
            cells += [_ms(one["between_s"]), _ms(one["token_predicted_s"])]
            cells += [f"{100 * one['token_deviation']:+.1f}"]
        print(f"| {' | '.join(map(str, cells))} |")
    same = ("link", "prompt", "reply", "chunks"), ("link", "prompt")
    for what, title, key in (("deviation", "TTFT", same[0]), ("token_deviation", "TBT", same[1])):
        different = {tuple(str(one[name]) for name in key): one[what] for one in rows}
        off = [abs(one) for one in different.values() if one is not None]
        print(
            f"\n{title}: {sum(one <= 0.1 for one in off)} of {len(off)} cells within 10 % of the prediction, median "
            f"{100 * median(off):.1f} %, largest {100 * max(off):.1f} %."
        )
    ours = [one for one in rows if one["rule"] == "makespan"]
    slower = [one for one in ours if one["is_slower"]]
    others = [one for one in ours if one["is_other"]]
    print(f"\nIn {len(ours) - len(others)} of {len(ours)} cells our chunk and (3)'s are the same.")
    for part, title in (
        (others, "In the others"),
        ([one for one in ours if one not in others], "Where equal (noise)"),
    ):
        if part:
            ratios = [one["of_equation3"] for one in part]
            print(
                f"{title} the TTFT is {min(ratios):.2f} to {max(ratios):.2f} of (3)'s, median {median(ratios):.2f}."
            )
    print(
        f"Live, ours is slower beyond the noise in {len(slower)}; by the recursion in "
        f"{sum(one['is_slower_predicted'] for one in ours)}."
    )
    for one in slower:
        print(f"- slower: {one['link']}, {one['prompt']} tokens, {one['reply']}: {one['of_equation3']:.2f}")
    ideals(rows)
    print(f"\n{NOTE.format(cores=os.cpu_count())}")


def ideals(rows: Sequence[Mapping[str, Any]]) -> None:
    """The chunks by the idle machine's figures."""
    print("\n## By the recursion with the idle machine's figures: chunk, TTFT in ms\n")
    print(
        "| link | prompt | reply | none | equation (3) | makespan | makespan / (3) | / none |\n|" + "---|" * 8
    )
    cells: dict[tuple[str, int, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for one in rows:
        cells[one["link"], one["prompt"], one["reply"]][one["rule"]] = one
    for (link, prompt, reply), by_rule in cells.items():
        figures = [f"{by_rule[rule]['ideal_chunk']}: {_ms(by_rule[rule]['ideal_s'])}" for rule in RULES]
        none, paper, ours = (by_rule[rule]["ideal_s"] for rule in RULES)
        print(
            f"| {link} | {prompt} | {reply} | {' | '.join(figures)} | {ours / paper:.3f} | {ours / none:.3f} |"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


if __name__ == "__main__":
    main(
        options(
            __doc__,
            kind=("Q8_0", "kind of weights"),
            layers=(2, "that the device keeps"),
            links=(["5/10", "10/15", "0.5/1", "0.25/0.5", "0.1/0.2"], "MB/s up/down"),
            prompts=([64, 256, 1024, 2048], "tokens"),
            repeats=(5, "of each cell; of prompts from 1,024 tokens on two less, from 2,048 on three"),
            out=("split_links.jsonl", "file of measurements, added to"),
            json=("", "file for the figures"),
            report=(False, "evaluate only what is there"),
            quick=(False, "two links, short prompts, once"),
        )
    )
