"""Requests, profiles and scripts of simulated endpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, script
from disco.errors import FailureKind
from disco.request import Prefix, Request

PROFILES = st.builds(
    SimulatedProfile,
    ttft_s=st.floats(0, 3),
    prefill_tps=st.floats(1, 1e4),
    overhead_s=st.floats(0, 2),
    decode_tps=st.floats(1, 200),
    packet_tokens=st.integers(1, 7),
    answer_tokens=st.integers(0, 60),
    seed=st.integers(0, 3),
    role_at_s=st.none() | st.floats(0, 5),
    context_tokens=st.none() | st.integers(1, 80),
    seam=st.sampled_from(["exact", "echoes", "restarts"]),
    fault=st.none()
    | st.builds(
        Fault,
        after_tokens=st.integers(0, 70),
        silence_s=st.floats(0, 20),
        kind=st.none() | st.sampled_from(list(FailureKind)),
        probability=st.floats(0, 1),
    ),
)
LIMITS = st.none() | st.integers(0, 80)


def ask(text: str = "Why is the sky blue?", **params: Any) -> Request:
    return Request([{"role": "user", "content": text}], "m", params)


def limited(max_tokens: int | None) -> Request:
    return ask() if max_tokens is None else ask(max_tokens=max_tokens)


def play(profile: Any, request: Any = None, prefix: Any = None, seed: Any = 0, **given: Any) -> list[Any]:
    """Everything that happens, with its time in seconds from the start."""
    prefix = Prefix() if prefix is None else prefix
    return list(script(profile, request or ask(), prefix, np.random.default_rng(seed), **given))


def text_of(events: list[Any]) -> str:
    return "".join(d.text for _, e in events if isinstance(e, list) for d in e)
