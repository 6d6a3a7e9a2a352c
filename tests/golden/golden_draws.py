"""What is drawn for the golden replays, as plain numbers: settings of episodes, requests, what attempts do.

Each attempt draws from a stream of its own, by request, endpoint and number, so that a request that goes another way
does not change the draws of others.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

PRESETS = ("balanced", "battery-saver", "cheap", "fast", "private")
REQUESTS, EPISODE = 10_000, 100
SEED = 20_261_122
EXCHANGE_RATES = {"battery-saver": 1e-8}  # USD per 10^6 FLOPs, as in the presets' files
SIDES = ("device", "server", "backup")
# What a side of an episode suffers from, by name: share of attempts that something befalls in good times and in bad.
SHARES = {"device": (0.03, 0.5), "server": (0.05, 0.9), "backup": (0.08, 0.3)}
KINDS = {
    "device": ("crashed", "incomplete", "connection"),
    "server": (
        *("connection", "server", "rate_limit", "incomplete", "garbage"),
        *("account", "bad_request"),
    ),
    "backup": ("server", "connection", "incomplete"),
}


@dataclass(frozen=True, slots=True)
class Side:
    """An endpoint as dispatch knows it; `writes_tps` is how fast it really is."""

    name: str
    place: Any
    cost_in: float
    cost_out: float
    cached_share: float
    prefill_tps: float
    overhead_s: float
    decode_tps: float
    writes_tps: float
    continues: bool = True
    context_tokens: int | None = None
    standby: bool = False
    serves_tools: bool = True
    model: int = 0  # endpoints of the same model write the same text


@dataclass(frozen=True, slots=True)
class Setting:
    """What the requests of one episode share. By side: `bad`, the places in the episode where
    it nearly always fails, and how; `offline`, where this machine has no route to it."""

    preset: str
    number: int
    sides: tuple[Side, ...]
    limits: dict[str, Any] | None
    load_s: float
    idle_unload_s: float | None
    gap_s: float
    bad: dict[str, tuple[range, str]]
    offline: dict[str, range]
    unknown: int  # the server's TTFT is known after so many requests

    def rng(self, *what: str | int) -> np.random.Generator:
        """A stream of its own for each purpose."""
        words = [zlib.crc32(str(word).encode()) for word in (self.preset, *what)]
        return np.random.default_rng([SEED, self.number, *words])


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `row` among all of its preset, `place` in its episode."""

    setting: Setting
    row: int
    at: float
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int | None
    streams: bool
    tools: bool
    local_only: bool
    may_move: bool
    budget_class: Any
    pace: Any
    cancel_at: float
    cancel_takes_s: float
    max_retries: int
    total_s: float | None
    backup: bool

    @property
    def place(self) -> int:
        return self.row % EPISODE

    def sees(self, side: Side) -> bool:
        return self.backup or side.name != "backup"

    def knows(self, name: str) -> bool:
        return name == "device" or self.place >= self.setting.unknown

    def is_offline(self, name: str) -> bool:
        return self.place in self.setting.offline.get(name, ())

    def rng(self, *what: str | int) -> np.random.Generator:
        return self.setting.rng("attempt", self.row, *what)


def draw_prompt_tokens(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(math.log(70), 1.1), 2, 4000))


def draw_answer_tokens(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(math.log(100), 0.8), 1, 600))


def draw_setting(preset: str, number: int) -> Setting:
    """An episode: how dear and how fast its endpoints are, which budgets hold, and when what goes wrong."""
    rng = Setting(preset, number, (), None, 0.0, None, 0.0, {}, {}, 0).rng("setting")
    mflop = rng.choice([270.0, 2500.0])  # per token, of a small and of a larger local model
    energy = EXCHANGE_RATES.get(preset, 4e-12) * mflop
    tps = rng.uniform(25, 80)
    device = Side(
        "device",
        "device",
        energy,
        energy,
        0.0,
        prefill_tps=rng.uniform(150, 2500),
        overhead_s=rng.uniform(0.02, 0.15),
        decode_tps=tps,
        writes_tps=tps * rng.uniform(0.7, 1.3),
        continues=rng.random() > 0.1,
        context_tokens=2048,
        serves_tools=rng.random() < 0.5,
        model=int(rng.integers(2)),
    )
    price = rng.choice([1e-12, 1e-7, 6e-7, 1.5e-5], p=[0.3, 0.2, 0.3, 0.2])  # the first: one's own machine
    tps = rng.uniform(15, 70)
    server = Side(
        "server",
        "server",
        price / 4,
        price,
        rng.choice([0.1, 0.5, 1.0]),
        prefill_tps=math.inf,
        overhead_s=rng.uniform(0.4, 1.5),
        decode_tps=tps,
        writes_tps=tps * rng.uniform(0.6, 1.2),
    )
    backup = replace(server, name="backup", cost_in=2e-7, cost_out=8e-7, overhead_s=1.0, standby=True)
    backup = replace(backup, continues=rng.random() > 0.3, model=int(rng.integers(2)))
    tokens = int(rng.choice([3000, 7000, 20_000]))
    window = {"window_s": float(rng.choice([60.0, 300.0, 1800.0]))}
    choices: list[dict[str, Any]] = [
        {"device_tokens": tokens, **window},
        {"server_tokens": tokens, **window},
        {"usd": max(tokens * price / 2, 1e-9), **window},
        {"server_tokens": 3 * tokens, "device_tokens": tokens, "unreported": "reserved", **window},
    ]
    limits = choices[0 if preset == "private" else int(rng.integers(4))]
    starts = rng.integers(0, EPISODE - 20, 6)
    return Setting(
        preset,
        number,
        (device, server, backup),
        None if rng.random() < 0.4 else limits,
        load_s=rng.uniform(0.5, 4.0),
        idle_unload_s=rng.choice([5.0, 20.0]) if rng.random() < 0.5 else None,
        gap_s=rng.uniform(2.5, 9.0) * (1.8 if preset == "private" else 1.0),  # one device serves all of them
        bad={
            name: (range(at, at + 15), str(rng.choice(KINDS[name])))
            for name, at in zip(SIDES, starts.tolist(), strict=False)
        },
        offline={"server": range(starts[3], starts[3] + 4)} if rng.random() < 0.3 else {},
        unknown=20 if rng.random() < 0.3 else 0,
    )


def draw_asks(setting: Setting) -> list[Ask]:
    """The requests of an episode, in order of time."""
    rng, at, asks = setting.rng("requests"), 0.0, []
    backups = rng.random() < 0.4
    for row in range(setting.number * EPISODE, (setting.number + 1) * EPISODE):
        # Half of them come close behind another one; now and then there is nobody for a minute.
        at += rng.exponential(0.4 if rng.random() < 0.5 else 2 * setting.gap_s)
        at += 60.0 if rng.random() < 0.01 else 0.0
        asks.append(
            Ask(
                setting,
                row,
                at=at,
                prompt_tokens=draw_prompt_tokens(rng),
                answer_tokens=0 if rng.random() < 0.01 else draw_answer_tokens(rng),
                max_tokens=int(rng.integers(10, 200)) if rng.random() < 0.3 else None,
                streams=rng.random() > 0.1,
                tools=rng.random() < 0.05,
                local_only=rng.random() < 0.05,
                may_move=rng.random() > 0.08,
                budget_class=rng.choice(["standard", "urgent", "background"], p=[0.82, 0.08, 0.1]),
                pace=(None, "off", 5.0, 9.0, 20.0)[rng.choice(5, p=[0.7, 0.1, 0.05, 0.05, 0.1])],
                cancel_at=at + rng.uniform(0, 8) if rng.random() < 0.08 else math.inf,
                cancel_takes_s=float(rng.choice([0.0, 0.02, 0.3])),
                max_retries=int(rng.integers(3)),
                total_s=float(rng.choice([4.0, 12.0])) if rng.random() < 0.05 else 600.0,
                backup=bool(backups),
            )
        )
    return asks


def attempt(setting: Setting, ask: Ask, name: str, written: int, rng: np.random.Generator) -> dict[str, Any]:
    """What one attempt will do, in the terms of a simulated profile; `written`: tokens it continues from."""
    side = next(s for s in setting.sides if s.name == name)
    is_device = side.place == "device"
    ttft_s = side.overhead_s * rng.uniform(0.7, 1.3) if is_device else rng.lognormal(math.log(0.5), 0.7)
    answer_tokens, seam = ask.answer_tokens, "exact"
    if written:
        luck = rng.random()
        if luck < 0.08:
            ttft_s += rng.uniform(2, 8)
        elif luck < 0.12:
            answer_tokens = written  # it has nothing to add
        elif luck < 0.16:
            seam = "restarts"
        elif luck < 0.3:
            seam = "echoes"
    good, bad = SHARES[name]
    bad_places, bad_kind = setting.bad[name]
    is_bad = ask.place in bad_places
    return {
        "ttft_s": float(ttft_s),
        "prefill_tps": side.prefill_tps * rng.uniform(0.7, 1.2) if is_device else math.inf,
        "decode_tps": side.writes_tps,
        "packet_tokens": 1 if is_device else int(rng.integers(1, 5)),
        "answer_tokens": answer_tokens,
        "seed": side.model,
        "role_at_s": 0.0 if not is_device and rng.random() < 0.3 else None,
        "seam": seam,
        "fault": draw_fault(name, rng, bad_kind if is_bad else None)
        if rng.random() < (bad if is_bad else good)
        else None,
    }


def draw_fault(name: str, rng: np.random.Generator, kind: str | None) -> dict[str, Any]:
    """Refused at once, dying before the first token or in mid answer, silent for a while or for ever, slow.

    `kind`: drawn where it is None.
    """
    kind = kind or str(rng.choice(KINDS[name]))
    moment, after_tokens = rng.random(), int(rng.integers(1, 90))
    silence_s, more = float(rng.choice([0.0, 1.0])), {}
    if moment < 0.15:  # it goes on writing after a silence, some of them slowly
        kind, silence_s = None, float(rng.choice([0.5, 3.0, math.inf]))
        more = {"gap_s": 0.2 if rng.random() < 0.3 else None}
    elif kind in ("rate_limit", "account", "bad_request"):
        after_tokens, more = 0, {"at_once": True}
        if kind == "rate_limit" and rng.random() < 0.7:
            more["retry_after_s"] = float(rng.choice([2.0, 20.0]))
    elif kind == "crashed" and rng.random() < 0.5:
        more = {"retry_after_s": 1.0}  # its process is started again
    elif moment < 0.5:
        after_tokens, more = 0, {"at_once": True}
    return {
        "after_tokens": after_tokens
        if moment < 0.9 or "at_once" in more
        else None,  # None: only the end lacks
        "silence_s": silence_s,
        "kind": kind,
        **more,
    }
