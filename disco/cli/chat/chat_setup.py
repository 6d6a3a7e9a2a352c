"""`disco chat`: its options, its client, the place where it is shown, and what it shows of warnings."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from disco.cli.chat.chat_loop import Chat, ChatSettings
from disco.cli.chat.plain_view import PlainView
from disco.cli.chat.route_book import RouteBook
from disco.cli.chat.view import View
from disco.cli.console import Screen
from disco.cli.output_files import check_output
from disco.cli.shared_options import (
    add_context,
    add_local,
    add_lora,
    add_preset,
    add_price,
    add_record,
    add_runtime,
    add_server_model,
    parse_price,
)
from disco.client import AsyncDisco, RouteLog
from disco.client.settings import Budget
from disco.cost.windows import Period
from disco.dispatch import available_presets, load_preset
from disco.endpoints.llamacpp.model.added_files import loras_named
from disco.endpoints.runtimes import Runtime
from disco.errors import ConfigurationError
from disco.session.records.route_record import RouteRecord

__all__ = ["add", "run_chat"]

MODEL = "gpt-4o-mini"
DAY_S = 86_400.0


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco chat`."""
    parser.description = (
        "The server is the one in OPENAI_API_KEY and OPENAI_BASE_URL. Without a key, only the local model "
        "answers. Type /help in the chat for its commands and keys. Questions may also come through a pipe, one a "
        "line. See docs/how-to/chat.md."
    )
    add_local(parser, others="an endpoint of an installed package")
    add_preset(parser)
    add_server_model(parser)
    add_price(parser, default="the price table's")
    parser.add_argument(
        "--budget-usd",
        type=float,
        metavar="USD",
        help="the most that servers may charge within any 24 hours, or as --per says, over all programs with a budget "
        "for that time; see docs/how-to/chat.md",
    )
    parser.add_argument(
        "--per",
        choices=("hour", "day", "week", "month"),
        help="the budget is for each calendar hour, day, week or month, in UTC, instead of any 24 hours",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="the most tokens of one answer")
    parser.add_argument(
        "--history",
        metavar="FILE",
        help="keep your questions in this file for the arrow keys of the next chat; only you may read it (default: "
        "they are kept in memory, and gone at the end)",
    )
    add_record(parser)
    add_runtime(parser)
    add_context(parser)
    add_lora(parser)
    parser.set_defaults(run=_chat)


async def _chat(screen: Screen, arguments: argparse.Namespace) -> int:
    price = None
    if arguments.price is not None:
        given = parse_price(arguments.price)
        price = given.usd_per_mtok_in, given.usd_per_mtok_out
    check_output(arguments, record=arguments.record, history=arguments.history)
    return await run_chat(
        screen,
        local=arguments.local,
        runtime=arguments.runtime,
        context_tokens=arguments.context,
        lora=arguments.lora,
        preset=arguments.preset,
        model=arguments.model,
        price=price,
        budget_usd=arguments.budget_usd,
        per=arguments.per,
        max_tokens=arguments.max_tokens,
        history=arguments.history,
        record=arguments.record,
    )


async def run_chat(
    screen: Screen,
    *,
    local: str,
    preset: str,
    model: str | None = None,
    runtime: Runtime = "auto",
    context_tokens: int | None = None,
    lora: Sequence[str] = (),
    price: tuple[float, float] | None = None,
    budget_usd: float | None = None,
    per: Period | None = None,
    max_tokens: int | None = None,
    history: str | None = None,
    record: str | os.PathLike[str] | None = None,
) -> int:
    """Read questions until the user ends the chat, and stream the answers; return the exit status.

    The server is the one in OPENAI_API_KEY and OPENAI_BASE_URL. Without a key, only the local model answers.

    Args:
        screen: the screen to print on.
        local: see `AsyncDisco`.
        preset: see `AsyncDisco`.
        model: the server's model; None: what OPENAI_MODEL names, else gpt-4o-mini.
        runtime: see `AsyncDisco`.
        context_tokens: see `AsyncDisco`.
        lora: as the option: a file, or "FILE:SCALE".
        price: see `AsyncDisco`.
        budget_usd: the most that servers may charge, USD; None: what the preset says.
        per: the calendar period that this is for; None: any 24 hours.
        max_tokens: the most tokens of an answer; None: no limit of the chat's own.
        history: a file that keeps the questions for later chats; None: in memory.
        record: a file to append the route records to, for `disco replay`; None: no records.

    Raises:
        ConfigurationError: a file cannot be written to, a setting is wrong, or a server's model is named but there is
            no key for a server.
    """
    if per is not None and budget_usd is None:
        raise ConfigurationError(f"--per {per} says for how long, but not how much: add --budget-usd 5")
    has_server = bool(os.environ.get("OPENAI_API_KEY"))
    if not has_server and model is not None:
        raise ConfigurationError(
            "--model names the server's model, but without OPENAI_API_KEY there is no server: set the key, or "
            "leave --model out"
        )
    loaded = load_preset(preset)
    settings = ChatSettings(
        local=local,
        preset=loaded.name,
        model=model or os.environ.get("OPENAI_MODEL") or MODEL,
        has_server=has_server,
        max_tokens=max_tokens,
        presets={name: load_preset(name).summary for name in available_presets()},
    )
    book = RouteBook()
    budget: Budget | None = None
    if budget_usd is not None:
        budget = {"usd": budget_usd, **({"window_s": DAY_S} if per is None else {"per": per})}
    with nullcontext() if record is None else RouteLog(record) as routes:
        listeners: list[Callable[[RouteRecord], object]] = [book] if routes is None else [book, routes]
        async with AsyncDisco(
            local=local,
            runtime=runtime,
            context_tokens=context_tokens,
            lora=loras_named(lora),
            preset=loaded,
            price=price,
            budget=budget,
            on_route=listeners,
        ) as client:
            chat = Chat(screen, client, settings, book)
            chat.view = view = _view(screen, chat, history)
            with view.open(), _warnings_to(view.note):
                return await chat.run()


def _view(screen: Screen, chat: Chat, history: str | None) -> View:
    from disco.cli.chat.terminal_output import can_draw  # noqa: PLC0415 - prompt_toolkit is for terminals

    if can_draw():
        from disco.cli.chat.question_history import open_history  # noqa: PLC0415 - as above
        from disco.cli.chat.terminal_view import TerminalView  # noqa: PLC0415 - as above

        os.environ.setdefault(
            "HF_HUB_DISABLE_PROGRESS_BARS", "1"
        )  # a download's own bar would garble the screen
        return TerminalView(screen, chat.status_line, chat.settings.presets, open_history(history))
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a pipe may hold what its encoding has not
    return PlainView(screen, "you: " if sys.stdin is not None and sys.stdin.isatty() else "")


@contextmanager
def _warnings_to(note: Callable[[str], None]) -> Iterator[None]:
    """Show what is logged as a warning, or raised as one, as lines of the chat: elsewhere they would garble it."""
    loop = asyncio.get_running_loop()

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "disco.route":  # failed attempts: the chat says it of the whole answer
                return
            text = " ".join(record.getMessage().split())
            if not loop.is_closed():
                loop.call_soon_threadsafe(note, text)

    handler = Notes(logging.WARNING)
    loggers = [logging.getLogger(name) for name in ("disco", "py.warnings")]
    logging.captureWarnings(capture=True)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        logging.captureWarnings(capture=False)
