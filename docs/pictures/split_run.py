"""Cuts the small model in two, serves its middle layers, asks for one answer: `split_run.py --record FILE`.

Needs the extras `demo`, `server` and `split`. Both sides are real and run on this machine, over a real socket.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tree that this file lies in

from disco import AsyncDisco, RouteLog, Split
from disco.cli import main as disco
from disco.cli.demonstration.speculate import VerifyServer

MODEL = "smollm2-135m"
QUESTION = "Explain in simple words why the sea is salty, and why rivers are not."


class LayerProcess(VerifyServer):
    """`disco serve --layers` in a process of its own."""

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--verify")] = "--layers"
        return command


async def ask(device: Path, server: LayerProcess, record: str) -> None:
    """Ask for one answer of the split model, and keep its record. `device`: the device's file."""
    split = Split(
        device=device,
        base_url=f"http://127.0.0.1:{server.port}/v1",
        api_key=server.key,
        name="split",
    )
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


def main() -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", required=True, metavar="FILE", help="file to append the route record to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if disco(["split", "cut", MODEL, "--layers", "2", "--out", name]):
            return 1
        server = LayerProcess(next(folder.glob("*.cloud.gguf")))
        server.start()
        try:
            anyio.run(ask, next(folder.glob("*.device.gguf")), server, given.record)
        finally:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
