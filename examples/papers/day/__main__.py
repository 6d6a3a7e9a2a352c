"""`python -m papers.day`: a laptop's day under each preset, with its [power] and without."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from disco import ConfigurationError
from disco.profiles import Price, load_device, load_lengths, load_prices, load_server
from papers.day import DAY, day_tables, run_day
from papers.day.day_tables import day_dict
from papers.evaluation import options, print_tables
from papers.terminal import check_output, run_command, screen_beside, write

__all__ = ["main"]

DEVICE = "xiaomi14-qwen1.5-0.5b"
SERVER = "gpt-4o-mini-2024"
LENGTHS = "lengths-azure-conv-2023"
SEEDS, QUICK_SEEDS = 20, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the day and return the exit status."""
    parser = options(
        "day", "A laptop's day under each preset, with its [power] and without.", page=False, processes=False
    )
    parser.add_argument(
        "--device", default=DEVICE, metavar="NAME", help=f"device profile (default: {DEVICE})"
    )
    parser.add_argument(
        "--server", default=SERVER, metavar="NAME", help=f"server profile (default: {SERVER})"
    )
    parser.add_argument(
        "--price", metavar="IN,OUT", help="the server's, USD per million tokens (default: the profile's)"
    )
    parser.add_argument("--lengths", default=LENGTHS, metavar="FILE", help=f"lengths (default: {LENGTHS})")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="limit of every answer (default: none)")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"days (default: {SEEDS})")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: Namespace) -> int:
    check_output(arguments, "json")
    device, server = load_device(arguments.device), load_server(arguments.server)
    lengths = load_lengths(arguments.lengths)
    screen = screen_beside(arguments.json)
    with screen.bar("Replaying") as tell:
        results = run_day(
            *(device, server, _price(arguments.price, server.price, server.name), lengths),
            seeds=arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS),
            max_tokens=arguments.max_tokens,
            progress=tell,
        )
    screen.line(f"Device: {device.name}. Server: {server.name}. Lengths: {lengths.name}.", style="dim")
    screen.table(
        "The day",
        ("phase", "from, h", "to, h", "requests an hour", "charge"),
        [
            (
                *(p.kind, f"{p.begins_h:g}", f"{p.ends_h:g}", f"{p.per_hour:g}"),
                "mains" if p.charge is None else f"{p.charge[0]:.0%} to {p.charge[1]:.0%}",
            )
            for p in DAY
        ],
    )
    print_tables(screen, day_tables(results))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(day_dict(results), indent=2, ensure_ascii=False), "Figures")
    return 0


def _price(given: str | None, of_profile: str | None, server: str) -> Price:
    if given is None:
        if of_profile is None:
            raise ConfigurationError(
                f"the profile of server {server!r} names no price; give --price IN,OUT, USD per million tokens"
            )
        return load_prices().price(of_profile)
    try:
        cost_in, cost_out = (float(part) for part in given.split(","))
        return Price(usd_per_mtok_in=cost_in, usd_per_mtok_out=cost_out)
    except ValueError as error:
        raise ConfigurationError(
            f'a price is USD per million tokens, in and out, such as "0.15,0.60", not {given!r}'
        ) from error


if __name__ == "__main__":
    sys.exit(main())
