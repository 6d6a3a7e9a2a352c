"""The time line of an answer in a terminal: characters tell everything, colours only help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from disco.amounts import joules, money, spent
from disco.record.building import timeline_of
from disco.record.model import Lane, Reader, Span, SpanKind, Timeline
from disco.record.words import SPAN_WORDS, mark_label, printable, tick_step
from disco.session.records.route_record import RouteRecord

__all__ = ["TimelinePicture", "timeline_lines"]

_GLYPHS: Final = {
    SpanKind.DELAYED: "·",
    SpanKind.QUEUED: "┄",
    SpanKind.READING: "░",
    SpanKind.HOLDING: "═",
    SpanKind.WRITING: "█",
    SpanKind.HIDDEN: "▒",
    SpanKind.PAUSED: "‖",
    SpanKind.SILENT: "?",
}
_ASCII: Final = dict(zip(_GLYPHS, ".~:-#x=?", strict=True))
_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_WINDOWS, _ASCII_WINDOWS = ("●", "◐", "○"), ("@", "+", "o")  # all right, some, none
_SHOWN, _ASCII_SHOWN = ("•", "!"), ("*", "!")  # text given to the reader; late text
# As `disco demo` and `disco chat` colour them: the device, then servers in order.
_DEVICE, _SERVERS = "cyan", ("yellow", "magenta", "green", "blue")
_LEAST, _WIDEST_LABEL = 24, 14  # characters


def timeline_lines(record: RouteRecord, width: int | None = None) -> TimelinePicture:
    """Return the time line of an answer for `Console.print`.

    Args:
        record: of the answer.
        width: in characters; as wide as the console where it is None.
    """
    return TimelinePicture(timeline_of(record), width)


class TimelinePicture:
    """A time line that rich can print."""

    def __init__(self, timeline: Timeline, width: int | None = None) -> None:
        self.timeline = timeline
        self.width = width

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = options.max_width if self.width is None else min(self.width, options.max_width)
        return Measurement(min(_LEAST, width), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = max(_LEAST, options.max_width if self.width is None else self.width)
        yield from _Drawing(self.timeline, width, is_ascii=options.ascii_only).lines()


class _Drawing:
    """Draws one time line at one width."""

    def __init__(self, timeline: Timeline, width: int, *, is_ascii: bool) -> None:
        self._timeline, self._width, self._is_ascii = timeline, width, is_ascii
        names = [lane.endpoint for lane in timeline.lanes]
        self._label = min(max(map(len, [*names, "reader"])), _WIDEST_LABEL if width >= 60 else 8)
        self._cells = width - self._label - 1
        self._glyphs = _ASCII if is_ascii else _GLYPHS
        self._colours = _colours(timeline.lanes)

    def lines(self) -> Iterator[RenderableType]:
        """Yield everything, from the headline to the notes."""
        timeline, dot = self._timeline, " - " if self._is_ascii else " · "
        yield from _wrapped([self._plain(phrase) for phrase in timeline.headline], self._width, "bold", dot)
        yield self._axis()
        for place, lane in enumerate(timeline.lanes):
            yield self._lane(lane)
            if lane.windows:
                yield self._row("drafts", self._windows(lane), self._colours[lane.endpoint])
            yield from self._marks_below(place)
        if timeline.reader is not None:
            yield self._row("reader", self._shown(timeline.reader), "bold")
            if any(tokens for _, tokens in timeline.reader.bank):
                yield self._row("bank", self._bank(timeline.reader), "dim")
        yield from self._marks_below(None)
        yield from self._legend()
        yield self._marks()
        yield self._costs()
        for note in timeline.notes:
            yield Text(self._plain(note), style="dim")

    # ------------------------------------------------------------------ rows

    def _column(self, at_s: float) -> int:
        total_s = self._timeline.total_s
        return min(self._cells - 1, int(at_s / total_s * self._cells)) if total_s > 0 else 0

    def _named(self, name: str, style: str) -> Text:
        name = self._plain(name)
        short = (
            name if len(name) <= self._label else name[: self._label - 1] + ("." if self._is_ascii else "…")
        )
        return Text(f"{short:<{self._label}} ", style=style, no_wrap=True)

    def _row(self, name: str, cells: str, style: str) -> Text:
        return self._named(name, style).append(cells, style=style)

    def _axis(self) -> Text:
        total_s = self._timeline.total_s
        step_s = tick_step(total_s, max(2, self._cells // 10))
        cells = [" "] * self._cells
        tick = 0
        while tick * step_s <= total_s:
            label = f"{tick * step_s:g}" + (" s" if tick == 0 else "")
            at = self._column(tick * step_s)
            if at + len(label) <= self._cells and all(cell == " " for cell in cells[max(0, at - 1) : at]):
                cells[at : at + len(label)] = label
            tick += 1
            if not total_s:
                break
        return Text(" " * (self._label + 1) + "".join(cells).rstrip(), style="dim", no_wrap=True)

    def _lane(self, lane: Lane) -> Text:
        row = self._named(lane.endpoint, self._colours[lane.endpoint])
        cells: list[Span | None] = [None] * self._cells
        for span in sorted(
            lane.spans, key=lambda s: s.start_s - s.end_s
        ):  # short ones last, so that none is hidden
            first, last = self._column(span.start_s), self._column(span.end_s)
            for column in range(first, max(last, first + 1)):
                cells[column] = span
        for cell in cells:
            if cell is None:
                row.append(" ")
            else:
                row.append(self._glyphs[cell.kind], style=_style(cell.kind, self._colours[lane.endpoint]))
        return row

    def _windows(self, lane: Lane) -> str:
        cells = [" "] * self._cells
        for window in lane.windows:
            which = 0 if window.right == window.drafted else 1 if window.right else 2
            cells[self._column(window.judged_s)] = (_ASCII_WINDOWS if self._is_ascii else _WINDOWS)[which]
        return "".join(cells)

    def _shown(self, reader: Reader) -> str:
        glyphs = _ASCII_SHOWN if self._is_ascii else _SHOWN
        cells = [" "] * self._cells
        for at_s, _ in reader.shown:
            cells[self._column(at_s)] = glyphs[0]
        for at_s in reader.late_s:
            cells[self._column(at_s)] = glyphs[1]
        return "".join(cells)

    def _bank(self, reader: Reader) -> str:
        levels = _ASCII_LEVELS if self._is_ascii else _LEVELS
        most = max(tokens for _, tokens in reader.bank)
        cells = [0] * self._cells
        for (at_s, tokens), (until_s, _) in zip(
            reader.bank, [*reader.bank[1:], (self._timeline.total_s, 0)], strict=True
        ):
            for column in range(self._column(at_s), self._column(until_s) + 1):
                cells[column] = max(cells[column], tokens)
        drawn = "".join(levels[min(7, tokens * 8 // most)] if tokens else " " for tokens in cells)
        label = f"at most {most} tokens"
        end = len(drawn.rstrip())
        return f"{drawn[:end]} {label}" if self._cells - end > len(label) else drawn

    def _marks_below(self, lane: int | None) -> Iterator[Text]:
        """Yield the labels of a lane's marks, each below its moment or just behind the one before it."""
        cells = [" "] * self._cells
        for place, mark in enumerate(self._timeline.marks):
            if mark.lane == lane:
                column = self._column(mark.at_s)
                free = [n for n in range(self._cells) if cells[n] == " "]
                if free:
                    at = min(free, key=lambda n: (n < column, abs(n - column)))
                    cells[at] = mark_label(place)
        drawn = "".join(cells).rstrip()
        if drawn:
            yield Text(" " * (self._label + 1) + drawn, style="bold", no_wrap=True)

    # ------------------------------------------------------------------ text

    def _plain(self, text: str) -> str:
        text = printable(text)
        return text.encode("ascii", "replace").decode() if self._is_ascii else text

    def _legend(self) -> Iterator[Text]:
        kinds = dict.fromkeys(span.kind for lane in self._timeline.lanes for span in lane.spans)
        told = [f"{self._glyphs[kind]} {SPAN_WORDS[kind]}" for kind in SpanKind if kind in kinds]
        if any(lane.windows for lane in self._timeline.lanes):
            right, some, none = _ASCII_WINDOWS if self._is_ascii else _WINDOWS
            told.append(f"{right} {some} {none} drafts: all right, some, none")
        if self._timeline.reader is not None:
            shown, late = _ASCII_SHOWN if self._is_ascii else _SHOWN
            told.append(
                f"{shown} text for the reader" + (f", {late} late" if self._timeline.reader.late_s else "")
            )
        yield from _wrapped(told, self._width, "dim")

    def _marks(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold")
        grid.add_column(justify="right", style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for place, mark in enumerate(self._timeline.marks):
            name = None if mark.lane is None else self._timeline.lanes[mark.lane].endpoint
            style = "" if name is None else self._colours[name]
            grid.add_row(mark_label(place), f"{mark.at_s:.2f} s", Text(self._plain(mark.text), style=style))
        return grid

    def _costs(self) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold", style="dim")
        for cost in self._timeline.costs:
            cached = f" ({cost.cached_tokens:,} cached)" if cost.cached_tokens else ""
            tokens = f"{cost.prompt_tokens:,}{cached} + {cost.completion_tokens:,} tokens"
            phases = ", ".join(
                f"{name.replace('_', ' ')} {joules(energy_j) if energy_j and not usd else money(usd)}"
                for name, usd, energy_j in cost.phases
            )
            more = f"{tokens}: {phases}" if len(cost.phases) > 1 or cost.phases[0][0] != "answer" else tokens
            name = self._named(cost.endpoint, self._colours.get(cost.endpoint, ""))
            grid.add_row(name, self._plain(spent(cost.bill_usd, cost.device_energy_j)), self._plain(more))
        return grid


def _colours(lanes: Sequence[Lane]) -> dict[str, str]:
    colours: dict[str, str] = {}
    servers = 0
    for lane in lanes:
        if lane.endpoint in colours:
            continue
        if lane.place == "device" and _DEVICE not in colours.values():
            colours[lane.endpoint] = _DEVICE
        else:
            colours[lane.endpoint] = _SERVERS[servers % len(_SERVERS)]
            servers += 1
    return colours


def _style(kind: SpanKind, colour: str) -> str:
    if kind is SpanKind.SILENT:
        return "bold red"
    return colour if kind in (SpanKind.WRITING, SpanKind.HIDDEN, SpanKind.PAUSED) else f"dim {colour}"


def _wrapped(phrases: Sequence[str], width: int, style: str, between: str = "   ") -> Iterator[Text]:
    """Yield the phrases, as many to a line as fit; none is broken but one that is longer than a line."""
    line = ""
    for phrase in phrases:
        if line and len(line) + len(between) + len(phrase) > width:
            yield Text(line, style=style)
            line = phrase
        else:
            line = f"{line}{between}{phrase}" if line else phrase
    if line:
        yield Text(line, style=style)
