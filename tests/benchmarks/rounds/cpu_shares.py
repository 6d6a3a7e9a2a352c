"""Processor time of this process: in all, inside llama.cpp's computation, and inside the choice of tokens.

As a program it is a verify server (the arguments are those of `disco serve`) that prints the figures as a line of JSON
for each line that it reads. "no model" ends the computation: from then on each batch keeps the numbers of the last
one that was computed. What a round then costs, it costs with warm caches.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Shares", "count_shares"]


@dataclass
class Shares:
    """Seconds of processor time. Mutable: `computing` and `sampling` grow; see the module for `has_model`."""

    computing: float = 0.0
    sampling: float = 0.0
    has_model: bool = True

    def now(self) -> tuple[float, ...]:
        """All; computing; sampling; and of all, what the main thread has used, which has the event loop."""
        loop = time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))
        return time.process_time(), self.computing, self.sampling, loop


def count_shares() -> Shares:
    """Count from now on. llama.cpp with one thread computes in the thread that calls it."""
    from disco.endpoints.llamacpp.model.library import load_library
    from disco.endpoints.llamacpp.model.sampler import Sampler

    shares, library = Shares(), load_library()
    decode = library.llama_decode
    library.llama_decode = _timed(
        lambda *given: decode(*given) if shares.has_model else 0, shares, "computing"
    )
    Sampler.sample = _timed(Sampler.sample, shares, "sampling")  # type: ignore[method-assign]
    return shares


def _timed(call: Callable[..., Any], shares: Shares, name: str) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        began_s = time.thread_time()
        try:
            return call(*args, **options)
        finally:
            setattr(shares, name, getattr(shares, name) + time.thread_time() - began_s)

    return timed


def _tell(shares: Shares) -> None:
    for line in sys.stdin:
        shares.has_model = shares.has_model and line.strip() != "no model"
        print(json.dumps(shares.now()), file=sys.stdout, flush=True)


if __name__ == "__main__":
    from disco.cli import main

    threading.Thread(target=_tell, args=(count_shares(),), daemon=True).start()
    sys.exit(main(["serve", *sys.argv[1:]]))
