"""A report of policies and budgets as one self-contained HTML page."""

from __future__ import annotations

from typing import Final

from disco.errors import ConfigurationError
from disco.replay.metrics.over_seeds import CDF_LEVELS
from disco.replay.report.chart_style import styles
from disco.replay.report.charts import cdf_levels_shown, figures
from disco.replay.report.findings import findings
from disco.replay.report.page_skeleton import PageContent, PageScenario, render_page
from disco.replay.report.report_data import Group, Report, groups
from disco.replay.report.terminal_tables import scenario_tables
from disco.replay.report.timeline import timeline

__all__ = ["to_html"]

_FOOTER: Final = (
    "TTFT: seconds from the request to the first token the reader gets, over answered requests. ± is half the "
    "95\u00a0% interval over seeds. Costs are policy costs (USD): the server's bill, and energy at the exchange rate. "
    "Each time in a line of the oracle is the smallest that its budget allows. Distances to the oracle compare at the "
    "same budget, or at what the policy used, where that is more."
)


def to_html(report: Report) -> str:
    """Return the page as text; write it to a file and open it in any browser, without a network.

    Raises:
        ConfigurationError: plotly is not installed, or the report is empty.
    """
    if not report.cells:
        raise ConfigurationError("the report has no cells to show; run at least one policy")
    found = groups(report.cells)
    look = styles(line for group in found for line in group.lines)
    plots = figures(found, look)
    if report.example is not None and (one := timeline(report.example)) is not None:
        plots.append(one)
    levels = [CDF_LEVELS[i] for i in cdf_levels_shown(found)]
    return render_page(
        PageContent(
            title=report.title,
            notes=report.notes,
            findings=findings(report),
            scenarios=[
                PageScenario(
                    f"{group.scenario} ({group.regime})",
                    scenario_tables(group),
                    [f"{budget:g}" for budget in group.budgets],
                    _middle(group),
                )
                for group in found
            ],
            look=look,
            plots=plots,
            footer=_FOOTER,
            shared={
                "@levels": levels,
                # A share of 0 has no place on a logarithmic axis.
                "@exceeding": [round(1 - level, 6) if level < 1 else None for level in levels],
            },
        )
    )


def _middle(group: Group) -> int:
    """Return the index of the budget shown first: the one nearest to 0.5."""
    return min(range(len(group.budgets)), key=lambda i: abs(group.budgets[i] - 0.5))
