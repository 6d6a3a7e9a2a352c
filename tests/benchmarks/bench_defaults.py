"""A chat app on the first day: what each preset, and naming none, does to the first word, at 1, 6 and 20 users.

The app is real `AsyncDisco` with a real SmolLM2 on this machine (a child process of its own) and a real llama-server
behind a strict front: it takes the right key, the right model's name and known parameters only, and adds the time of a
network. Beside it stand the plain SDK with the server alone, and the device alone. The SDK and the client that says
nothing put the same load on the server, so they share it: each question is asked once by either, in random order and in
the same queue. The other arms take turns in blocks, with the same questions. Both models run on this machine's few
cores: what the device computes slows the server, which it would not elsewhere.

Printed for each arm and load: who answered, first words P50, P90 and P99 (seconds from the call to the first text),
the ratio of P50 and P90 to the server alone (median and upper 95 % bound, by bootstrap over the turns), the longest
ratio of a first word's P99 to the better of the two alone, and the money paid to the server per 1,000 requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import helpers.tests_path  # noqa: F401
import numpy as np
import openai
from helpers.measuring import Columns, options
from servers import native_llama_server

from disco import AsyncDisco

KEY, MODEL = "sk-strict-front-0123456789", "large-model"
NETWORK_S = (0.04, 0.02)  # mean and spread of a round trip, s
PRICE = (0.15, 0.60)  # USD per million tokens, in and out
ALLOWED = {"model", "messages", "stream", "stream_options", "max_tokens", "temperature", "seed"}
NOTHING = "nothing said"
NUMBERS = itertools.count(10_000)
PRESETS = ("balanced", "cheap", "fast")
SERVER_ALONE, DEVICE_ALONE = "server alone", "device alone"
SHARING = (SERVER_ALONE, NOTHING)  # one queue: both ask the server for every answer
SUBJECTS = (
    "tides",
    "bread",
    "snow",
    "bees",
    "clocks",
    "rivers",
    "maps",
    "glass",
    "violins",
    "owls",
    "salt",
    "trains",
)
WORDS = ("simple", "friendly", "short", "true", "clear", "plain", "honest", "lively", "careful", "exact")


# ---------------------------------------------------------------------- the strict front


class StrictFront:
    """Passes requests on to llama-server, and refuses what a strict provider refuses. Mutable: `refused`."""

    def __init__(self, upstream: str, model: str) -> None:
        host, _, port = upstream.removeprefix("http://").removesuffix("/v1").partition(":")
        self._upstream = host, int(port)
        self._model = model
        self._serving: set[Any] = set()
        self.refused: Counter[int] = Counter()
        self.base_url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StrictFront]:
        """Listen on a free port of this machine."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with server:
            yield self
            for task in list(self._serving):
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        writer.close()
        self._serving.discard(task)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        # One question has one delay, whoever asks it: the arms differ by what they do, not by the network's luck.
        luck = random.Random(body.partition(b". Explain")[2].partition(b'"')[0])
        await asyncio.sleep(max(0.0, luck.gauss(*NETWORK_S)))
        refusal = self._refusal(lines[0], headers, body)
        if refusal is not None:
            status, code, message = refusal
            self.refused[status] += 1
            text = json.dumps(
                {"error": {"message": message, "type": "invalid_request_error", "code": code}}
            ).encode()
            kind = f"content-type: application/json\r\ncontent-length: {len(text)}"
            writer.write(f"HTTP/1.1 {status} Refused\r\n{kind}\r\n\r\n".encode() + text)
            await writer.drain()
            return True
        if body:
            body = json.dumps({**json.loads(body), "model": self._model}).encode()
        from_server, to_server = await asyncio.open_connection(*self._upstream)
        to_server.write(
            f"{lines[0]}\r\nhost: front\r\ncontent-type: application/json\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await to_server.drain()
        try:
            while piece := await from_server.read(65536):
                writer.write(piece)
                await writer.drain()
        finally:
            to_server.close()
        return False  # the end of the connection is the end of the answer

    def _refusal(self, line: str, headers: dict[str, str], body: bytes) -> tuple[int, str, str] | None:
        if headers.get("authorization") != f"Bearer {KEY}":
            return 401, "invalid_api_key", "Incorrect API key provided."
        if "/chat/completions" not in line:
            return 404, "not_found", "Unknown request URL."
        asked = json.loads(body)
        if asked.get("model") != MODEL:
            return 404, "model_not_found", "The model does not exist."
        if unknown := set(asked) - ALLOWED:
            return 400, "unknown_parameter", f"Unrecognized request argument supplied: {min(unknown)}"
        return None


# ---------------------------------------------------------------------- the app


def prompts(seed: int, count: int) -> list[str]:
    """Questions that make prompts of 52 to 69 tokens, as the app's users ask them."""
    draw = random.Random(seed)
    asked = []
    for _ in range(count):
        how = ", ".join(draw.choices(WORDS, k=draw.randint(2, 10)))
        asked.append(f"Explain in a few words how {draw.choice(SUBJECTS)} work. Be {how}.")
    return asked


@dataclass
class Found:
    """What one arm did under one load: per turn the first words, s; who answered; who wrote which first word."""

    firsts: dict[int, list[float]] = field(default_factory=dict)
    winners: Counter[str] = field(default_factory=Counter)
    usd: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


async def ask(client: Any, question: str, tokens: int, found: Found, name: str) -> float | None:
    # Each request begins in its own way, or an arm would find in the server's cache what another one has asked.
    content = f"Note {next(NUMBERS):05d}. {question}"
    began_at = time.perf_counter()
    first_s = None
    try:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": content}],
            max_tokens=tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if first_s is None and chunk.choices and chunk.choices[0].delta.content:
                first_s = time.perf_counter() - began_at
            if chunk.usage is not None and name == SERVER_ALONE:
                found.usd += (
                    chunk.usage.prompt_tokens * PRICE[0] + chunk.usage.completion_tokens * PRICE[1]
                ) / 1e6
    except openai.OpenAIError as error:
        found.errors[type(error).__name__] += 1
        return None
    route = getattr(stream, "route", None)
    found.winners["server" if route is None else route.winner] += 1
    if route is not None:
        found.usd += route.bill_usd
        if route.why:
            found.reasons[f"{route.why[0].endpoint}: {route.why[0].code}"] += 1
    return first_s


async def block(
    arms: dict[str, Any], asked: list[Any], users: int, tokens: int, found: dict[str, Found], turn: int
) -> None:
    """All users ask one after another question, by an arm that chance picks, until each arm has asked each of them."""
    pairs = [(question, name) for question in asked for name in arms]
    random.Random(turn).shuffle(pairs)
    left = iter(pairs)

    async def user() -> None:
        for question, name in left:
            firsts = found[name].firsts.setdefault(turn, [])
            first_s = await ask(arms[name], question, tokens, found[name], name)
            if first_s is not None:
                firsts.append(first_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())


def ratios(mine: Found, other: Found, share: float) -> tuple[float, float]:
    """The ratio of a quantile to another arm's, and its upper 95 % bound, by bootstrap over the turns of both."""
    draw = np.random.default_rng(1)
    turns = sorted(mine.firsts.keys() & other.firsts.keys())

    def of(chosen: Any) -> float:
        both = (np.concatenate([np.asarray(arm.firsts[turns[n]]) for n in chosen]) for arm in (mine, other))
        a, b = (float(np.quantile(values, share)) for values in both)
        return a / b

    drawn = [of(draw.integers(0, len(turns), len(turns))) for _ in range(1000)]
    return of(range(len(turns))), float(np.quantile(drawn, 0.95))


def quantile(found: Found, share: float) -> float:
    return float(np.quantile(np.concatenate([np.asarray(turn) for turn in found.firsts.values()]), share))


async def main() -> None:
    given = options(
        __doc__,
        requests=(1200, "of nothing said and of the server alone, at each load"),
        others=(4, "the other arms take part in every n-th turn only"),
        block=(3, "requests of each user, and at least 6 in all, before the next arm's turn"),
        users=([1, 6, 20], "loads"),
        tokens=(4, "of each answer at most"),
        presets=([*PRESETS], "beside nothing said"),
        json=("", "write the figures to this file, too"),
    )
    names = [SERVER_ALONE, DEVICE_ALONE, NOTHING, *given.presets]
    print(f"{given.requests} requests of an arm and load, at most {given.tokens} tokens an answer")
    figures: dict[str, Any] = {}
    with native_llama_server(slots=max(given.users), context_tokens=512) as llama:
        async with StrictFront(llama.base_url, llama.model).running() as front:
            for users in given.users:
                clients = {name: made(name, front.base_url) for name in names}
                for client in clients.values():
                    if isinstance(client, AsyncDisco):
                        await client.warm_up()
                found = {name: Found() for name in names}
                size = max(6, given.block * users)
                for turn in range(-1, -(-given.requests // size)):  # the first turn warms up
                    asked = prompts(turn, size)
                    is_whole = turn < 0 or turn % given.others == 0
                    blocks = [SHARING, *((name,) for name in names if is_whole and name not in SHARING)]
                    kept = found if turn >= 0 else {name: Found() for name in names}
                    for sharing in random.sample(blocks, len(blocks)):
                        arms = {name: clients[name] for name in sharing}
                        await block(arms, asked, users, given.tokens, kept, turn)
                for client in clients.values():
                    await client.close()
                figures[str(users)] = shown(users, names, found)
            if front.refused:
                print(f"refused by the strict front: {dict(front.refused)}")
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:  # noqa: ASYNC230, PTH123 - at the end
            json.dump(figures, file, indent=1)


def made(name: str, base_url: str) -> Any:
    if name == SERVER_ALONE:
        return openai.AsyncOpenAI(api_key=KEY, base_url=base_url)
    # Without power: the server runs on this machine, too, and would make the device look busy with other programs.
    settings: dict[str, Any] = {
        "local": "smollm2-135m",
        "runtime": "llama-server",
        "state": False,
        "power": False,
    }
    if name == DEVICE_ALONE:
        return AsyncDisco(preset="private", **settings)
    if name != NOTHING:
        settings["preset"] = name
    return AsyncDisco(api_key=KEY, base_url=base_url, price=PRICE, **settings)


def shown(users: int, names: list[str], found: dict[str, Found]) -> dict[str, Any]:
    print(f"\n{users} user{'s' if users > 1 else ''} at once")
    table = Columns(
        "arm <14 | answered by <26 | P50 s >8.3f | P90 s >8.3f | P99 s >8.3f | P50 ratio >10.3f | bound >7.3f | "
        "P90 ratio >10.3f | bound >7.3f | worst >7.2f | USD/1000 >9.4f"
    )
    server = found[SERVER_ALONE]
    better = min(quantile(found[name], 0.99) for name in (SERVER_ALONE, DEVICE_ALONE))
    figures = {}
    for name in names:
        one = found[name]
        total = sum(map(len, one.firsts.values()))
        winners = ", ".join(f"{who} {n}" for who, n in one.winners.most_common())
        if one.errors:
            winners += f", errors {sum(one.errors.values())}"
        p50, p90 = ratios(one, server, 0.5), ratios(one, server, 0.9)
        row = (*(quantile(one, share) for share in (0.5, 0.9, 0.99)), *p50, *p90)
        worst, usd = quantile(one, 0.99) / better, 1000 * one.usd / max(total, 1)
        table.row(name, winners, *row, worst, usd)
        titles = ("p50_s", "p90_s", "p99_s", "p50_ratio", "p50_bound", "p90_ratio", "p90_bound")
        figures[name] = {
            **dict(zip(titles, row, strict=True)),
            "requests": total,
            "winners": dict(one.winners),
            "errors": dict(one.errors),
            "usd_per_1000": usd,
            "reasons": dict(one.reasons),
            "p50_of_turns_s": [statistics.median(turn) for turn in one.firsts.values() if turn],
        }
    for name in names:
        if found[name].reasons:
            print(f"  {name}: " + ", ".join(f"{why} {n}" for why, n in found[name].reasons.most_common()))
    return figures


if __name__ == "__main__":
    asyncio.run(main())
