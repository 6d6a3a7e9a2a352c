"""Divided answers through the client, in virtual time: a device that reads slowly, servers in memory with faults."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
from faults.in_memory import RESET, MemoryServer, Reply, Step
from faults.lab import Answer
from faults.proxy_server.origin import begun_by
from scripted_server import chunk, sse, usage

from disco import AsyncDisco
from disco.dispatch import Preset, load_preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import DeviceProfile, QuantileTable, ServerProfile
from disco.request import Timeouts

ANSWER = "".join(f"word{n} " for n in range(90)) + "and that is all."
PIECES = re.findall(r"\S+\s*", ANSWER)
READ_TPS, WRITE_TPS, TTFT_S, GAP_S = 250.0, 25.0, 0.5, 0.02
CLOCKS = Timeouts(connect_s=2.0, first_content_s=20.0, gap_s=3.0, total_s=600.0)
DEVICE = DeviceProfile(name="slow reader", source="test", prefill_tps=READ_TPS, decode_tps=WRITE_TPS)
SERVER = ServerProfile(
    name="quick",
    source="test",
    licence="none",
    rows=1,
    ttft_s=QuantileTable(levels=(0.0, 1.0), values=(TTFT_S, TTFT_S + 0.1), mean=TTFT_S + 0.05),
    tpot_s=QuantileTable(levels=(0.0, 1.0), values=(GAP_S, GAP_S), mean=GAP_S),
)
NAMES = ("max_tokens", "max_completion_tokens")


def question(words: int = 800, about: str = "sea") -> list[dict[str, str]]:
    """About three seconds of reading for the device."""
    return [{"role": "user", "content": " ".join([about] + ["wave"] * (words - 1))}]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a server's answers from their beginning.

    Attributes:
        dies_after: pieces of text after which the connection breaks; 0: before the first.
        ends_after: pieces of text after which the answer is complete.
        ignores: names of the limit that it does not keep to.
        refuses: names of the limit that it answers with a status of 400.
        begins: deltas before the text: a thought, or a call.
        hidden: tokens that it thinks first, without showing them.
        gap_s: between two pieces.
        first_s: before the first.
    """

    dies_after: int | None = None
    ends_after: int | None = None
    ignores: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    begins: tuple[dict[str, Any], ...] = ()
    hidden: int = 0
    gap_s: float = GAP_S
    first_s: float = TTFT_S


SOUND = Fault()


def writes(fault: Fault = SOUND) -> Callable[[Any], Reply]:
    """A server that writes `ANSWER`, continues any beginning of it, keeps to a limit, and has this fault."""

    def reply(body: Any) -> Reply:
        begun = begun_by(body)
        assert ANSWER.startswith(begun)
        for name in fault.refuses:
            if name in body:
                error = b'{"error": {"message": "Unsupported parameter: \'%s\'."}}' % name.encode()
                return Reply([error], 400, {"content-type": "application/json"})
        limits = [body[name] for name in NAMES if body.get(name) is not None and name not in fault.ignores]
        pieces = re.findall(r"\S+\s*|\s+", ANSWER[len(begun) :])[: fault.ends_after]
        said = [*(chunk(**delta) for delta in fault.begins), *map(chunk, pieces)]
        finish = "stop"
        if limits and len(said) + fault.hidden > min(limits):
            said, finish = said[: max(0, min(limits) - fault.hidden)], "length"
        steps: list[Step] = [fault.first_s, sse(chunk("", role="assistant"), done=False)]
        for number, one in enumerate(said):
            if number == fault.dies_after and not begun:
                return Reply([*steps, RESET])
            steps += [sse(one, done=False), fault.gap_s]
        counted = usage(1000, len(said) + fault.hidden) if body.get("stream_options") else None
        ends = [chunk(finish=finish)] + ([counted] if counted is not None else [])
        return Reply([*steps, sse(*ends)])

    return reply


def device(**profile: Any) -> SimulatedEndpoint:
    """A device that writes the same text, token for token."""
    settings = {"answer": ANSWER, "prefill_tps": READ_TPS, "decode_tps": WRITE_TPS, **profile}
    return SimulatedEndpoint("device", SimulatedProfile(**settings), place="device")


def assist(**changes: Any) -> Preset:
    """The shipped preset, with changes to its [assist] section."""
    preset = load_preset("assist")
    return preset.model_copy(update={"assist": preset.assist.model_copy(update=changes)})


def dividing(server: MemoryServer | None, local: Any = None, **more: Any) -> AsyncDisco:
    """A client that divides answers. The server continues, too, unless `more` says otherwise."""
    settings: dict[str, Any] = {
        "local": device() if local is None else local,
        "policy": "assist",
        "device_profile": DEVICE,
        "server_profile": SERVER,
        "price": (0.15, 0.60),
        "max_retries": 0,
        "timeouts": CLOCKS,
        "continuation": "trailing",
    }
    if server is not None:
        http = httpx2.AsyncClient(transport=server)
        settings |= {"base_url": server.base_url, "api_key": "secret-key-1234", "http_client": http}
    return AsyncDisco(**{**settings, **more})


def whole(answer: Answer, text: str = ANSWER) -> None:
    """Nothing is lost, nothing comes twice, and every attempt is charged and over."""
    route = answer.route
    assert answer.error is None
    assert answer.text == text
    assert route.seamless
    assert [p.start_char for p in route.segments] == [0, *(p.end_char for p in route.segments[:-1])]
    assert route.segments[-1].end_char == len(text)
    assert all(t.ended_s is not None and t.outcome != "running" for t in route.attempts)


def responds(count: int, ends: str) -> Reply:
    """The first pieces of `ANSWER` as the events of a server's own `/responses`."""
    part = {"type": "output_text", "text": "".join(PIECES[:count]), "annotations": [], "logprobs": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": ends, "content": [part]}
    item, here = {"output_index": 0}, {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    made = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m-1", "tools": [], "output": []}
    made |= {"tool_choice": "auto", "parallel_tool_calls": True}
    why = {"reason": "max_output_tokens"} if ends == "incomplete" else None
    counted = {"input_tokens": 1000, "output_tokens": count, "total_tokens": 1000 + count}
    events = [
        {"type": "response.created", "response": {**made, "status": "in_progress"}},
        {"type": "response.output_item.added", **item, "item": {**message, "content": []}},
        {"type": "response.content_part.added", **here, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **here, "delta": text, "logprobs": []}
            for text in PIECES[:count]
        ),
        {"type": "response.output_text.done", **here, "text": part["text"], "logprobs": []},
        {"type": "response.content_part.done", **here, "part": part},
        {"type": "response.output_item.done", **item, "item": message},
        {
            "type": f"response.{ends}",
            "response": {**made, "status": ends, "output": [message], "usage": counted}
            | {"incomplete_details": why},
        },
    ]
    steps: list[Step] = [TTFT_S]
    for number, event in enumerate(events):
        steps += [sse({**event, "sequence_number": number}, done=False), GAP_S]
    return Reply(steps)
