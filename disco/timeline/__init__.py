"""The time line of one answer, drawn from its route record: in a terminal, as SVG, as a page. It has no text."""

from disco.timeline.building import timeline_of
from disco.timeline.model import Timeline
from disco.timeline.page import timeline_html
from disco.timeline.record_reader import read_record
from disco.timeline.svg import timeline_svg
from disco.timeline.terminal import timeline_lines

__all__ = ["Timeline", "read_record", "timeline_html", "timeline_lines", "timeline_of", "timeline_svg"]
