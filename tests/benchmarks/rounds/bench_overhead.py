"""What a round costs beside the model and the choice of tokens: processor time of both sides.

A verify server in a process of its own, and the drafter here, one thread each, with no delay between them. Counted from
the first verdict on a window to the end of the answer: the processor time of each process, less what passes inside
llama_decode and inside the sampler, over the windows. The client's part is the composite endpoint, the machine of
rounds, HTTP, and the drafter beside its model; the server's is HTTP, the engine and the text of the answer.

The aim is 1.5 ms for both together. Other processes disturb this less than they disturb wall time, but not little: they
share caches and the clock. So does the model: it reads all its weights for a batch, and what a round needs is
no longer in the caches behind that. With --no-model both models stop computing behind the first window of one answer,
which shows what the round itself costs (only the first of each list is measured).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import anyio
import openai
from cpu_shares import Shares, count_shares
from helpers.measuring import met, options
from pair_lab import KEY, Watch, ask, device, model_file, prompts

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.speculate.messages import Round, Verdict

TARGET_MS = 1.5
ROOT = Path(__file__).parents[3]


class Server:
    """The verify server's process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process, self.port = process, port

    def now(self, order: str = "") -> tuple[float, ...]:
        """See `Shares.now`, and `cpu_shares` for the order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(order, file=self._process.stdin, flush=True)
        while not (line := self._process.stdout.readline()).startswith("["):
            pass  # what the command says
        return tuple(json.loads(line))


@contextmanager
def counting_server(model: Path) -> Iterator[Server]:
    """Run a verify server that counts."""
    import os

    command = [sys.executable, str(Path(__file__).parent / "cpu_shares.py"), "--verify", str(model)]
    command += ["--slots", "2", "--context", "1024", "--threads", "1", "--port", "0", "--preset", "private"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "DISCO_"))
    }
    environment |= {"PYTHONPATH": str(ROOT), "DISCO_SERVER_KEY": KEY}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            yield Server(process, int(process.stdout.readline().rpartition(":")[2].partition("/")[0]))
        finally:
            process.kill()


class Counted(Watch):
    """Notes what both processes have used at the first verdict on a window and at each eighth one behind it.

    Mutable: `began`, `ended`, `windows`, `_passed`.
    """

    def __init__(self, inner: Any, here: Shares, there: Server, *, stops_models: bool) -> None:
        super().__init__(inner)
        self._here, self._there, self._stops_models = here, there, stops_models
        self.began: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self.ended = self.began
        self._passed = self.windows = 0

    async def round(self, round_: Round) -> Verdict:
        verdict = await super().round(round_)
        if self.began is None:
            if self._stops_models:
                self._here.has_model = False
            there = self._there.now("no model" if self._stops_models else "")
            self.began = self._here.now(), there
            return verdict
        self._passed += 1
        if self._passed % 8 == 0:
            self.ended, self.windows = (self._here.now(), self._there.now()), self._passed
        return verdict


async def main(given: Any) -> list[dict[str, Any]]:
    if given.no_model:
        # What the caches are said to hold is then not in them, so no second answer would be possible.
        given.prompts, given.windows = 1, given.windows[:1]
        given.parallel, given.temperatures = given.parallel[:1], given.temperatures[:1]
    here, rows = count_shares(), []
    texts = prompts()[2::7][: given.prompts]
    model = device(given.draft, context=1024)
    await model.warm_up()
    with counting_server(model_file(given.target)) as there:
        url = f"http://127.0.0.1:{there.port}/v1"
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url, max_retries=0, timeout=600) as sdk:
            pairing = Pairing(model.drafter())
            await pairing.ask(sdk)
            try:
                for temperature in given.temperatures:
                    for parallel in given.parallel:
                        for window in given.windows:
                            found = []
                            for number, text in enumerate(texts):
                                watches: list[Counted] = []

                                def counted(inner: Any, to: list[Counted] = watches) -> Counted:
                                    to.append(Counted(inner, here, there, stops_models=given.no_model))
                                    return to[-1]

                                await ask(
                                    OpenAIEndpoint(client=sdk),
                                    pairing,
                                    text,
                                    tokens=given.tokens,
                                    temperature=temperature,
                                    seed=number,
                                    window=window,
                                    parallel=parallel,
                                    watch=counted,
                                )
                                if watches[0].windows:
                                    found.append(shares(watches[0]))
                            rows.append(row(temperature, parallel, window, found))
                            print(f"{time.strftime('%H:%M:%S')} {rows[-1]}", file=sys.stderr, flush=True)
            finally:
                await pairing.aclose()
                await model.aclose()
    return rows


def shares(watch: Counted) -> tuple[int, list[float], list[float]]:
    """Windows; for client and server, ms per window: beside the model, of that in the loop, computing, sampling."""
    assert watch.began is not None
    assert watch.ended is not None
    sides = []
    for began, ended in zip(watch.began, watch.ended, strict=True):
        all_s, computing_s, sampling_s, loop_s = (b - a for a, b in zip(began, ended, strict=True))
        parts = (all_s - computing_s - sampling_s, loop_s, computing_s, sampling_s)
        sides.append([1e3 * part / watch.windows for part in parts])
    return watch.windows, sides[0], sides[1]


def row(
    temperature: float, parallel: int, window: int, found: list[tuple[int, list[float], list[float]]]
) -> dict[str, Any]:
    """Medians over answers."""
    client, server = ([median(one[side][n] for one in found) for n in range(4)] for side in (1, 2))
    return {
        "temperature": temperature,
        "in_flight": parallel,
        "window": window,
        "windows": sum(one[0] for one in found),
        "client_ms": client[0],
        "client_loop_ms": client[1],
        "server_ms": server[0],
        "server_loop_ms": server[1],
        "together_ms": median(one[1][0] + one[2][0] for one in found),
        "model_ms": client[2] + server[2],
        "sampling_ms": client[3] + server[3],
    }


def show(rows: list[dict[str, Any]]) -> None:
    names = ("temperature", "in_flight", "window", "windows")
    times = (
        "client_ms",
        "client_loop_ms",
        "server_ms",
        "server_loop_ms",
        "together_ms",
        "sampling_ms",
        "model_ms",
    )
    print("| T | in flight | window | windows | client ms | its loop | server ms | its loop | together ms "
          "| sampling ms | model ms | target |")  # fmt: skip
    print("|" + "---|" * 12)
    for one in rows:
        cells = [*(one[name] for name in names), *(f"{one[name]:.2f}" for name in times)]
        print(f"| {' | '.join(map(str, cells))} | {met(one['together_ms'], TARGET_MS)} |")


if __name__ == "__main__":
    chosen = options(
        __doc__,
        target=("F16", "kind of weights"),
        draft=("Q8_0", "kind of weights"),
        windows=[1, 4, 8],
        parallel=([1, 2], "windows in flight"),
        temperatures=[0.0, 0.8],
        prompts=4,
        tokens=(128, "most tokens of an answer"),
        no_model=(False, "compute nothing behind the first window"),
        json=("", "file for the figures"),
    )
    measured = anyio.run(main, chosen)
    show(measured)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(measured, indent=1), encoding="utf-8")
