"""Announcements, endpoints and requests for the tests of this room."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

from disco.endpoints.attached import AttachingEndpoint
from disco.endpoints.attached.announcement import Announcement, ServedModel
from disco.endpoints.attached.process_identity import process_start
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.request import Request

MODEL = ServedModel(name="m", path="/m.gguf", fingerprint="f" * 32, context_tokens=2048)
CANARY = "CANARYPROMPT"


def announcement(**more: Any) -> Announcement:
    """Of this process, at a port where nothing listens."""
    usual = {
        "pid": os.getpid(),
        "process_start": process_start(os.getpid()),
        "started_s": time.time(),
        "serve_pid": os.getpid(),
        "serve_port": 9,
        "program": "engine",
        "port": 9,
        "key": secrets.token_urlsafe(32),
        "model": MODEL,
    }
    return Announcement(**(usual | more))


def written(folder: Path, one: Announcement | str, name: str = "9-1.json") -> Path:
    """The file, as a server would write it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / name
    file.write_text(one if isinstance(one, str) else one.model_dump_json())
    file.chmod(0o600)
    return file


def own_model() -> SimulatedEndpoint:
    """What stands for the program's own copy: it writes at once, and another text than any model."""
    return SimulatedEndpoint("device", SimulatedProfile(gap_s=0.0, answer_tokens=4), place="device")


def attaching(folder: Path, own: Any = None, **more: Any) -> AttachingEndpoint:
    return AttachingEndpoint(own or own_model(), fits=lambda served: True, folder=folder, **more)


def ask(text: str = "Tell me about the sea.", **params: Any) -> Request:
    return Request([{"role": "user", "content": text}], model="m", params={"temperature": 0, **params})


async def collected(attempt: Any) -> tuple[list[Any], str]:
    """All events of an attempt, and its text."""
    async with attempt:
        events = [event async for event in attempt]
    return events, "".join(delta.text for event in events if isinstance(event, list) for delta in event)
