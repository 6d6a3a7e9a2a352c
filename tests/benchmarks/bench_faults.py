"""Answers under random faults: disco, the bare SDK and `litellm.Router`, one after the other, the same faults.

A real llama.cpp server stands behind a proxy that breaks connections (`tests/faults`); disco's other endpoint is the
same small model in a process of its own, which is killed and frozen, too. At any time one of the two is healthy.

- disco: a new client for each answer (one for each stretch), so that no breaker spares it a fault.
- disco, one client: the breakers do their work; it meets fewer faults.
- with `--learnt N`, disco first sees N healthy answers of each endpoint, and every client begins with what was learnt:
  a silence is then judged by the endpoint's own gaps. `--silent`: only silent faults, at the reader's pace.
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
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import helpers.tests_path  # noqa: F401
from faults.proxy_server.proxy import fault_proxy
from helpers.fault_answers import Got, Stock
from helpers.fault_clients import CONNECT_S, SILENCE_S, Disco, Litellm, Sdk, litellm_process
from helpers.fault_schedule import Turn, healthy_schedule, schedule, silent_schedule
from helpers.measuring import options, percentile
from servers import model_server

from disco.dispatch.presets import PlaybackSection

_PLAIN = '\n[playback]\npace_tps = "off"\n[migration]\nenabled = false\n'

Result = list[tuple[Turn, Got]]
System = Disco | Sdk | Litellm


async def run(system: System, turns: Sequence[Turn]) -> tuple[Result, Stock]:
    """All turns, one after the other."""
    for turn in healthy_schedule(3, seed=0):
        await system.answer(turn)
    await system.take_stock()
    if isinstance(system, Disco) and system.learns:
        await system.learn()
    result: Result = []
    for number, turn in enumerate(turns, 1):
        got = await system.answer(turn)
        result.append((turn, got))
        if isinstance(system, Disco) and (not got.completed or got.wrong):
            print(f"\n{system.name}, answer {number}, {turn}: {got}", file=sys.stderr)
        print(f"\r{system.name}: {number} of {len(turns)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return result, await system.leaked()


def spread(values: Sequence[float]) -> str:
    """P50 / P99 in milliseconds."""
    if not values:
        return "–"
    return f"{statistics.median(values) * 1e3:.0f} / {percentile(values, 0.99) * 1e3:.0f}"


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
    head = ["client", "answers", "faults met", "completed %", "exact %", "broken", "repeated chars", "TTFT"]
    head += ["wait, no fault", "wait, fault", "wait, silent fault", "left over"]
    out = []
    for name, result, left in rows:
        whole = [got for _, got in result if got.completed]
        unpaced = [(turn, got) for turn, got in result if got.completed and not turn.paced]
        waits: dict[str, list[float]] = {"calm": [], "loud": [], "silent": []}
        for turn, got in unpaced:
            waits["calm" if not got.met else "silent" if turn.silent else "loud"].append(got.longest_s)
        out.append(
            [
                *(name, str(len(result)), str(sum(got.met for _, got in result))),
                *(
                    share(len(whole), len(result)),
                    share(sum(got.wrong is None for got in whole), len(result)),
                ),
                *(str(len(result) - len(whole)), str(sum(got.restarts for _, got in result))),
                *map(spread, ([got.times[0] for _, got in unpaced if got.times], *waits.values())),
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
    groups = {kind: [x for x in result if x[0].kind == kind] for kind in sorted({t.kind for t, _ in result})}
    faulty = [x for x in result if x[0].fault is not None]
    groups["all announced"] = [x for x in faulty if not x[0].silent]
    groups["all silent"] = [x for x in faulty if x[0].silent]
    groups["all, at the reader's pace"] = [x for x in faulty if x[0].paced]
    for kind, some in groups.items():
        delays: dict[bool, list[float]] = {False: [], True: []}
        for turn, got in some:
            if turn.paced == kind.endswith("pace"):
                for gap, begun in got.gaps:
                    delays[begun].append(max(0.0, gap - (chunk if begun else usual)))
        counts = [len(some), sum(got.met for _, got in some), sum(bool(got.gaps) for _, got in some)]
        good = (sum(got.completed for _, got in some), sum(got.wrong is None for _, got in some))
        shares = [share(count, len(some)) for count in good]
        rows.append([kind, *map(str, counts), *shares, spread(delays[False]), spread(delays[True])])
    head = ["fault", "answers", "met", "failed over", "completed %", "exact %"]
    table([*head, "delay before text", "delay in mid-text"], rows)


def readers(name: str, result: Result) -> None:
    """What a reader at the default pace waits for, beyond what is still to be read; and who was started in doubt."""
    pace_tps = PlaybackSection().pace_tps
    assert pace_tps != "off"
    print(
        f"\n{name}, at the reader's pace of {pace_tps:g} tokens/s: the longest wait of an answer's reader, ms"
    )
    rows = []
    for kind in [*sorted({turn.kind for turn, _ in result if turn.paced}), "all silent"]:
        some = [
            (turn, got)
            for turn, got in result
            if turn.paced and (turn.kind == kind or (kind == "all silent" and turn.silent and got.met))
        ]
        if some:
            waits = [got.waited_s(pace_tps) for _, got in some]
            counts = [sum(got.met for _, got in some), sum(bool(got.hedged) for _, got in some)]
            end = spread([got.ended_late_s for _, got in some])
            rows.append(
                [kind, str(len(some)), *map(str, counts), spread(waits), f"{max(waits) * 1e3:.0f}", end]
            )
    head = ["fault", "answers", "met", "heir started", "wait P50 / P99", "longest", "end after the last text"]
    table(head, rows)
    calm = [got for turn, got in result if turn.fault is None]
    if calm:
        print(
            f"healthy answers: {len(calm)}, of which {sum('heir' in got.hedged for got in calm)} had an heir in the "
            f"middle and {sum('hedge' in got.hedged for got in calm)} a hedge before the first word"
        )


def presets(folder: Path) -> None:
    """The policies of the turns, as files."""
    for policy in ("server_only", "race", "device_only"):
        text = f'[dispatch]\npolicy = "{policy}"\n'
        (folder / f"{policy}.toml").write_text(text + _PLAIN)
        (folder / f"{policy}-paced.toml").write_text(text)


async def main() -> None:
    given = options(
        __doc__,
        answers=(60, "of each client"),
        seed=(1, "of the faults"),
        litellm=(None, "an interpreter that has litellm"),
        only=([""], "names of clients, such as disco"),
        learnt=(0, "healthy answers of each endpoint that disco's clients have learnt from"),
        silent=(False, "only silent faults, at the reader's pace"),
    )
    turns = (silent_schedule if given.silent else schedule)(given.answers, given.seed)
    rows: list[tuple[str, Result, Stock]] = []
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(model_server())
        proxy = stack.enter_context(fault_proxy(server.base_url))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        presets(folder)
        systems: list[System] = [
            Disco(proxy, server, folder, one_client=one, learns=given.learnt) for one in (False, True)
        ]
        systems.append(Sdk(proxy))
        if given.litellm is None:
            print("litellm.Router is left out: no --litellm PYTHON", file=sys.stderr)
        else:
            spare = stack.enter_context(model_server())
            process = await stack.enter_async_context(litellm_process(given.litellm, proxy.base_url, spare))
            systems.append(Litellm(proxy, process))
        for system in systems:
            if any(given.only) and system.name not in given.only:
                continue
            result, left = await run(system, turns)
            rows.append((system.name, result, left))
    faulty = sum(turn.fault is not None for turn in turns)
    print(f"{len(turns)} answers, {faulty} of them with a fault, seed {given.seed}")
    print(f"clocks: {CONNECT_S:g} s to connect, {SILENCE_S:g} s of silence")
    overview(rows)
    for name, result, _ in rows:
        if name.startswith("disco"):
            if not given.silent:
                by_kind(name, result)
            readers(name, result)
    ours = [got for name, result, _ in rows if name.startswith("disco") for _, got in result]
    if bad := sum(not got.completed or got.wrong is not None for got in ours):
        raise SystemExit(f"{bad} of disco's answers were not complete, or not exact")


if __name__ == "__main__":
    asyncio.run(main())
