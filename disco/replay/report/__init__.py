"""Reports of a replay: tables for a terminal, JSON for scripts, and one HTML page with plots."""

from disco.replay.report.chart_style import Plot, Style, axis, band, layout, literal, log_axis, numbers
from disco.replay.report.findings import findings
from disco.replay.report.html_page import to_html
from disco.replay.report.json_report import to_json
from disco.replay.report.page_skeleton import PageContent, PageScenario, render_page
from disco.replay.report.report_data import Report
from disco.replay.report.table import Table
from disco.replay.report.terminal_tables import terminal_tables

__all__ = [
    "PageContent",
    "PageScenario",
    "Plot",
    "Report",
    "Style",
    "Table",
    "axis",
    "band",
    "findings",
    "layout",
    "literal",
    "log_axis",
    "numbers",
    "render_page",
    "terminal_tables",
    "to_html",
    "to_json",
]
