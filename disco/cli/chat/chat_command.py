"""`disco chat`: its options."""

from __future__ import annotations

import argparse

from disco.cli.console import Screen
from disco.cli.shared_options import add_preset, add_runtime

__all__ = ["add"]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco chat`."""
    parser.description = (
        "The server is the one in OPENAI_API_KEY and OPENAI_BASE_URL. Without a key, only the local model "
        "answers. Type /help in the chat for its commands and keys. Questions may also come through a pipe, one a "
        "line. See docs/how-to/chat.md."
    )
    parser.add_argument(
        "--local",
        default="smollm2-135m",
        help="local model: a name, a GGUF file, hf:owner/repo/file, or the address of a server on this machine, such "
        "as http://localhost:11434/v1#qwen3:4b, or an endpoint of an installed package (default: smollm2-135m)",
    )
    parser.add_argument(
        "--isolation",
        choices=("thread", "process"),
        default="thread",
        help="where the local model runs (default: thread)",
    )
    add_preset(parser)
    parser.add_argument(
        "--model", help="the server's model (default: what OPENAI_MODEL names, else gpt-4o-mini)"
    )
    parser.add_argument(
        "--price",
        metavar="IN,OUT",
        help="of the server's model, USD per million tokens, such as 0.15,0.60 (default: the price table's)",
    )
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
    parser.add_argument(
        "--record", metavar="FILE", help="append route records, numbers only, for `disco replay` (JSON lines)"
    )
    add_runtime(parser)
    parser.set_defaults(run=_chat)


async def _chat(screen: Screen, arguments: argparse.Namespace) -> int:
    from disco.cli.chat.chat_setup import run_chat  # noqa: PLC0415 - `disco --help` needs no model
    from disco.cli.output_files import check_output  # noqa: PLC0415 - as above

    price = None
    if arguments.price is not None:
        from disco.cli.option_types import parse_price  # noqa: PLC0415 - as above

        given = parse_price(arguments.price)
        price = given.usd_per_mtok_in, given.usd_per_mtok_out
    check_output(arguments, record=arguments.record, history=arguments.history)
    return await run_chat(
        screen,
        local=arguments.local,
        isolation=arguments.isolation,
        runtime=arguments.runtime,
        preset=arguments.preset,
        model=arguments.model,
        price=price,
        budget_usd=arguments.budget_usd,
        per=arguments.per,
        max_tokens=arguments.max_tokens,
        history=arguments.history,
        record=arguments.record,
    )
