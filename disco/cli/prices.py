"""`disco prices`: prices in a table, and one price in words."""

from __future__ import annotations

import argparse
import datetime as dt
from urllib.parse import urlsplit

from disco import amounts
from disco.amounts import money
from disco.cli.console import Screen
from disco.errors import ConfigurationError
from disco.profiles import KnownPrice, Price, load_prices, user_profile_dir
from disco.profiles.price_findings import look_up

__all__ = ["add"]

today = dt.date.today
_ANSWERS = 1_000
_ANY_SERVER = "any server"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco prices`."""
    parser.description = "The shipped prices, and yours in front of them (docs/how-to/prices.md)."
    parser.set_defaults(run=run_list, words=[], tokens=(500, 300))
    subcommands = parser.add_subparsers()
    listed = subcommands.add_parser("list", help="all prices, or those with a word in their name")
    listed.add_argument(
        "words", nargs="*", metavar="WORD", help="parts of the model's or the provider's name"
    )
    listed.set_defaults(run=run_list)
    check = subcommands.add_parser(
        "check",
        help="what a client would count for a model",
        description="Exit status 1 where the price is stale or not known.",
    )
    check.add_argument("model", metavar="MODEL", help="the name that your requests use")
    check.add_argument(
        "--base-url", metavar="URL", help="the server's (default: any provider that has the model)"
    )
    check.set_defaults(run=run_check)
    for one in (listed, check):
        one.add_argument(
            "--tokens",
            type=_tokens,
            default=(500, 300),
            metavar="IN,OUT",
            help="tokens of prompt and answer, for the cost of 1,000 answers (default: 500,300)",
        )


def _tokens(text: str) -> tuple[int, int]:
    try:
        prompt, answer = (int(part) for part in text.split(","))
    except ValueError:
        prompt = answer = -1
    if min(prompt, answer) < 0:
        raise argparse.ArgumentTypeError(
            f"give the tokens of prompt and answer, such as 500,300, not {text!r}"
        )
    return prompt, answer


def run_list(screen: Screen, arguments: argparse.Namespace) -> int:
    """Print the prices that have all words in the names of their model or provider; return the exit status."""
    day, words, tokens = today(), arguments.words, arguments.tokens
    entries = [e for e in load_prices().entries() if all(w.lower() in _searched(e) for w in words)]
    if not entries:
        screen.line(
            f"No model and no provider has {' '.join(words)!r} in its name. `disco prices` lists all."
        )
        return 1
    rows = [
        [
            entry.provider or _ANY_SERVER,
            entry.model,
            *_figures(entry.price),
            money(_ANSWERS * entry.price.usd(*tokens)),
            f"{entry.date}{' (yours)' if entry.is_own else ''}{' stale' if entry.is_stale(day) else ''}",
        ]
        for entry in entries
    ]
    screen.table(
        f"USD per million tokens, and for {_ANSWERS:,} answers of {tokens[0]} + {tokens[1]} tokens",
        ["provider", "model", "in", "cached", "cache write", "out", f"{_ANSWERS:,} answers", "of"],
        rows,
    )
    for source in dict.fromkeys(f"{e.provider or _ANY_SERVER}: {e.source}" for e in entries):
        screen.line(source)
    for licence in dict.fromkeys(e.licence for e in entries if e.licence is not None):
        screen.line(f"Licence of the sources: {licence}")
    screen.line(f"Your own prices: {user_profile_dir() / 'prices.toml'} (docs/how-to/prices.md)")
    return 0


def run_check(screen: Screen, arguments: argparse.Namespace) -> int:
    """Say what a client counts for a model; return the exit status: 1 where the price is stale or unknown."""
    host, base_url, tokens = None, arguments.base_url, arguments.tokens
    if base_url is not None:
        host = urlsplit(base_url).hostname
        if host is None:
            raise ConfigurationError(
                f"--base-url must be a URL, such as https://api.openai.com/v1, not {base_url!r}"
            )
    found = look_up(load_prices(), arguments.model, host, today())
    screen.line(found.text)
    if found.found is not None:
        price = found.found.price
        read, cached, cache_write, written = _figures(price)
        more = "" if cached == "–" else f", {cached} cached input"
        more += "" if cache_write == "–" else f", {cache_write} written to the cache"
        screen.line(f"USD per million tokens: {read} in{more}, {written} out.")
        if price.up_to_prompt_tokens is not None:
            screen.line(f"Prompts of more than {price.up_to_prompt_tokens:,} tokens cost more.")
        cost = _ANSWERS * price.usd(*tokens)
        screen.line(f"{_ANSWERS:,} answers of {tokens[0]} + {tokens[1]} tokens: {money(cost)}.")
        screen.line(f"Source: {found.found.source}{_licence(found.found)}")
    if found.remedy is not None:
        screen.line(found.remedy)
    return 1 if found.basis in ("assumed", "stale") else 0


def _searched(entry: KnownPrice) -> str:
    return f"{entry.provider or _ANY_SERVER}/{entry.model}".lower()


def _licence(entry: KnownPrice) -> str:
    return "" if entry.licence is None else f"; {entry.licence}"


def _figures(price: Price) -> list[str]:
    """Return what input, cached input, writing to the cache and output cost; "–": as other input."""
    return [
        "–" if value is None else amounts.number(value)
        for value in (
            price.usd_per_mtok_in,
            price.usd_per_mtok_cached_in,
            price.usd_per_mtok_cache_write,
            price.usd_per_mtok_out,
        )
    ]
