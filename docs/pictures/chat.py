"""Draws chat.svg, a chat as it stands on a terminal: `python docs/pictures/chat.py`.

A real chat with a real local model and a real llama-server runs on an emulated terminal, and the screen is drawn while
an answer is written. Needs the packages that the tests need.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support" / "servers")]

from cli.chat.emulated_terminal import EmulatedTerminal, chat  # noqa: E402
from rich.text import Text  # noqa: E402
from servers import native_llama_server  # noqa: E402

from disco.cli.pictures.recorded_screen import RecordedScreen  # noqa: E402

COLUMNS, ROWS = 100, 30
NAMES: Final = {"brown": "yellow"}  # pyte's name of ANSI's third colour


def main() -> None:
    """Run the chat and write the picture."""
    with (
        native_llama_server() as server,
        chat(
            "--preset", "fast", "--max-tokens", "90", server=server.base_url, columns=COLUMNS, rows=ROWS
        ) as one,
    ):
        one.ready()
        one.type("Why is the sea salty?\r")
        one.until("first word after")
        one.ready()
        one.type("/preset balanced\r")
        one.until("answered under balanced")
        one.ready()
        one.type("Write a short story\\\rabout a lighthouse keeper.\r")
        one.until(
            lambda: (
                "writes" in one.bar and len(one.since("     about a lighthouse keeper.")) and _is_begun(one)
            )
        )
        _draw(one)


def _is_begun(one: EmulatedTerminal) -> bool:
    """Whether three lines of the last answer stand on the screen."""
    below = [line for line in one.since("     about a lighthouse keeper.") if line]
    return len(below) > 3


def _draw(one: EmulatedTerminal) -> None:
    screen = RecordedScreen()
    last = max(number for number, line in enumerate(one.screen.display) if line.strip())
    for row in range(last + 1):
        cells = [one.screen.buffer[row][column] for column in range(COLUMNS)]
        line = Text()
        for cell in cells:
            line.append(cell.data, style=_style(cell))
        line.rstrip()
        screen.show(line)
    screen.save_svg(str(HERE / "chat.svg"), title="disco chat")


def _style(cell: Any) -> str:
    """Return rich's style of a cell of the emulated terminal."""
    colour = "" if cell.fg == "default" else NAMES.get(cell.fg, cell.fg)
    return " ".join(part for part in ("bold" * cell.bold, colour) if part)


if __name__ == "__main__":
    main()
