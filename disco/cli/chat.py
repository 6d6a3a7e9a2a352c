"""`disco chat`: ask both models in the terminal."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, Literal

import anyio
import anyio.to_thread
from openai import OpenAIError

from disco.cli.console import Screen
from disco.client import AsyncDisco, RouteLog
from disco.client.chat.revised_text import RevisedText
from disco.client.endpoint_catalog.runtimes import Runtime
from disco.errors import ConfigurationError

__all__ = ["run_chat"]

MODEL = "gpt-4o-mini"


async def run_chat(
    screen: Screen,
    *,
    local: str,
    preset: str,
    model: str | None = None,
    isolation: Literal["thread", "process"] = "thread",
    runtime: Runtime = "auto",
    record: str | os.PathLike[str] | None = None,
) -> int:
    """Read questions from the terminal until an empty line or Ctrl-D, and stream the answers.

    The server is the one in OPENAI_API_KEY and OPENAI_BASE_URL. Without a key, only the local model answers.

    Args:
        screen: the screen to print on.
        local: see `AsyncDisco`.
        preset: see `AsyncDisco`.
        model: the server's model; None: gpt-4o-mini.
        isolation: see `AsyncDisco`.
        runtime: see `AsyncDisco`.
        record: a file to append the route records to, for `disco replay`; None: no records.

    Raises:
        ConfigurationError: the file for records cannot be written to, or a server's model is named but there is
            no key for a server.
    """
    if not os.environ.get("OPENAI_API_KEY"):
        if model is not None:
            raise ConfigurationError(
                "--model names the server's model, but without OPENAI_API_KEY there is no server: set the key, or "
                "leave --model out"
            )
        screen.line("OPENAI_API_KEY is not set: every answer comes from this machine.", style="dim")
    with nullcontext() if record is None else RouteLog(record) as routes:
        async with AsyncDisco(
            local=local, isolation=isolation, runtime=runtime, preset=preset, on_route=routes
        ) as client:
            return await _converse(screen, client, local, model or MODEL)


async def _converse(screen: Screen, client: AsyncDisco, local: str, model: str) -> int:
    messages: list[dict[str, Any]] = []
    with screen.step(f"Loading {local}"):
        await client.warm_up()
    screen.legend(["device", "server"])
    screen.line("An empty line ends the conversation.", style="dim")
    while True:
        try:
            question = await anyio.to_thread.run_sync(input, "\nyou: ", abandon_on_cancel=True)
        except EOFError:
            return 0
        if not question.strip():
            return 0
        messages.append({"role": "user", "content": question})
        try:
            answer = await _answer(screen, client, model, messages)
        except OpenAIError as error:
            answer = str(getattr(error, "partial_text", ""))
            screen.line(f"{type(error).__name__}: {error}", style="red")
        if answer:
            messages.append({"role": "assistant", "content": answer})
        else:
            messages.pop()


async def _answer(screen: Screen, client: AsyncDisco, model: str, messages: list[dict[str, Any]]) -> str:
    stream = await client.chat.completions.create(model=model, messages=messages, stream=True)
    answer = RevisedText()
    async for chunk in stream:
        before = answer.revisions
        text = answer.add(chunk)
        if answer.revisions > before:  # a terminal cannot take text back
            screen.line()
            screen.line("[in doubt: the next tier answers]", style="dim")
        screen.stream(text, stream.writer or "device")
    screen.line()
    route = stream.route
    ttft = "–" if route.pace.ttft_released_s is None else f"{route.pace.ttft_released_s:.2f} s"
    writers = " → ".join(dict.fromkeys(p.endpoint for p in route.segments))
    screen.line(f"[{writers}; first word after {ttft}; {route.cost * 1e6:.1f} µ$]", style="dim")
    return answer.text
