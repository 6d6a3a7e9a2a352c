"""What several benchmarks need: command lines, turns, figures, tables."""

from __future__ import annotations

import argparse
import inspect
import random
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from disco.dispatch import Preset

K, V = TypeVar("K"), TypeVar("V")


def options(doc: str | None, **defaults: Any) -> Any:
    """The command line, with the benchmark's docstring as its help; each option by its default, or (default, help).

    A flag has the default False; a list takes any number of values, of the type of its first.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, given in defaults.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        how: dict[str, Any] = {"default": default, "help": text}
        if default is False:
            how["action"] = "store_true"
        elif isinstance(default, list):
            how |= {"nargs": "*", "type": type(default[0])}
        elif default is not None:
            how["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


async def by_turns(ways: dict[K, Callable[[], Any]], turns: int, warm_up: int = 1) -> dict[K, list[Any]]:
    """What each way gives, turn by turn, in random order: else each would always pay for one neighbour's garbage."""
    found: dict[K, list[Any]] = {name: [] for name in ways}
    for turn in range(warm_up + turns):
        for name in random.sample(list(ways), len(ways)):
            result = ways[name]()
            result = await result if inspect.isawaitable(result) else result
            if turn >= warm_up:
                found[name].append(result)
    return found


def ratio(mine: Iterable[float], other: Iterable[float]) -> float:
    """Median over turns."""
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))


def added(mine: Iterable[float], other: Iterable[float]) -> list[float]:
    """What each turn adds, in order of size."""
    return sorted(a - b for a, b in zip(mine, other, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def met(figure: float, target: float, missed: str = "missed") -> str:
    return "met" if figure <= target else missed


class Columns:
    """A table with a heading, of titles and formats such as "policy <18 | ms >8.1f". Text has the width only."""

    def __init__(self, columns: str) -> None:
        titles, _, self._formats = zip(*(each.rpartition(" ") for each in columns.split(" | ")), strict=True)
        self.row(*titles)

    def row(self, *cells: object) -> None:
        out = ""
        for cell, how in zip(cells, self._formats, strict=False):
            out += format(cell, re.sub(r"[+,]|\..*", "", how) if isinstance(cell, str) else how)
        print(out, flush=True)


def unpaced(policy: str = "server_only") -> Preset:
    return Preset(dispatch={"policy": policy}, playback={"pace_tps": "off"})
