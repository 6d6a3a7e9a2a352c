"""Cuts the small model in two, serves its middle layers, asks for one answer: `split_run.py FILE`, for its record.

Needs the extras `demo`, `server` and `split`. Both sides are real and run on this machine, over a real socket.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]  # the tree that this file lies in

from disco_serve import disco_serve  # noqa: E402

from disco import AsyncDisco, RouteLog, Split  # noqa: E402
from disco.cli import main as disco  # noqa: E402

MODEL = "smollm2-135m"
QUESTION = "Explain in simple words why the sea is salty, and why rivers are not."


async def ask(device: Path, base_url: str, key: str, record: str) -> None:
    """Ask for one answer of the split model, and keep its record. `device`: the device's file."""
    split = Split(device=device, base_url=base_url, api_key=key, name="split")
    messages = [{"role": "user", "content": QUESTION}]
    async with AsyncDisco(tiers=[split], preset="fast") as client:
        wanted: dict[str, Any] = {"model": MODEL, "messages": messages, "temperature": 0.0, "stream": True}
        for tokens, kept in ((8, None), (96, record)):  # the first answer measures both sides and the link
            stream = await client.chat.completions.create(**wanted, max_tokens=tokens)
            async for chunk in stream:
                print((chunk.choices[0].delta.content or "") if chunk.choices else "", end="", flush=True)
            print()
            if kept is not None:
                with RouteLog(kept) as log:
                    log(stream.route)


def main(record: str) -> int:
    """Run it; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if disco(["split", "cut", MODEL, "--layers", "2", "--out", name]):
            return 1
        cloud = str(next(folder.glob("*.cloud.gguf")))
        sizes = ("--slots", "2", "--context", "1024", "--threads", "1")
        with disco_serve("--layers", cloud, *sizes) as (base_url, key):
            anyio.run(ask, next(folder.glob("*.device.gguf")), base_url, key, record)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
