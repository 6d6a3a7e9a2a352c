"""Route records: read back, summed up, and drawn as time lines in a terminal, as SVG, as a page. They have no text."""

from disco.record.building import timeline_of
from disco.record.model import Timeline
from disco.record.page import timeline_html
from disco.record.reading import read_record
from disco.record.svg import timeline_svg
from disco.record.terminal import timeline_lines

__all__ = ["Timeline", "read_record", "timeline_html", "timeline_lines", "timeline_of", "timeline_svg"]
