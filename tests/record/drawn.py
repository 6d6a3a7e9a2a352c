"""What must hold of every time line, whatever its record."""

from __future__ import annotations

import io
from itertools import pairwise
from xml.etree import ElementTree

from rich.console import Console

from disco.playback import reader_metrics
from disco.record import Timeline, timeline_html, timeline_lines, timeline_of, timeline_svg
from disco.record.model import SpanKind
from disco.session.records.route_record import RouteRecord

SVG = "{http://www.w3.org/2000/svg}"


def check_timeline(record: RouteRecord) -> Timeline:
    """Lanes do not overlap, nothing ends before it begins, and all lies within the picture; returns the time line."""
    timeline = timeline_of(record)
    total_s = timeline.total_s
    for lane in timeline.lanes:
        assert all(0 <= span.start_s < span.end_s <= total_s for span in lane.spans), lane
        assert all(one.end_s <= other.start_s for one, other in pairwise(lane.spans)), lane
    for number, attempt in enumerate(record.attempts):
        spans = [(lane, s) for lane in timeline.lanes for s in lane.spans if s.attempt == number]
        assert {lane.endpoint for lane, _ in spans} <= {attempt.endpoint}
        writes = [span for _, span in spans if span.kind == SpanKind.WRITING]
        assert not writes or attempt.kept_tokens or not attempt.tokens
    assert all(0 <= mark.at_s <= total_s for mark in timeline.marks)
    assert all(one.at_s <= other.at_s + 1e-3 for one, other in pairwise(timeline.marks))
    assert all(mark.lane is None or mark.lane < len(timeline.lanes) for mark in timeline.marks)
    if timeline.reader is not None:
        shown, bank = timeline.reader.shown, timeline.reader.bank
        assert all(one <= other for one, other in pairwise(shown))  # times and totals rise
        assert all(0 <= at <= total_s for at, _ in shown)
        assert all(tokens >= 0 and 0 <= at <= total_s for at, tokens in bank)
        assert all(one[0] < other[0] for one, other in pairwise(bank))
        # Written records have times to 0.1 ms: tokens that are late by about the tolerance may be counted otherwise.
        pace_tps = record.pace.pace_tps
        late_s = [] if pace_tps is None else reader_metrics.lateness_s(record.released, pace_tps)
        unsure = sum(abs(one - reader_metrics.TOLERANCE_S) <= 1e-3 for one in late_s)
        assert abs(len(timeline.reader.late_s) - record.pace.late_tokens) <= unsure
    paid = sum(cost.bill_usd for cost in timeline.costs)
    assert abs(paid - record.bill_usd) <= 1e-9 * record.bill_usd
    return timeline


def printed(record: RouteRecord, width: int, *, encoding: str = "utf-8") -> str:
    """What a terminal without colours shows."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    Console(file=out, width=width, force_terminal=False, color_system=None).print(timeline_lines(record))
    out.flush()
    return out.buffer.getvalue().decode(encoding)


def check_drawings(record: RouteRecord) -> None:
    """Each renderer draws it: within its width, as well-formed XML, with every mark."""
    timeline = timeline_of(record)
    for width in (32, 100):
        assert max(map(len, printed(record, width).splitlines())) <= width
    assert printed(record, 80, encoding="ascii").isascii()
    root = ElementTree.fromstring(timeline_svg(record))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for rect in root.iter(f"{SVG}rect"):
        x, y, w, h = (float(rect.attrib.get(name, 0)) for name in ("x", "y", "width", "height"))
        assert x >= 0, rect.attrib
        assert y >= 0, rect.attrib
        assert x + w <= width + 1, rect.attrib
        assert y + h <= height, rect.attrib
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert root.find(f"{SVG}title") is not None
    assert root.find(f"{SVG}desc") is not None
    page = timeline_html(record)
    for mark in timeline.marks:
        assert f"{mark.at_s:.2f} s" in texts
    assert page.count("<tr>") == 3 + len(timeline.marks) + len(record.attempts) + len(record.ledger.charges)
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
