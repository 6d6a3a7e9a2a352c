"""Answers under random faults: disco, the bare SDK and `litellm.Router`, one after the other, the same faults.

Run `python tests/benchmarks/bench_faults.py [--answers 1000] [--litellm PYTHON]`. A real llama.cpp server stands behind
a proxy that breaks connections (`tests/faults`); disco's other endpoint is the same small model in a process of its
own, which is killed and frozen, too. At any time one of the two is healthy. Half of the requests have a fault; there
are stretches during which the server is down (`helpers/fault_schedule.py`). Whether each of disco's answers is exactly
what its writers wrote is judged by what was heard of them, not by disco's record (`helpers/fault_witness.py`). All have
the same clocks.

- disco: a new client for each answer (one for each stretch), so that no breaker spares it a fault.
- disco, one client: the breakers do their work; it meets fewer faults.
- openai SDK: retries on, as it comes (2). It has no other endpoint to go to.
- litellm.Router: num_retries=2, and a healthy second server, unproxied, as fallback.

For the last two, a killed or frozen device is a connection closed or silent at the same moment. Only disco's rows can
fail the run: when an answer is not complete, or is not exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

for folder in ("support/servers", "support", "."):  # the tests' fault laboratory
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from faults.proxy_server.proxy import fault_proxy  # noqa: E402
from helpers.fault_clients import CONNECT_S, SILENCE_S, Got, Litellm, Sdk, Stock, litellm_process  # noqa: E402
from helpers.fault_disco import Disco  # noqa: E402
from helpers.fault_schedule import Turn, schedule  # noqa: E402
from helpers.measuring import options as command_line  # noqa: E402
from servers import llama_cpp_server  # noqa: E402

_PLAIN = '\n[playback]\npace_tps = "off"\n[migration]\nenabled = false\n'

Result = list[tuple[Turn, Got]]
System = Disco | Sdk | Litellm


async def run(system: System, turns: Sequence[Turn]) -> tuple[Result, Stock]:
    """All turns, one after the other."""
    plain = [turn for turn in schedule(60, 0) if turn.fault is None][:3]
    for turn in plain:
        await system.answer(turn)
    await system.take_stock()
    result: Result = []
    began = time.monotonic()
    for number, turn in enumerate(turns, 1):
        got = await system.answer(turn)
        result.append((turn, got))
        if isinstance(system, Disco) and (not got.completed or got.wrong):
            print(f"\n{system.name}, answer {number}, {turn}: {got}", file=sys.stderr)
        if number % 10 == 0 or number == len(turns):
            took_s = time.monotonic() - began
            print(
                f"\r{system.name}: {number} of {len(turns)}, {took_s:.0f} s ",
                end="",
                file=sys.stderr,
                flush=True,
            )
    print(file=sys.stderr)
    return result, await system.leaked()


def spread(values: Sequence[float]) -> str:
    """P50 / P99 in milliseconds."""
    if not values:
        return "–"
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"{statistics.median(ordered) * 1e3:.0f} / {p99 * 1e3:.0f}"


def share(part: int, whole: int) -> str:
    """A percentage that shows one in a thousand."""
    return f"{100 * part / whole:.1f}" if whole else "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print it aligned, as Markdown."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")


def overview(rows: Sequence[tuple[str, Result, Stock]]) -> None:
    """One row per client."""
    print(
        "\nWaits in ms, P50 / P99; the longest wait of an answer's reader, from the request to its end; unpaced."
    )
    head = [
        "client",
        "answers",
        "faults met",
        "completed %",
        "exact %",
        "broken",
        "repeated chars",
        "TTFT",
        "wait, no fault",
    ]
    head += ["wait, fault", "wait, silent fault", "left over"]
    out = []
    for name, result, left in rows:
        whole = [got for _, got in result if got.completed]
        unpaced = [(turn, got) for turn, got in result if got.completed and not turn.paced]
        exact = sum(got.wrong is None for got in whole)
        calm = [got.longest_s for _, got in unpaced if not got.met]
        loud = [got.longest_s for turn, got in unpaced if got.met and not turn.silent]
        silent = [got.longest_s for turn, got in unpaced if got.met and turn.silent]
        out.append(
            [
                name,
                str(len(result)),
                str(sum(got.met for _, got in result)),
                share(len(whole), len(result)),
                share(exact, len(result)),
                str(len(result) - len(whole)),
                str(sum(got.restarts for _, got in result)),
                spread([got.times[0] for _, got in unpaced if got.times]),
                spread(calm),
                spread(loud),
                spread(silent),
                ", ".join(f"{count} {what}" for what, count in left.items()) or "0",
            ]
        )
    table(head, out)


def by_kind(name: str, result: Result) -> None:
    """One row per kind of fault, and what was added at its moment."""
    calm = [got for turn, got in result if turn.fault is None and got.completed and not turn.paced]
    usual = statistics.median(got.times[0] for got in calm)
    chunk = statistics.median(b - a for got in calm for a, b in pairwise(got.times))
    print(
        f"\n{name}, by kind. Delay: what a failure added at its moment, ms, P50 / P99: the wait around it less "
        f"the usual one there\n(to the first chunk {usual * 1e3:.0f}, between two {chunk * 1e3:.0f})."
    )
    rows = []
    kinds = Counter(turn.kind for turn, _ in result)
    groups: list[tuple[str, Result]] = [
        (kind, [x for x in result if x[0].kind == kind]) for kind in sorted(kinds)
    ]
    groups.append(("all announced", [x for x in result if x[0].fault is not None and not x[0].silent]))
    groups.append(("all silent", [x for x in result if x[0].silent]))
    groups.append(("all, at the reader's pace", [x for x in result if x[0].fault is not None and x[0].paced]))
    for kind, some in groups:
        paced = kind.endswith("pace")
        delays: dict[bool, list[float]] = {False: [], True: []}
        for turn, got in some:
            if turn.paced == paced:
                for gap, begun in got.gaps:
                    delays[begun].append(max(0.0, gap - (chunk if begun else usual)))
        rows.append(
            [
                kind,
                str(len(some)),
                str(sum(got.met for _, got in some)),
                str(sum(bool(got.gaps) for _, got in some)),
                share(sum(got.completed for _, got in some), len(some)),
                share(sum(got.wrong is None for _, got in some), len(some)),
                spread(delays[False]),
                spread(delays[True]),
            ]
        )
    head = [
        "fault",
        "answers",
        "met",
        "failed over",
        "completed %",
        "exact %",
        "delay before text",
        "delay in mid-text",
    ]
    table(head, rows)


def presets(folder: Path) -> None:
    """The policies of the turns, as files."""
    for policy in ("server_only", "race", "device_only"):
        text = f'[dispatch]\npolicy = "{policy}"\n'
        (folder / f"{policy}.toml").write_text(text + _PLAIN)
        (folder / f"{policy}-paced.toml").write_text(text)


async def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--answers", type=int, default=60, help="of each client")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--litellm", metavar="PYTHON", help="an interpreter that has litellm")
    parser.add_argument("--only", nargs="*", help="names of clients, such as disco")
    options: Any = parser.parse_args()
    turns = schedule(options.answers, options.seed)
    rows: list[tuple[str, Result, Stock]] = []
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(llama_cpp_server())
        proxy = stack.enter_context(fault_proxy(server.base_url))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        presets(folder)
        systems: list[System] = [Disco(proxy, server, folder, one_client=one) for one in (False, True)]
        systems.append(Sdk(proxy))
        if options.litellm is None:
            print("litellm.Router is left out: no --litellm PYTHON", file=sys.stderr)
        else:
            spare = stack.enter_context(llama_cpp_server())
            process = await stack.enter_async_context(litellm_process(options.litellm, proxy.base_url, spare))
            systems.append(Litellm(proxy, process))
        for system in systems:
            if options.only and system.name not in options.only:
                continue
            result, left = await run(system, turns)
            rows.append((system.name, result, left))
    faulty = sum(turn.fault is not None for turn in turns)
    print(f"{len(turns)} answers, {faulty} of them with a fault, seed {options.seed}")
    print(f"clocks: {CONNECT_S:g} s to connect, {SILENCE_S:g} s of silence")
    overview(rows)
    for name, result, _ in rows:
        if name.startswith("disco"):
            by_kind(name, result)
    ours = [got for name, result, _ in rows if name.startswith("disco") for _, got in result]
    if bad := sum(not got.completed or got.wrong is not None for got in ours):
        raise SystemExit(f"{bad} of disco's answers were not complete, or not exact")


if __name__ == "__main__":
    asyncio.run(main())
