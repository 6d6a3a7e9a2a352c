"""A screen that also keeps what it shows, for a picture of the terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from disco.cli.console import Screen
from disco.cli.word_wrap import printable
from disco.errors import ConfigurationError

__all__ = ["RecordedScreen"]

_WIDTH: Final = 108  # characters; the demo's table needs no more
# Every colour is told from the ground, for everyone; chosen like those of the plots (after Okabe and Ito).
_THEME: Final = TerminalTheme(
    (22, 25, 29),
    (230, 233, 236),
    [
        *((22, 25, 29), (255, 115, 115), (63, 199, 155), (240, 166, 58)),
        *((88, 176, 232), (221, 134, 195), (94, 200, 220), (200, 205, 210)),
    ],
    [
        *((120, 128, 137), (255, 135, 135), (92, 214, 176), (247, 190, 107)),
        *((122, 193, 240), (231, 164, 212), (130, 215, 230), (255, 255, 255)),
    ],
)
# rich's own format without its web font: a picture loads nothing from elsewhere.
_FORMAT: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="{unique_id}-name {unique_id}-about">
<title id="{unique_id}-name">TITLE</title>
<desc id="{unique_id}-about">ABOUT</desc>
<style>
.{unique_id}-matrix{{font-family:"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:{char_height}px;\
line-height:{line_height}px;font-variant-east-asian:full-width}}
.{unique_id}-title{{font-size:18px;font-weight:bold;font-family:system-ui,sans-serif}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


_LINE_CLIP: Final = re.compile(r' clip-path="url\(#terminal-line-\d+\)"')


class RecordedScreen(Screen):
    """See `Screen`. Shows the same as a terminal does, and keeps it: the text, without steps, spinners and frames.

    Its text has colours, so answers are not marked in words by who wrote them, even where the output is no terminal.
    """

    # Mutable: `_kept`, the line that is being streamed, and whether a step is shown.

    def __init__(self) -> None:
        super().__init__()
        self._kept = Console(
            file=io.StringIO(),
            width=_WIDTH,
            record=True,
            force_terminal=True,
            color_system="standard",
            highlight=False,
            legacy_windows=False,
        )
        self._line = Text()
        self._is_step = False

    @property
    def is_terminal(self) -> bool:
        """Whether colours and spinners can be shown: always, in the picture."""
        return True

    def stream(self, text: str, endpoint: str) -> None:
        super().stream(text, endpoint)
        self._line.append(printable(text), style=self.colour(endpoint))

    def line(self, text: str = "", *, style: str = "") -> None:
        super().line(text, style=style)
        if self._is_step:
            return
        self._keep_line()
        self._kept.print(Text(printable(text), style=style))

    def legend(self, endpoints: Iterable[str]) -> None:
        names = list(endpoints)
        super().legend(names)
        self._kept.print(Text("   ").join([Text(f"■ {name}", style=self.colour(name)) for name in names]))

    def flush_line(self) -> None:
        super().flush_line()
        self._keep_line()

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        cells = [list(row) for row in rows]
        super().table(title, columns, cells)
        self._keep_line()
        kept = Screen(file=io.StringIO())
        kept._console = self._kept  # noqa: SLF001 - the same table, printed again
        kept.table(title, columns, cells)

    def show(self, picture: RenderableType) -> None:
        super().show(picture)
        self._keep_line()
        self._kept.print(picture)

    @contextmanager
    def step(self, what: str) -> Iterator[Callable[[float, str], None]]:
        self._keep_line()
        with self._unkept(), super().step(what) as progress:
            yield progress

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[int, int], None]]:
        self._keep_line()
        with self._unkept(), super().bar(what) as progress:
            yield progress

    @contextmanager
    def _unkept(self) -> Iterator[None]:
        self._is_step = True
        try:
            yield
        finally:
            self._is_step = False

    def save_svg(self, path: str, *, title: str) -> None:
        """Write the picture.

        Args:
            path: the file.
            title: the command that was run; it stands above the picture.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._keep_line()
        about = f"What the command {title} printed in a terminal. The colour of a word is that of its writer."
        form = _FORMAT.replace("TITLE", escape(title)).replace("ABOUT", escape(about))
        picture = self._kept.export_svg(title=title, theme=_THEME, code_format=form, unique_id="terminal")
        picture = _LINE_CLIP.sub("", picture)  # half of its bytes; the whole screen is clipped anyway
        try:
            Path(path).write_text(picture, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror or error}") from error

    def _keep_line(self) -> None:
        """End the streamed line in the picture, too; its words wrap at the picture's edge."""
        if self._line:
            self._kept.print(self._line)
            self._line = Text()
