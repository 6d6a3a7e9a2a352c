"""Programs that spend one budget and are killed while they do, and what they really spent, from outside of them.

`answers` asks a real client for answers of a server; what it spent is what the server read and wrote. `reservations`
uses the shared tally itself as fast as it can, so that kills fall into transactions; it writes down each start once it
was allowed, and each end before it settles.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import multiprocessing.process
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from forked import FORKS
from scripted_server import chunk, sse, usage

from disco import AsyncDisco
from disco.cost.budget_limiter import Limit, WindowCounter
from disco.dispatch import Preset
from disco.errors import BudgetExceededError
from disco.state import SharedBudgets, database

__all__ = [
    "Account",
    "Spent",
    "answers",
    "check_file",
    "killed_until_done",
    "most_in_a_window",
    "paid_server",
    "reservations",
    "spent_by_logs",
]

PROMPT_TOKENS = 12
MAX_TOKENS = 40
# How long a program waits for the file: a busy machine may let the program sleep that holds it.
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Account:
    """Where the programs count, and what they may spend."""

    path: Path
    tokens: int
    window_s: float

    @property
    def limit(self) -> Limit:
        return Limit("server_tokens", "server", "tokens", self.tokens, self.window_s, "killed programs")


@dataclass
class Spent:
    """One attempt: when it ran, Unix time in seconds, and the tokens that it cost."""

    start: float
    end: float
    tokens: int
    program: str


def most_in_a_window(spent: Sequence[Spent], window_s: float) -> int:
    """The most tokens of the attempts that ran at some moment of any one window; its right edge is a start."""
    events = sorted(
        [(s.start, 0, s.tokens) for s in spent] + [(s.end + window_s, -1, -s.tokens) for s in spent]
    )
    return max(itertools.accumulate(tokens for _, _, tokens in events))


def check_file(account: Account) -> None:
    """The file is sound, and nothing is stuck: a window later all of the budget is free."""
    with sqlite3.connect(account.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    later_s = [time.time()]
    budgets = SharedBudgets(account.path, clock=lambda: later_s[0])
    counter = WindowCounter(account.limit, budgets.tally(account.limit.key))
    counter.reserve(1, 0.0)  # finds the reservations of the dead
    later_s[0] += account.window_s * 1.01
    assert counter.left(0.0) == account.tokens - 1
    budgets.close()


# ---------------------------------------------------------------------- a server


class _Paid(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, gap_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gap_s = gap_s
        self.spent: list[Spent] = []
        self.base_url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no fault of the server."""


class _Handler(BaseHTTPRequestHandler):
    server: _Paid
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        now = time.time()
        spent = Spent(now, now, PROMPT_TOKENS, self.headers["x-program"])
        self.server.spent.append(spent)
        most = min(body["max_tokens"], random.randint(8, MAX_TOKENS))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for _ in range(most):
                spent.tokens += 1
                self._write(sse(chunk("word "), done=False))
                time.sleep(self.server.gap_s)
            self._write(sse(chunk(finish="stop"), usage(PROMPT_TOKENS, most)))
            spent.end = time.time()  # before the client can know that it is over
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            spent.end = time.time()
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@contextmanager
def paid_server(gap_s: float = 0.0005) -> Iterator[_Paid]:
    """A server that writes down what each request cost."""
    server = _Paid(gap_s)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# ---------------------------------------------------------------------- programs


def answers(account: Account, name: str, log: Path, count: int, seed: int, base_url: str) -> None:
    """Ask for answers until `count` are complete, those of earlier lives included."""
    _prepare()
    asyncio.run(_answers(account, name, log, count, base_url))


async def _answers(account: Account, name: str, log: Path, count: int, base_url: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with AsyncDisco(
        local=None,
        base_url=base_url,
        api_key="none",
        default_headers={"x-program": name},
        budget={
            "server_tokens": account.tokens,
            "window_s": account.window_s,
            "account": account.limit.account,
        },
        price=(0.1, 0.1),
        preset=Preset(name="paid", dispatch={"policy": "server_only"}, playback={"pace_tps": "off"}),
        state=account.path,
    ) as client:
        while os.fstat(file).st_size < count:
            try:
                stream = await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": "Why is the sea salty?"}],
                    max_tokens=MAX_TOKENS,
                    stream=True,
                )
                async for _ in stream:
                    pass
            except BudgetExceededError:
                os.write(_refused(log), b".")
                await asyncio.sleep(0.01)
            else:
                os.write(file, b".")


def reservations(account: Account, name: str, log: Path, count: int, seed: int) -> None:
    """Reserve and settle until `count` are settled, those of earlier lives included."""
    _prepare()
    rng = random.Random(seed)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    lines = os.open(log.with_suffix(f".{os.getpid()}.lines"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    budgets = SharedBudgets(account.path)
    counter = WindowCounter(account.limit, budgets.tally(account.limit.key))
    for number in itertools.count():
        if os.fstat(file).st_size >= count:
            break
        units = rng.randint(1, account.tokens // 8)
        ticket = counter.reserve(units, time.time())
        if ticket is None:
            os.write(_refused(log), b".")
            time.sleep(0.001)
            continue
        os.write(lines, f"start {number} {units} {time.time()!r}\n".encode())
        time.sleep(rng.choice([0.0, 0.0, 0.001]))
        cost = rng.choice([0, units // 3, units])
        os.write(lines, f"end {number} {cost} {time.time()!r}\n".encode())
        counter.settle(ticket, cost, time.time())
        os.write(file, b".")
    budgets.close()


def spent_by_logs(folder: Path, killed_at: dict[int, float]) -> list[Spent]:
    """What the programs wrote down; who was killed before the end has spent all that was reserved."""
    found: list[Spent] = []
    for path in folder.glob("*.lines"):
        pid = int(path.suffixes[-2].removeprefix("."))
        attempts: dict[str, Spent] = {}
        for line in path.read_text(encoding="ascii").splitlines():
            kind, number, tokens, at = line.split()
            if kind == "start":
                ended_at = killed_at.get(pid, float("inf"))
                attempts[number] = Spent(float(at), ended_at, int(tokens), path.name)
            else:
                attempts[number].tokens, attempts[number].end = int(tokens), float(at)
        found.extend(attempts.values())
    return found


def _refused(log: Path) -> int:
    global _refusals  # noqa: PLW0603 - of this program
    if _refusals is None:
        _refusals = os.open(log.with_suffix(".refused"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return _refusals


_refusals: int | None = None


def _prepare() -> None:
    database.BUSY_S = PATIENCE_S  # type: ignore[misc] # here it is not final
    logging.getLogger("disco").addHandler(logging.StreamHandler())


# ---------------------------------------------------------------------- kills


@dataclass
class Run:
    """What came of the programs.

    Attributes:
        kills: how many processes were killed before they were done.
        killed_at: by process number, when.
        lives: by program, when each of its processes began and was killed.
        refused: how many starts the budget did not allow.
    """

    kills: int = 0
    killed_at: dict[int, float] = field(default_factory=dict)
    refused: int = 0


def killed_until_done(
    target: Callable[..., None],
    account: Account,
    folder: Path,
    *more: object,
    count: int,
    programs: int = 4,
    lives_s: tuple[float, float],
    seed: int,
    most_kills: int = 10**9,
) -> Run:
    """Start the programs, kill each at random and start it again, until each has counted to `count`.

    Args:
        target: `answers` or `reservations`.
        account: what they share.
        folder: of their logs.
        more: further arguments of the target.
        count: how far each must come.
        programs: how many there are.
        lives_s: the shortest and the longest time from one kill to the next, s.
        seed: of the moments.
        most_kills: then they may end in peace.
    """
    rng = random.Random(seed)
    run = Run()
    lives = itertools.count(seed)
    logs = [folder / f"program{number}.done" for number in range(programs)]

    def begin(number: int) -> multiprocessing.process.BaseProcess:
        arguments = (account, str(number), logs[number], count, next(lives), *more)
        process = FORKS.Process(target=target, args=arguments)
        process.start()
        return process

    running = {number: begin(number) for number in range(programs)}
    try:
        while running:
            time.sleep(rng.uniform(*lives_s))
            number = rng.choice(sorted(running))
            process = running[number]
            if process.is_alive() and run.kills < most_kills:
                assert process.pid is not None
                run.killed_at[process.pid] = time.time()
                os.kill(process.pid, signal.SIGKILL)
            elif process.is_alive():
                continue
            process.join()
            if process.exitcode == 0:
                run.killed_at.pop(process.pid or 0, None)
                del running[number]
            else:
                assert process.exitcode == -signal.SIGKILL, "a program ended with an error"
                run.kills += 1
                running[number] = begin(number)
    finally:
        for process in running.values():
            process.kill()
            process.join()
    run.refused = sum(path.stat().st_size for path in folder.glob("*.refused"))
    return run
