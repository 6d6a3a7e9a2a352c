"""Tiers that an answer rises through, in virtual time: a device, and servers in memory with faults of their own.

What an answer is compared with makes each verdict certain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from faults.in_memory import RESET, SILENCE, MemoryServer, Reply, Step
from faults.lab import VIRTUAL
from faults.proxy_server.origin import begun_by
from scripted_server import chunk, sse

from disco import AsyncDisco, Tier
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.judging import HistoryKey, StoredHistory

SENTENCES = "The {0} sea is wide. It is the {0} one. Ships cross it, says the {0} tier, and they come back."
TEXT = {name: SENTENCES.format(name) for name in ("lower", "middle", "higher")}
DISPLAYS = ("whole", "guard", "revise")
GOES_ON = " By the {0} tier it goes on. All is well."
SHOWN = TEXT["lower"].split(".")[0] + "."  # the sentence that a reader is at when a doubt comes
# Of 100 scores all higher, or all lower: what an answer is compared with makes the verdict certain.
DOUBTED, TRUSTED = (2.0,) * 100, (-2.0,) * 100


@dataclass
class Kept:
    """A store of such histories, one for each model. Mutable: `saved`."""

    verdicts: Mapping[str, tuple[float, ...]]
    saved: dict[HistoryKey, StoredHistory] = field(default_factory=dict)

    def load(self) -> dict[HistoryKey, StoredHistory]:
        return {
            HistoryKey("default", model, kind): StoredHistory(scores, len(scores))
            for model, scores in self.verdicts.items()
            for kind in ("sum", "weakest")
        }

    def save(self, histories: Mapping[HistoryKey, StoredHistory]) -> None:
        self.saved.update(histories)


def says(name: str, fault: str | None = None) -> Callable[[Any], Reply]:
    """A server that writes its own text, continues another's in its own words, and has one fault."""

    def reply(body: Any) -> Reply:
        begun = begun_by(body)
        text = GOES_ON.format(name) if begun else TEXT[name]
        words = re.findall(r"\s*\S+", text)
        if fault == "429":
            return Reply([b'{"error": {"message": "Slow down."}}'], 429, {"content-type": "application/json"})
        if fault == "refuses" and body.get("logprobs"):
            return Reply([b'{"error": {"message": "No."}}'], 400, {"content-type": "application/json"})
        if fault == "down":
            return Reply(before=[httpx2.ConnectError("refused")])
        if fault == "silent":
            return Reply(before=[SILENCE])
        knows = body.get("logprobs") and fault != "ignores"
        steps: list[Step] = [sse(chunk("", role="assistant"), done=False)]
        steps += [sse(_chunk(word, knows), done=False) for word in words]
        if fault in ("dies", "stalls"):
            return Reply([*steps[: len(steps) // 2], RESET if fault == "dies" else SILENCE])
        return Reply([*steps, sse(chunk(finish="stop"))])

    return reply


def _chunk(word: str, knows: bool) -> dict[str, Any]:
    made = chunk(word)
    if knows:
        made["choices"][0]["logprobs"] = {"content": [{"token": word, "logprob": -0.5, "top_logprobs": []}]}
    return made


def local(**profile: Any) -> SimulatedEndpoint:
    settings = {"answer": TEXT["lower"], "decode_tps": 40.0, "mean_logp": -0.5, **profile}
    return SimulatedEndpoint("device", SimulatedProfile(**settings), place="device")


def preset(display: str, **more: Any) -> Preset:
    parts = {
        "cascade": {"beta": 0.5, "stream": display, "guard_tokens": 2, "confidence": "weakest"},
        "migration": {"enabled": False},
    }
    return Preset(
        name="lab",
        dispatch={"policy": "cascade"},
        playback={"pace_tps": 20.0, "max_hold_s": 60.0},
        **parts,
        **more,
    )


def doubtful() -> SimulatedEndpoint:
    """A device whose first bad token, after `DOUBT`, is its fifteenth."""
    return local(seed=29)


DOUBT = (0.2,) * 100


def asking(
    server: MemoryServer, middle: Any, device: SimulatedEndpoint, display: str, **more: Any
) -> AsyncDisco:
    at = {"continuation": "trailing", "http_client": httpx2.AsyncClient(transport=server), "api_key": "k"}
    tier = Tier(base_url=server.also(middle), model="middle", name="middle", price=more.get("price"), **at)
    kept = Kept({"device/higher": DOUBTED, "middle/middle": DOUBTED})
    settings = {"policy": preset(display), "max_retries": 0, "timeouts": VIRTUAL, "histories": kept, **more}
    http = httpx2.AsyncClient(transport=server)
    return AsyncDisco(
        local=device, tiers=[tier], base_url=server.base_url, **{**at, "http_client": http}, **settings
    )
