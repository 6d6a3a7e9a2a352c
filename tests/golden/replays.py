"""Golden replays: 10,000 drawn requests for each shipped preset, through the production path; see README.md."""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]  # the tree that this file lies in, not one that is installed

from golden_adapter import Episode  # noqa: E402
from golden_draws import EPISODE, PRESETS, REQUESTS, draw_asks, draw_setting  # noqa: E402

_A_LINE = 10  # digests
_SHOWN = 3  # requests that `--check` writes out in full, of each preset

ALL = range(REQUESTS // EPISODE)

Result = dict[str, Any]
"""What became of one request: its projected record, the text's crc and the error; or how it was refused."""


def results(preset: str, episodes: Iterable[int] = ALL) -> Iterator[tuple[int, Result]]:
    """The results of a preset's requests by row, in whole episodes."""
    for number in episodes:
        setting = draw_setting(preset, number)
        yield from enumerate(Episode(setting).run(draw_asks(setting)), number * EPISODE)


def canonical(value: Any) -> Any:
    """The same with floats to 12 digits: more than records are rounded to, and sums of costs in any order."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    return [canonical(item) for item in value] if isinstance(value, list | tuple) else value


def digest(found: Result) -> str:
    """8 hexadecimal digits."""
    text = json.dumps(canonical(found), sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def differing(preset: str, episodes: Iterable[int] = ALL) -> Iterator[tuple[int, Result]]:
    """The requests whose digests are not those that are kept."""
    kept = (HERE / f"{preset}.txt").read_text(encoding="ascii").split()
    assert len(kept) == REQUESTS
    for row, found in results(preset, episodes):
        if digest(found) != kept[row]:
            yield row, found


def record(presets: list[str]) -> None:
    """Keep the digests of today's code."""
    for preset in presets:
        digests = [digest(found) for _, found in results(preset)]
        lines = [" ".join(digests[at : at + _A_LINE]) for at in range(0, len(digests), _A_LINE)]
        (HERE / f"{preset}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
        print(f"{preset}: {len(digests)} digests kept")


def check(presets: list[str], episodes: range) -> int:
    """Print what differs; returns how many requests do."""
    total = 0
    for preset in presets:
        found = list(differing(preset, episodes))
        for row, result in found[:_SHOWN]:
            print(f"== {preset} {row}", dump(result), sep="\n")
        print(f"{preset}: {len(found)} of {len(episodes) * EPISODE} requests differ")
        print(f"  rows {[row for row, _ in found[:20]]}")
        total += len(found)
    return total


def dump(found: Result) -> str:
    """To be read, and compared with that of another tree by `diff`."""
    return json.dumps(canonical(found), sort_keys=True, indent=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    act = parser.add_mutually_exclusive_group(required=True)
    act.add_argument("--record", nargs="*", choices=PRESETS, help="keep the digests of today's code")
    act.add_argument("--check", nargs="*", choices=PRESETS, help="print the requests that differ")
    act.add_argument("--dump", nargs=2, metavar=("PRESET", "ROW"), help="print the result of one request")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="only so many (whole hundreds)")
    given = parser.parse_args()
    first = range(-(-given.requests // EPISODE))
    if given.dump:
        row = int(given.dump[1])
        print(dump(dict(results(given.dump[0], [row // EPISODE]))[row]))
    elif given.record is not None:
        record(given.record or [*PRESETS])
    elif given.check is not None:
        return 1 if check(given.check or [*PRESETS], first) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
