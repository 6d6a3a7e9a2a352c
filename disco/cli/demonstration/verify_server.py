"""A real verify server on this machine, in a process of its own: `disco serve --verify`."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from disco.cli.demonstration.demo_server import DemoServer, Progress
from disco.cli.serving.serve_setup import KEY_VARIABLE, require_extra

__all__ = ["VerifyServer"]

_CHILD = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
from disco.cli import main
sys.exit(main())
"""


class VerifyServer(DemoServer):
    """See `DemoServer`. Needs the extra `disco-llm[server]`, too.

    Attributes:
        key: of the server; made at random.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        context_tokens: int = 1024,
        threads: int = 1,
        progress: Progress | None = None,
    ) -> None:
        require_extra()
        self.key = secrets.token_hex(16)
        super().__init__(
            model, context_tokens=context_tokens, threads=threads, api_key=self.key, progress=progress
        )

    def _command(self) -> list[str]:
        options = {
            "verify": self.model,
            "slots": 2,
            "context": self.context_tokens,
            "threads": self.threads,
            "port": self.port,
            "policy": "private",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-c", _CHILD, "serve", *arguments]

    def _environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        return {**own, KEY_VARIABLE: self.key}
