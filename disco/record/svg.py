"""The time line of an answer as SVG: complete in itself, readable on light and dark pages, without scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from disco.amounts import plural, spent
from disco.record.building import timeline_of
from disco.record.model import Lane, Reader, Span, SpanKind, Timeline
from disco.record.summary import writers
from disco.record.words import SPAN_WORDS, mark_label, printable, tick_step
from disco.session.records.route_record import RouteRecord

__all__ = ["draw_svg", "timeline_svg"]

WIDTH: Final = 760
_LEFT, _RIGHT, _TOP = 132, 24, 16  # of the drawing; the names of the lanes lie left of it
_LANE, _BAR = 44, 18  # height of a lane and of the bar in it
_WINDOWS, _READER = 26, 64  # height of the row of drafted windows, and of the reader's lane
_LINE = 19  # of text
_BADGE = 8  # radius of a mark's badge
_FLAT: Final = (SpanKind.DELAYED, SpanKind.QUEUED, SpanKind.HOLDING)  # drawn as thin bars
_SPECK: Final = 3  # width below which a thin bar is not seen as one
_COLOURS: Final = 5  # classes e0 to e4; a sixth endpoint has the colour of the first again
_CHARACTER = 6.3  # mean width of a character of the text, for breaking lines

_STYLE: Final = """
#NAME{--paper:#fdfdfc;--ink:#1d2126;--soft:#5b6470;--line:#d5d9de;--alarm:#c92a2a;--edge:#d5d9de;
--e0:#0072b2;--e1:#c87800;--e2:#a8478b;--e3:#00805e;--e4:#6a4fbf;
font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,Helvetica,Arial,sans-serif}
@media (prefers-color-scheme:dark){#NAME{--paper:#16191d;--ink:#e6e9ec;--soft:#a2abb5;--line:#343a41;--alarm:#ff8787;
--edge:#343a41;--e0:#58b0e8;--e1:#f0a63a;--e2:#dd86c3;--e3:#3fc79b;--e4:#a995ef}}
#NAME text{fill:var(--ink)}#NAME .soft{fill:var(--soft)}#NAME .title{font-size:15px;font-weight:600}
#NAME .name{font-weight:600}#NAME .paper{fill:var(--paper);stroke:var(--edge)}
#NAME .tick{stroke:var(--line)}#NAME .moment{stroke:var(--soft);stroke-dasharray:2 3}
#NAME .badge{fill:var(--ink)}#NAME .label{fill:var(--paper);font-size:11px;font-weight:700;text-anchor:middle}
#NAME .e0{color:var(--e0)}#NAME .e1{color:var(--e1)}#NAME .e2{color:var(--e2)}#NAME .e3{color:var(--e3)}
#NAME .e4{color:var(--e4)}#NAME .alarm{color:var(--alarm)}#NAME .any{color:var(--soft)}
#NAME .writing{fill:currentColor}#NAME .reading{fill:currentColor;fill-opacity:.22}
#NAME .hidden{fill:url(#NAME-hatch);stroke:currentColor;stroke-width:.8}
#NAME .paused{fill:none;stroke:currentColor;stroke-width:1.4}
#NAME .delayed,#NAME .queued{fill:none;stroke:currentColor;stroke-dasharray:1.5 3}
#NAME .queued{stroke-dasharray:5 3}#NAME .holding{fill:none;stroke:currentColor;stroke-width:.9;stroke-opacity:.8}
#NAME .silent{fill:currentColor;fill-opacity:.12;stroke:currentColor;stroke-dasharray:2 2}
#NAME .bank{fill:var(--soft);fill-opacity:.25;stroke:var(--soft);stroke-width:.8}
#NAME .shown{stroke:var(--ink);stroke-width:1}#NAME .late{stroke:var(--alarm);stroke-width:2}
#NAME .sent{fill:none;stroke:currentColor}#NAME .right{fill:currentColor;fill-opacity:.6;stroke:none}
"""


def timeline_svg(record: RouteRecord, *, title: str | None = None, name: str = "timeline") -> str:
    """Return the time line of an answer as an `<svg>` element, for a file of its own or within a page.

    Args:
        record: of the answer.
        title: what stands above it; by default who wrote the answer.
        name: the prefix of its ids; letters, digits and hyphens. Each SVG of a page needs another one.
    """
    return draw_svg(timeline_of(record), title or title_of(record), name)


def title_of(record: RouteRecord) -> str:
    """Return a title: which endpoints wrote the answer, in order."""
    return f"An answer by {', then '.join(writers(record))}" if record.segments else "An answer without text"


def draw_svg(timeline: Timeline, title: str, name: str) -> str:
    """Return a time line as SVG; see `timeline_svg`."""
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise ValueError(f"the name of an SVG has letters, digits and hyphens only, not {name!r}")
    return _Drawing(timeline, title, name).svg()


class _Drawing:
    """Draws one time line. Mutable: `_parts` and `_y`, the lower edge of what is drawn."""

    def __init__(self, timeline: Timeline, title: str, name: str) -> None:
        self._timeline, self._title, self._name = timeline, title, name
        self._parts: list[str] = []
        self._y = float(_TOP)
        self._classes = _classes(timeline.lanes)
        self._lane_tops: dict[int | None, float] = {}

    def svg(self) -> str:
        """Return the element."""
        timeline = self._timeline
        self._head()
        top = self._y
        self._axis()
        for place, lane in enumerate(timeline.lanes):
            self._lane(place, lane)
        if timeline.reader is not None:
            self._reader(timeline.reader)
        bottom = self._y
        behind = [*self._ticks(top + 14, bottom), *self._moments(top + 14, bottom)]
        badges = self._badges()
        self._legend()
        self._mark_list()
        self._costs()
        height = self._y + 8
        said = "; ".join(f"{mark_label(n)}: {m.at_s:.2f} s, {m.text}" for n, m in enumerate(timeline.marks))
        n = self._name
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" id="{n}" viewBox="0 0 {WIDTH} {height:g}"',
                f'width="{WIDTH}" height="{height:g}" role="img" aria-labelledby="{n}-title {n}-desc"',
                'style="max-width:100%;height:auto">',
                f'<title id="{n}-title">{_said(self._title)}</title>',
                f'<desc id="{n}-desc">{_said(" · ".join(timeline.headline))}. {_said(said)}</desc>',
                f"<style>{_STYLE.replace('NAME', n).strip()}</style>",
                f'<defs><pattern id="{n}-hatch" width="5" height="5" patternUnits="userSpaceOnUse"',
                'patternTransform="rotate(45)"><path d="M0 0V5" stroke="var(--soft)" stroke-width="1.6"/></pattern>',
                "</defs>",
                f'<rect class="paper" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="8"/>',
                *behind,
                *self._parts,
                *badges,
                "</svg>",
                "",
            ]
        )

    # ------------------------------------------------------------------ places

    def _x(self, at_s: float) -> float:
        total_s, room = self._timeline.total_s, WIDTH - _LEFT - _RIGHT
        return _LEFT + (at_s / total_s * room if total_s > 0 else 0.0)

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "") -> None:
        classes = f' class="{kind}"' if kind else ""
        end = f' text-anchor="{anchor}"' if anchor else ""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{classes}{end}>{_said(text)}</text>')

    def _wrapped(self, x: float, text: str, kind: str = "") -> None:
        for line in _broken(text, int((WIDTH - x - 16) / _CHARACTER)):
            self._text(x, self._y + 12, line, kind)
            self._y += _LINE

    # ------------------------------------------------------------------ what stands above each other

    def _head(self) -> None:
        self._text(16, self._y + 12, self._title, "title")
        self._y += 24
        self._wrapped(16, " · ".join(self._timeline.headline), "soft")
        self._y += 6

    def _axis(self) -> None:
        total_s = self._timeline.total_s
        step_s = tick_step(total_s, 10)
        for tick in range(int(total_s / step_s + 1e-9) + 1):
            label = f"{tick * step_s:g}" + (" s" if not tick else "")
            self._text(self._x(tick * step_s), self._y + 10, label, "soft", "middle")
        self._y += 18

    def _ticks(self, top: float, bottom: float) -> Iterator[str]:
        total_s = self._timeline.total_s
        step_s = tick_step(total_s, 10)
        for tick in range(int(total_s / step_s + 1e-9) + 1):
            x = self._x(tick * step_s)
            yield f'<path class="tick" d="M{x:.1f} {top:g}V{bottom:g}"/>'

    def _lane(self, place: int, lane: Lane) -> None:
        kind, y = self._classes[lane.endpoint], self._y + 16
        self._lane_tops[place] = self._y
        self._text(16, y + 8, _short(lane.endpoint, 17), "name")
        costs = [cost for cost in self._timeline.costs if cost.endpoint == lane.endpoint]
        told = [lane.place] if lane.place != lane.endpoint else []
        told += [spent(cost.bill_usd, cost.device_energy_j) for cost in costs[:1]]
        self._text(16, y + 22, ", ".join(told), "soft")
        self._parts += [self._span(span, kind, y) for span in lane.spans if self._is_seen(span)]
        self._y += _LANE
        if lane.windows:
            self._windows(lane, kind)

    def _is_seen(self, span: Span) -> bool:
        """Whether a span can be told from a speck; text that was written always counts."""
        return span.kind not in _FLAT or self._x(span.end_s) - self._x(span.start_s) >= _SPECK

    def _span(self, span: Span, kind: str, y: float) -> str:
        x, width = self._x(span.start_s), max(0.6, self._x(span.end_s) - self._x(span.start_s))
        top, height = (y + _BAR / 2 - 2, 4) if span.kind in _FLAT else (y, _BAR)
        kind = "alarm" if span.kind is SpanKind.SILENT else kind
        return (
            f'<rect class="{kind} {span.kind.value}" x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="{height:g}">'
            f"<title>{SPAN_WORDS[span.kind]}: {span.start_s:.2f} to {span.end_s:.2f} s</title></rect>"
        )

    def _windows(self, lane: Lane, kind: str) -> None:
        y, most = self._y, max(1, *(window.drafted for window in lane.windows))
        self._text(16, y + 12, "drafts", "soft")
        for window in lane.windows:
            x, width = self._x(window.sent_s), max(1.0, self._x(window.judged_s) - self._x(window.sent_s))
            unit = (_WINDOWS - 8) / most
            height, right = window.drafted * unit, window.right * unit
            told = f"{plural(window.drafted, 'drafted token')}, {window.right} right"
            at, base = f'x="{x:.1f}" width="{width:.1f}"', y + 18
            self._parts += [
                f'<g class="{kind}"><title>{told}</title>',
                f'<rect class="sent" {at} y="{base - height:.1f}" height="{height:.1f}"/>',
                f'<rect class="right" {at} y="{base - right:.1f}" height="{right:.1f}"/></g>',
            ]
        self._y += _WINDOWS

    def _reader(self, reader: Reader) -> None:
        self._lane_tops[None] = self._y
        y, most = self._y + 16, max((tokens for _, tokens in reader.bank), default=0)
        self._text(16, y + 8, "reader", "name")
        self._text(16, y + 22, "text as it is shown", "soft")
        late = set(reader.late_s)
        times = {
            round(self._x(at_s)): at_s in late for at_s, _ in sorted(reader.shown, key=lambda e: e[0] in late)
        }
        for is_late, kind in ((False, "shown"), (True, "late")):
            path = "".join(f"M{x} {y:g}v8" for x, which in sorted(times.items()) if which is is_late)
            if path:
                self._parts.append(f'<path class="{kind}" d="{path}"/>')
        if most:
            unit, base = 24 / most, y + 40
            self._text(16, y + 38, f"bank: at most {most}", "soft")
            last_s, path = self._timeline.total_s, f"M{self._x(reader.bank[0][0]):.1f} {base:g}"
            for at_s, tokens in _thinned(reader.bank, self._timeline.total_s):
                path += f"H{self._x(at_s):.1f}V{base - tokens * unit:.1f}"
            self._parts.append(f'<path class="bank" d="{path}H{self._x(last_s):.1f}V{base:g}Z"/>')
        self._y += _READER

    # ------------------------------------------------------------------ marks

    def _moments(self, top: float, bottom: float) -> Iterator[str]:
        for at_s in dict.fromkeys(mark.at_s for mark in self._timeline.marks):
            x = self._x(at_s)
            yield f'<path class="moment" d="M{x:.1f} {top:g}V{bottom:g}"/>'

    def _badges(self) -> list[str]:
        """Draw each mark's label above its lane, moved to the right (at the edge to the left) where others stand."""
        drawn = []
        for lane, top in self._lane_tops.items():
            own = [(place, mark) for place, mark in enumerate(self._timeline.marks) if mark.lane == lane]
            places = _apart([self._x(mark.at_s) for _, mark in own], 2 * _BADGE + 1, WIDTH - 12)
            for (place, mark), x in zip(own, places, strict=True):
                y = top + 6
                drawn.append(
                    f"<g><title>{mark.at_s:.2f} s: {_said(mark.text)}</title>"
                    f'<circle class="badge" cx="{x:.1f}" cy="{y:g}" r="{_BADGE}"/>'
                    f'<text class="label" x="{x:.1f}" y="{y + 4:g}">{mark_label(place)}</text></g>'
                )
        return drawn

    def _legend(self) -> None:
        kinds = {s.kind for lane in self._timeline.lanes for s in lane.spans if self._is_seen(s)}
        entries = [(kind.value, SPAN_WORDS[kind]) for kind in SpanKind if kind in kinds]
        if any(lane.windows for lane in self._timeline.lanes):
            entries.append(("window", "drafted tokens in flight; filled: right"))
        x = 16.0
        self._y += 4
        for kind, words in entries:
            width = 25 + len(words) * 6.8 + 16
            if x > 16 and x + width > WIDTH - 8:
                x, self._y = 16.0, self._y + _LINE
            top, height = (self._y + 6, 4) if kind in _FLAT else (self._y + 2, 12)
            colour = "alarm" if kind == "silent" else "any"
            if kind == "window":
                self._parts.append(
                    f'<g class="any"><rect class="sent" x="{x:g}" y="{top:g}" width="18" height="{height}"/>'
                    f'<rect class="right" x="{x:g}" y="{top + 6:g}" width="18" height="{height - 6}"/></g>'
                )
            else:
                self._parts.append(
                    f'<rect class="{colour} {kind}" x="{x:g}" y="{top:g}" width="18" height="{height}"/>'
                )
            self._text(x + 25, self._y + 12, words, "soft")
            x += width
        self._y += _LINE + 6

    def _mark_list(self) -> None:
        for place, mark in enumerate(self._timeline.marks):
            self._text(24, self._y + 12, mark_label(place), "name", "middle")
            self._text(86, self._y + 12, f"{mark.at_s:.2f} s", "soft", "end")
            self._wrapped(96, mark.text)

    def _costs(self) -> None:
        charged = [
            f"{cost.endpoint} {spent(cost.bill_usd, cost.device_energy_j)} "
            f"({cost.prompt_tokens:,} + {cost.completion_tokens:,} tokens)"
            for cost in self._timeline.costs
        ]
        if charged:
            self._y += 4
            self._wrapped(16, "charged: " + "; ".join(charged), "soft")
        for note in self._timeline.notes:
            self._wrapped(16, note, "soft")


def _classes(lanes: Sequence[Lane]) -> dict[str, str]:
    """Return the class of each endpoint's colour: e0 for the device, the others in order."""
    names = dict.fromkeys(lane.endpoint for lane in lanes)
    device = next((lane.endpoint for lane in lanes if lane.place == "device"), None)
    others = [name for name in names if name != device]
    found = {} if device is None else {device: "e0"}
    return found | {name: f"e{(place + 1) % _COLOURS}" for place, name in enumerate(others)}


def _said(text: str) -> str:
    return escape(printable(text))


def _short(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _broken(text: str, most: int) -> Iterator[str]:
    """Yield the text in lines of at most so many characters, broken at spaces where there are any."""
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > most:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
        while len(line) > most:
            yield line[:most]
            line = line[most:]
    yield line


def _thinned(bank: Sequence[tuple[float, int]], total_s: float) -> list[tuple[float, int]]:
    """Return the steps of a bank, the highest of those that fall into the same half of a unit of the drawing."""
    step_s = total_s / (2 * (WIDTH - _LEFT - _RIGHT))
    found: list[tuple[float, int]] = []
    for at_s, tokens in bank:
        if found and step_s and int(at_s / step_s) == int(found[-1][0] / step_s):
            found[-1] = (found[-1][0], max(tokens, found[-1][1]))
        else:
            found.append((at_s, tokens))
    if found:
        found[-1] = (found[-1][0], bank[-1][1])
    return found


def _apart(places: Sequence[float], least: float, right: float) -> list[float]:
    """Return places in order, each at least so far from the one before, the last not beyond `right` if they fit."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + least) if found else place)
    limit = right
    for at in range(len(found) - 1, -1, -1):
        found[at] = min(found[at], limit)
        limit = found[at] - least
    return found
