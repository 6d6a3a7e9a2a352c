"""What agreement costs a follower: milliseconds a token that it reads, with and without its log probabilities.

Processor time of this process, in which a real model runs on one thread; a busy machine changes it less than the time
on a clock. Both kinds read the same texts by turns, each from a cache that ends where the prompt does.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from helpers.measuring import Columns, options

from disco.endpoints.host import HostEndpoint
from disco.events import Parked
from disco.request import Prefix, Request

ASKED = Request([{"role": "user", "content": "Tell me of the sea."}], model="m")


async def per_token_ms(endpoint: HostEndpoint, text: str, wants: frozenset[str]) -> tuple[float, int]:
    """Processor time for each token of `text` that a follower reads at once, and how many these are."""
    async with endpoint.open(ASKED, wants=wants) as attempt:
        attempt.follow()
        read: list[tuple[float, int]] = []
        async for event in attempt:
            if not isinstance(event, Parked):
                continue
            progress = attempt.progress
            assert progress is not None
            read.append((time.process_time(), progress.tokens_total))
            if len(read) == 2:
                break
            attempt.extend(Prefix(text))
    (began_at, prompt), (ended_at, total) = read
    return (ended_at - began_at) / (total - prompt) * 1e3, total - prompt


async def main() -> None:
    """Print the table."""
    given = options(__doc__, rounds=7)
    endpoint = HostEndpoint(model="smollm2-135m", threads=1, context_tokens=2048)
    kinds = {"text alone": frozenset[str](), "with logp": frozenset({"logp"})}
    columns = Columns("a follower <12 | tokens >8 | ms a token >12.2f | more >8")
    try:
        for words in (16, 64, 256, 512):
            took: dict[str, list[float]] = {kind: [] for kind in kinds}
            tokens = 0
            for number in range(given.rounds):
                text = " ".join(f"{word} miles" for word in range(number, number + words // 2))
                for kind, wants in kinds.items():
                    spent_ms, tokens = await per_token_ms(endpoint, text, wants)
                    took[kind].append(spent_ms)
                    await per_token_ms(endpoint, "x", frozenset())  # the cache forgets the text
            alone, scored = (statistics.median(spans) for spans in took.values())
            columns.row("text alone", tokens, alone, "")
            columns.row("with logp", tokens, scored, f"{scored / alone - 1:+.0%}")
    finally:
        await endpoint.aclose()


if __name__ == "__main__":
    asyncio.run(main())
