"""A live cascade of three processes on labelled sentences: what goes up, what passes the wires, what it costs.

The device: SmolLM2 in this process, with a few examples. The middle: SmolLM2 in llama.cpp's own server, whose chat
template puts more examples before the prompt. The top is SIMULATED: a server that answers from the gold labels.

Prints, for each way of answering the same sentences: accuracy, TTFT, time to the end, generated tokens, money, bytes.
Then, for the cascade: the share that each tier handed up beside the 95 % interval of beta; the bytes of the route
records beside those that a proxy before each server counted; and the recorded verdicts, given again. An answer is one
word, so that "guard" and "early exit" differ little from "whole" here. The sentences stay where they are: neither the
table nor the route records have any of them.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import anyio
from cascade.counting_proxy import CountingProxy, counted
from helpers import tests_path  # noqa: F401 - finds the servers of the tests
from helpers.measuring import Columns, options
from papers.measure.few_shot import PLAIN_TEMPLATE, FewShotPrompt, choose_examples
from papers.measure.labelled_texts import LabelledText, read_texts
from servers import native_llama_server

from disco import AsyncDisco, RouteLog, Tier
from disco.dispatch import Preset
from disco.endpoints.host import HostEndpoint
from disco.replay import wilson
from disco.replay.verdicts import read_verdicts, replay_verdicts
from disco.session.records.route_record import RouteRecord

LABELS = ("negative", "positive")
MIDDLE_PRICE, TOP_PRICE = (0.02, 0.05), (0.15, 0.60)  # USD per million tokens
WIRED = ("middle", "server")  # endpoints behind a proxy
LONGEST_ANSWER = 4  # tokens of a free answer


@dataclass(frozen=True)
class Way:
    """A way of answering: a policy, its cascade section, and whether the classes are scored or written freely."""

    policy: str
    local: bool = True
    tiers: bool = False
    top: bool = True
    scores: bool = False
    cascade: dict[str, Any] = field(default_factory=dict)


@dataclass
class Figures:
    """What one way has shown so far, one entry for each sentence. Mutable."""

    right: list[bool] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    routes: list[RouteRecord] = field(default_factory=list)
    passed: dict[str, tuple[int, int]] = field(default_factory=dict)  # bytes up and down, at each proxy


def ways(beta: float) -> dict[str, Way]:
    free = {"tiers": True, "policy": "cascade"}
    return {
        "device": Way("device_only", top=False),
        "middle": Way("server_only", local=False, tiers=True, top=False),
        "server": Way("server_only", local=False),
        "race": Way("race"),
        "cascade, classes": Way(**free, scores=True, cascade={"beta": beta, "stream": "whole"}),
        "cascade, whole": Way(**free, cascade={"beta": beta, "stream": "whole"}),
        "cascade, guard": Way(**free, cascade={"beta": beta, "stream": "guard", "guard_tokens": 1}),
        "cascade, early exit": Way(**free, cascade={"beta": beta, "stream": "whole", "early_exit": True}),
    }


async def main(given: Any) -> None:
    texts = read_texts(given.texts, labels=2)[: given.count]
    many = choose_examples(read_texts(given.train, labels=2), 2, given.middle_examples, given.seed)
    prompt = FewShotPrompt(many[: given.examples], LABELS, first_words=10_000, last_words=0)
    device = HostEndpoint(
        model="smollm2-135m", name="device", context_tokens=2048, threads=1, chat_template=PLAIN_TEMPLATE
    )
    print(f"{len(texts)} sentences; beta {given.beta:g}; the top tier is simulated from gold")
    table = Columns(
        "way <21 | accuracy >16 | TTFT s >8.3f | P95 >8.3f | end s >8.3f | tokens >8.1f | µ$ >9.3f | bytes up >10.0f"
        " | down >9.0f"
    )
    chosen = {name: way for name, way in ways(given.beta).items() if not given.ways or name in given.ways}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(device.aclose)
        middle = stack.enter_context(native_llama_server(template=more_examples(many[given.examples :])))
        top = stack.enter_context(gold_server(given))
        proxies = {
            name: await stack.enter_async_context(counted(url))
            for name, url in zip(WIRED, (middle.base_url, top), strict=True)
        }
        folder = Path(given.out or stack.enter_context(tempfile.TemporaryDirectory()))
        checks = []
        for name, way in chosen.items():
            record = folder / f"routes-{name.replace(', ', '-').replace(' ', '-')}.jsonl"
            figures = await answer(way, record, texts, prompt, device, proxies)
            table.row(name, *row(figures))
            checks.append((name, way, figures, record))
        for check in checks:
            report(given.beta, *check)


def more_examples(examples: Sequence[LabelledText]) -> str:
    """A chat template that puts examples before the prompt, and adds nothing else."""
    shown = "".join(
        f"Review: {' '.join(one.text.split())}\nSentiment: {LABELS[one.label]}\n\n" for one in examples
    )
    return f"{{{{ {json.dumps(shown, ensure_ascii=False)} }}}}{PLAIN_TEMPLATE}"


@contextmanager
def gold_server(given: Any) -> Any:
    child = Path(__file__).with_name("gold_server.py")
    command = [
        sys.executable,
        str(child),
        given.texts,
        ",".join(LABELS),
        str(given.accuracy),
        str(given.delay),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


async def answer(
    way: Way,
    record: Path,
    texts: Sequence[LabelledText],
    prompt: FewShotPrompt,
    device: HostEndpoint,
    proxies: dict[str, CountingProxy],
) -> Figures:
    """Ask every sentence once, one after the other, with a client of its own."""
    figures = Figures()
    preset = Preset(
        name="bench",
        dispatch={"policy": way.policy},
        playback={"pace_tps": "off"},
        migration={"enabled": False},
        **({"cascade": way.cascade} if way.cascade else {}),
    )
    how: dict[str, Any] = {"policy": preset, "max_retries": 0, "continuation": "trailing"}
    if way.local:
        how["local"] = device
    if way.tiers:
        how["tiers"] = [
            Tier(
                base_url=proxies["middle"].base_url,
                model="smollm2-135m",
                reach="own",
                price=MIDDLE_PRICE,
                name="middle",
                continuation="trailing",
            )
        ]
    if way.top:
        how |= {"base_url": proxies["server"].base_url, "api_key": "none", "price": TOP_PRICE}
    options = {"task": "sentiment", **({"classes": prompt.classes} if way.scores else {})}
    await anyio.Path(record).unlink(missing_ok=True)
    with RouteLog(record) as routes:
        async with AsyncDisco(**how, on_route=routes) as client:
            await client.warm_up()  # loads the model, and asks servers what they serve
            before = {name: (proxy.bytes_up, proxy.bytes_down) for name, proxy in proxies.items()}
            for text in texts:
                await ask(
                    client, asked(prompt, text), options if way.tiers else {}, LABELS[text.label], figures
                )
    await anyio.sleep(0.2)  # for what is still in a proxy
    for name, proxy in proxies.items():
        up, down = before[name]
        figures.passed[name] = proxy.bytes_up - up, proxy.bytes_down - down
    return figures


def asked(prompt: FewShotPrompt, text: LabelledText) -> dict[str, Any]:
    messages = prompt.request(text.text).messages
    return {"model": "gold", "messages": messages, "temperature": 0, "stop": ["\n"]}


async def ask(
    client: AsyncDisco, request: dict[str, Any], options: dict[str, Any], label: str, figures: Figures
) -> None:
    began, first, answer = time.perf_counter(), None, ""
    stream = await client.chat.completions.create(
        **request, max_tokens=LONGEST_ANSWER, stream=True, extra_body={"disco": options}
    )
    async for chunk in stream:
        text = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if text and first is None:
            first = time.perf_counter() - began
        answer += text
    figures.end_s.append(time.perf_counter() - began)
    figures.ttft_s.append(first or figures.end_s[-1])
    figures.right.append(answer.strip().lower().startswith(label))
    figures.routes.append(stream.route)


def row(figures: Figures) -> list[object]:
    """The cells of a way: means over the sentences, beside the 95 % interval of the accuracy."""
    right, count = sum(figures.right), len(figures.right)
    accuracy = wilson(right / count, count)
    attempts = [attempt for route in figures.routes for attempt in route.attempts]
    return [
        f"{accuracy.mean:.3f} ±{(accuracy.high - accuracy.low) / 2:.3f}",
        statistics.mean(figures.ttft_s),
        sorted(figures.ttft_s)[int(0.95 * (count - 1))],
        statistics.mean(figures.end_s),
        sum(attempt.completion_tokens for attempt in attempts) / count,
        sum(route.policy_cost for route in figures.routes) / count * 1e6,
        sum(attempt.bytes_up for attempt in attempts) / count,
        sum(attempt.bytes_down for attempt in attempts) / count,
    ]


def report(beta: float, name: str, way: Way, figures: Figures, record: Path) -> None:
    """What has to hold of a way: bytes, shares and verdicts."""
    print(f"\n{name}")
    for endpoint, by_proxy in figures.passed.items():
        ours = [a for route in figures.routes for a in route.attempts if a.endpoint == endpoint]
        if ours:
            recorded = (sum(a.bytes_up for a in ours), sum(a.bytes_down for a in ours))
            same = "equal" if recorded == by_proxy else "NOT EQUAL"
            if any(a.outcome in ("lost", "cancelled", "failed") for a in ours):
                same += " (answers were left unread)"
            print(f"  bytes of {endpoint}: {recorded} in the records, {by_proxy} at the proxy: {same}")
    if not way.tiers:
        return
    found = replay_verdicts(read_verdicts(record)[0])
    for one in found:
        count = len(one.verdicts)
        half = 1.96 * math.sqrt(beta * (1.0 - beta) / count)
        inside = "inside" if abs(one.rose - beta) <= half else "OUTSIDE"
        print(f"  {one.key.model}: {one.rose:.3f} of {count} doubted, {inside} {beta:g} ± {half:.3f}")
        print(f"    given again: {one.identical} identical, {one.different} different, {one.unknown} unknown")
    not_judged = [j.why for route in figures.routes for j in route.judgements if j.outcome == "not_judged"]
    if not_judged:
        print(
            f"  not judged: {', '.join(f'{not_judged.count(why)} {why}' for why in sorted(set(not_judged)))}"
        )


if __name__ == "__main__":
    given = options(
        __doc__,
        texts=("", "labelled sentences, `label text` a line"),
        train=("", "others of the kind, for the examples of the prompt"),
        count=(300, "how many sentences"),
        beta=0.3,
        examples=(8, "in the prompt, for every tier"),
        middle_examples=(24, "those of the prompt included"),
        seed=1,
        accuracy=(0.95, "of the simulated top tier"),
        delay=(0.3, "of the simulated top tier, s"),
        ways=([""], "only these ways"),
        out=("", "a folder for the route records"),
    )
    given.ways = [way for way in given.ways if way]
    anyio.run(main, given)
