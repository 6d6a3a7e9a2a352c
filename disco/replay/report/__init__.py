"""Reports of a replay: tables for a terminal, JSON for scripts, and one HTML page with plots."""

from disco.replay.report.findings import findings
from disco.replay.report.html_page import to_html
from disco.replay.report.json_report import to_json
from disco.replay.report.report_data import Report
from disco.replay.report.table import Table
from disco.replay.report.terminal_tables import terminal_tables

__all__ = ["Report", "Table", "findings", "terminal_tables", "to_html", "to_json"]
