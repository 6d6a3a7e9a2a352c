"""`disco replay day`: a laptop's day under each preset, with its [power] and without."""

from __future__ import annotations

import argparse
import json

from disco.cli.console import Screen
from disco.cli.option_types import parse_price
from disco.cli.output_files import write
from disco.cli.scenario_options import device_or_default, server_or_default
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_lengths, load_prices, load_server
from disco.replay.day import DAY, day_tables, run_day
from disco.replay.day.day_tables import day_dict

__all__ = ["replay_day"]

LENGTHS = "lengths-azure-conv-2023"
SEEDS, QUICK_SEEDS = 20, 3


def replay_day(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the day and print its tables; return the exit status.

    Raises:
        ConfigurationError: a profile is unknown or lacks what the day needs, or an option has more than one value.
    """
    for option in ("device", "server"):
        if len(getattr(arguments, option) or []) > 1:
            raise ConfigurationError(f"`disco replay day` takes one --{option}; run it once for each")
    device_name, about_device = device_or_default(arguments.device)
    server_name, about_server = server_or_default(arguments.server)
    device, server = load_device(device_name), load_server(server_name)
    if arguments.price is not None:
        price = parse_price(arguments.price)
    elif server.price is not None:
        price = load_prices().price(server.price)
    else:
        raise ConfigurationError(
            f"the profile of server {server.name!r} names no price; give --price IN,OUT, USD per million tokens"
        )
    lengths = load_lengths(arguments.lengths or LENGTHS)
    seeds = arguments.seeds or (QUICK_SEEDS if arguments.quick else SEEDS)
    with screen.bar("Replaying") as tell:
        results = run_day(
            device, server, price, lengths, seeds=seeds, max_tokens=arguments.max_tokens, progress=tell
        )
    for note in (about_device, about_server, f"Lengths: {lengths.name}."):
        if note:
            screen.line(note, style="dim")
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
    for table in day_tables(results):
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(day_dict(results), indent=2, ensure_ascii=False), "Figures")
    return 0
