"""The table of what each host of a local model can do, in docs/reference/local-model.md.

`python tests/endpoints/host_table.py --write` asks every host of `hosts.py`, and writes what it found.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

__all__ = ["FOUND", "PAGE", "read_table"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "local-model.md"
FOUND = pytest.StashKey[dict[str, dict[str, str]]]()
"""What a run of `test_host_table.py` has found: by host, by ability."""

_BEGIN = (
    "<!-- Written by tests/endpoints/host_table.py --write: change the hosts or abilities, and run it. -->\n"
)
_END = "<!-- End of what is written. -->\n"


def read_table() -> dict[str, dict[str, str]]:
    """Return what the page says: by host, by ability."""
    header, _, *rows = _section().splitlines() or ["", ""]
    hosts = _cells(header)[1:]
    table: dict[str, dict[str, str]] = {host: {} for host in hosts}
    for row in rows:
        name, *cells = _cells(row)
        for host, cell in zip(hosts, cells, strict=True):
            table[host][name] = cell
    return table


def _section() -> str:
    return PAGE.read_text("utf-8").partition(_BEGIN)[2].partition(_END)[0].strip()


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def _written(found: dict[str, dict[str, str]], hosts: list[str], names: list[str]) -> str:
    lines = [["", *hosts], ["---"] * (1 + len(hosts))]
    lines += [[name, *(found.get(host, {}).get(name, "?") for host in hosts)] for name in names]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


class _Writer:
    """Writes the page at the end of a run; a host that was skipped keeps its column."""

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # Here, where pytest has set the path; and the key is the tests', not that of this file run as a script.
        from tests.endpoints import host_table
        from tests.endpoints.host_abilities import ability_names
        from tests.endpoints.hosts import HOSTS

        found = {**read_table(), **session.config.stash.get(host_table.FOUND, {})}
        table = _written(found, [host.title for host in HOSTS], ability_names())
        text = PAGE.read_text("utf-8")
        pattern = re.escape(_BEGIN) + ".*?" + re.escape(_END)
        PAGE.write_text(
            re.sub(pattern, lambda _: f"{_BEGIN}\n{table}\n{_END}", text, flags=re.DOTALL), "utf-8"
        )


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    path = str(Path(__file__).with_name("test_host_table.py"))
    pytest.main(["-q", "-p", "no:randomly", path], plugins=[_Writer()])
