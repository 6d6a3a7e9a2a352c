"""Tables that other commands measure with a real model: this package prints them beside the paper's claims.

A table is a JSON file in `data/`, with `title`, `header`, `rows` and `notes` as in `PaperTable`, cells as strings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from disco.replay.papers.paper_table import PaperTable
from disco.replay.papers.pd_device.request_mix import DATA

__all__ = ["MEASURED", "Measured", "measured_tables"]


class Measured(NamedTuple):
    """A table that is measured elsewhere.

    Attributes:
        file: its name in `data/`.
        title: its title while there is no such file.
        command: what measures it.
    """

    file: str
    title: str
    command: str


MEASURED: Final = (
    Measured("refine-xquad-en.json", "Figure 4a: quality against r", "disco measure refine"),
    Measured(
        "common-prefix.json", "Figure 3a: common prefix of two models' answers", "disco measure quality"
    ),
    Measured(
        "mixed-answers.json", "Figure 7b: quality of answers that both sides wrote", "disco measure quality"
    ),
)


def measured_tables(folder: Path = DATA) -> list[PaperTable]:
    """Return all of them; one whose file is missing says that it is not measured yet.

    Args:
        folder: where the files are.
    """
    return [_read(folder / one.file) if (folder / one.file).is_file() else _missing(one) for one in MEASURED]


def _read(path: Path) -> PaperTable:
    table = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(tuple(map(str, row)) for row in table["rows"])
    return PaperTable(table["title"], tuple(table["header"]), rows, tuple(table["notes"]))


def _missing(one: Measured) -> PaperTable:
    return PaperTable(one.title, ("state", "command"), (("not measured yet", one.command),), ())
