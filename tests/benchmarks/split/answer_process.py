"""What runs in the process of a device, or of the whole model: answers, and measurements of an idle machine."""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from depths import CloudProbe, DeviceProbe
from helpers.prompt_tokens import prompt_ids

from disco.endpoints.event_coding import delta_of
from disco.endpoints.host.host_split import HostSplit
from disco.endpoints.llamacpp.batching.engine import Engine
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from disco.events import Ended
from disco.request import Request
from disco.speculate.chunks import Chunks, Reply, chunk_of
from disco.speculate.messages import Opening, Round

__all__ = ["Answers", "serve"]

WORDS = ("tree", "house", "river", "stone", "light", "water", "bread", "paper", "night", "music")


def serve(connection: Connection, key: str) -> None:
    """Call methods for another process until it hangs up."""
    anyio.run(_serve, connection, key)


async def _serve(connection: Connection, key: str) -> None:
    answers = Answers(key)
    try:
        while True:
            try:
                method, given = await to_thread.run_sync(connection.recv)
            except (EOFError, OSError):
                return
            try:
                result: tuple[bool, Any] = True, await getattr(answers, method)(**given)
            except Exception:  # noqa: BLE001 - the other process raises it
                result = False, traceback.format_exc()
            connection.send(result)
    finally:
        await answers.close()


class Answers:
    """Endpoints by name. A split model is in a host, a process of its own, as an application has it.

    Mutable: `_splits`, `_wholes`, `_ways` (how each split model cuts prompts), `_models` (a device's part by its file,
    which makes tokens of prompts and computes nothing).
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._splits: dict[str, HostSplit] = {}
        self._wholes: dict[str, Engine] = {}
        self._ways: dict[str, tuple[Path, Chunks, Reply]] = {}
        self._models: dict[Path, DeviceModel] = {}

    def _server(self, base_url: str, wire: str) -> LayerServer:
        dtype = Dtype.F32 if wire == "float32" else Dtype.F16
        return LayerServer(base_url=base_url, api_key=self._key, dtype=dtype, patience_s=60.0)

    async def open_split(
        self,
        name: str,
        device: Path,
        base_url: str,
        wire: str = "float16",
        *,
        context_tokens: int,
        **options: Any,
    ) -> None:
        """Open a split endpoint, and measure its link; options as `SplitOptions` takes them."""
        endpoint = HostSplit(
            device,
            self._server(base_url, wire),
            SplitOptions(**options),
            name=name,
            slots=1,
            context_tokens=context_tokens,
        )
        self._splits[name] = endpoint
        self._ways[name] = device, options.get("chunks", "makespan"), options.get("reply", "last")
        if device not in self._models:
            self._models[device] = DeviceModel(
                device,
                gpu_layers=0,
                context_tokens=context_tokens,
                threads=1,
                batch_tokens=1,
                keep_loading=lambda: True,
            )
        await endpoint.warm_up()

    async def open_whole(self, name: str, path: Path, chunk: int, context_tokens: int) -> None:
        """Open the whole model, which reads prompts in chunks."""
        engine = Engine(path, name=name, slots=1, context_tokens=context_tokens, batch_tokens=chunk)
        self._wholes[name] = engine
        await engine.warm_up()

    async def close(self, name: str | None = None) -> None:
        """Close an endpoint, or all."""
        for mine in (self._splits, self._wholes):
            for one in [name] if name is not None else list(mine):
                if (found := mine.pop(one, None)) is not None:
                    await found.aclose()

    async def ask(self, name: str, messages: list[dict[str, str]], **params: Any) -> dict[str, Any]:
        """Let an endpoint answer.

        Returns:
            ids, text, finish_reason; came: (s since the question, tokens) of each piece of text. Of a split model
            also: chunk, how the prompt is cut; report, that of the drafting; ahead, what was drafted ahead.
        """
        if name in self._wholes:
            return await self._ask_whole(self._wholes[name], messages, params)
        endpoint = self._splits[name]
        request = Request(messages, "m", params)
        device, chunks, reply = self._ways[name]
        prompt = len(prompt_ids(self._models[device], messages, "bench"))
        known = await endpoint.measured()
        chunk = chunk_of(known.path, prompt, chunks, reply=reply, most=known.batch_tokens)
        text, end, came, ids = "", "", [], []
        began_at = time.perf_counter()
        async with endpoint.open(request) as attempt:
            async for event in attempt:
                if isinstance(event, Ended):
                    end = event.finish_reason
                elif isinstance(event, list):
                    text += "".join(delta.text for delta in event)
                    ids += [one for delta in event for one in delta.ids or ()]
                    came.append((time.perf_counter() - began_at, sum(delta.tokens for delta in event)))
            report = attempt.speculation
        then = await endpoint.measured()
        return {
            "ids": ids,
            "text": text,
            "finish_reason": end,
            "came": came,
            "prompt_tokens": prompt,
            "chunk": chunk,
            "report": None if report is None else asdict(report),
            "ahead": [then.ahead_tokens - known.ahead_tokens, then.ahead_used - known.ahead_used],
        }

    @staticmethod
    async def _ask_whole(
        engine: Engine, messages: list[dict[str, str]], params: dict[str, Any]
    ) -> dict[str, Any]:
        key = secrets.token_hex(16)
        opening = Opening(messages, params, params["seed"])
        alone = engine.facts().context_tokens  # as far as it goes
        round_ = Round(key, 0, 0, alone=alone, opening=opening)
        ids: dict[int, int] = {}
        text, end, came = "", "", []
        began_at = time.perf_counter()
        async with aclosing(engine.round(round_)) as verdicts:
            async for verdict in verdicts:
                ids.update(enumerate(verdict.ids, verdict.at))
                text += "".join(delta_of(delta, delta).text for delta in verdict.deltas)
                came.append((time.perf_counter() - began_at, len(verdict.ids)))
                end = verdict.finish_reason or end
        engine.release(key)
        return {"ids": [ids[at] for at in range(len(ids))], "text": text, "finish_reason": end, "came": came}

    async def prompt(self, name: str, tokens: int, number: int) -> list[dict[str, str]]:
        """Return a conversation of exactly so many tokens; those with other numbers share hardly a token with it."""
        model = self._models[self._ways[name][0]]
        words = [WORDS[(number * 7 + place * (1 + number % 3)) % len(WORDS)] for place in range(tokens)]

        def made(count: int) -> list[dict[str, str]]:
            system = {"role": "system", "content": f"{number} times you were asked."}
            return [system, {"role": "user", "content": " ".join(["Go on:", *words[:count]])}]

        few, many = 0, tokens
        while few < many:
            middle = (few + many + 1) // 2
            few, many = (
                (middle, many)
                if len(prompt_ids(model, made(middle), "bench")) <= tokens
                else (few, middle - 1)
            )
        found = len(prompt_ids(model, made(few), "bench"))
        if found != tokens:
            raise ValueError(f"no prompt of {tokens} tokens, only of {found}")
        return made(few)

    async def prepare_s(self, name: str, messages: list[dict[str, str]]) -> float:
        """Return how long a conversation takes to become tokens."""
        return _quickest(partial(prompt_ids, self._models[self._ways[name][0]], messages, "bench"), 3)

    async def measure_device(self, device: Path, tokens: int, context_tokens: int) -> dict[str, Any]:
        """See `DeviceProbe.depth`."""
        return await to_thread.run_sync(_measured, partial(DeviceProbe, device, context_tokens), tokens)

    async def measure_cloud(self, device: Path, base_url: str, tokens: int) -> dict[str, Any]:
        """See `CloudProbe.depth`. The link should not be shaped."""
        made = partial(CloudProbe, device, self._server(base_url, "float16"))
        return await to_thread.run_sync(_measured, made, tokens)

    async def measure_way(self, device: Path, base_url: str, up_bps: float, down_bps: float) -> float:
        """Return the round trip without payload, s."""
        with CloudProbe(device, self._server(base_url, "float16")) as probe:
            return await to_thread.run_sync(probe.round_trip_s, up_bps, down_bps)

    async def meter(self, name: str) -> dict[str, Any]:
        """Return what a split endpoint thinks of its link."""
        path = (await self._splits[name].measured()).path
        return {"rtt_s": path.rtt_s, "up_bps": path.up_bps, "down_bps": path.down_bps}


def _measured(made: Callable[[], Any], tokens: int) -> dict[str, Any]:
    with made() as probe:
        return probe.depth(tokens)


def _quickest(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began_at = time.perf_counter()
        call()
        took.append(time.perf_counter() - began_at)
    return min(took)
