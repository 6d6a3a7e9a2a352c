"""Answers whose local model is killed with SIGKILL, in each phase of its work: is every one of them complete and exact?

    python tests/benchmarks/bench_host_kills.py [--answers 200] [--seed 1] [--parents 10]

The device is a real SmolLM2 in a host; a real llama.cpp server has the same model, and a `disco serve --verify` checks
drafts. Each answer is judged by what was heard on the wire: complete, each piece the text of its writer, every token
charged. Then programs with a host are killed: their hosts must end. The exit code is 1 if anything is wrong.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import helpers.tests_path  # noqa: F401
from endpoints.host.processes import is_alive
from faults.host_kills import OF_LLAMA_SERVER, PHASES, Lab, Trial, verify_server
from helpers.measuring import options
from servers import model_server

PARENT = Path(__file__).parents[1] / "endpoints/host/parent.py"
ENDS_WITHIN_S = 20.0


def hosts_left(pids: set[int]) -> int:
    """How many of these processes live on after a while."""
    until = time.monotonic() + ENDS_WITHIN_S
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return sum(map(is_alive, pids))


async def answers(program: str, phases: tuple[str, ...], count: int, seed: int) -> tuple[list[Trial], int]:
    with model_server() as server, verify_server() as verifier:
        lab = Lab(server, verifier, program, seed)
        trials = []
        try:
            for number in range(count):
                trial = await lab.until_struck(phases[number % len(phases)])
                trials.append(trial)
                for sentence in trial.wrong:
                    print(f"\n{program}, answer {number}, {trial.phase}: {sentence}", file=sys.stderr)
                print(f"\r{program}: {number + 1} of {count}", end="", file=sys.stderr, flush=True)
        finally:
            await lab.aclose()
        print(file=sys.stderr)
        return trials, hosts_left(lab.hosts)


def orphans(program: str, count: int) -> int:
    """How many hosts outlive a program that is killed."""
    pids = set()
    for number in range(count):
        command = [sys.executable, str(PARENT), program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pids.add(int(parent.stdout.readline()))
            time.sleep(0.05 * number)
            os.kill(parent.pid, signal.SIGKILL)
    return hosts_left(pids)


def main() -> int:
    given = options(
        __doc__,
        answers=(200, "with the engine; a quarter of them with llama-server"),
        seed=(1, "of the moments"),
        parents=(10, "programs that are killed"),
    )
    rows, is_wrong = [], False
    for program, phases, count in (
        ("engine", PHASES, given.answers),
        ("llama-server", OF_LLAMA_SERVER, given.answers // 4),
    ):
        trials, left = anyio.run(answers, program, phases, count, given.seed)
        left += orphans(program, given.parents)
        is_wrong = is_wrong or left > 0
        for phase in phases:
            of_phase = [one for one in trials if one.phase == phase]
            struck = sum(one.struck for one in of_phase)
            right = sum(not one.wrong for one in of_phase)
            is_wrong = is_wrong or right < len(of_phase) or struck < len(of_phase)
            rows.append(f"| {program} | {phase} | {len(of_phase)} | {struck} | {right} |")
        rows.append(
            f"| {program} | hosts of killed programs | {given.parents} | {given.parents} | {left} left |"
        )
    print("| host | phase | answers | killed in it | complete, exact, charged |\n|---|---|---|---|---|")
    print("\n".join(rows))
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
