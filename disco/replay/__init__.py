"""Replay of request traces under policies, budgets and paces: cost, TTFT, and the distance to the best possible.

Functions that have the name of their module (`sweep`, `survey`, `tune`) are imported from that module.
"""

from disco.endpoints.simulation.simulated_text import shared_prose
from disco.replay.formats import Skipped, read_chunks, read_trace, write_trace
from disco.replay.metrics.intervals import (
    Figure,
    bootstrap_mean,
    figure,
    mean_interval,
    normal_interval,
    paired_bootstrap,
    paired_difference,
    percentile_interval,
    resampled_means,
    sum_by_group,
    wilson,
)
from disco.replay.metrics.outcome import Outcome, Reading
from disco.replay.metrics.over_seeds import Cell, SeedFigures, Summary, figures_of, summarise
from disco.replay.pairs.draft_trace import DraftedRequest, read_drafts, write_drafts
from disco.replay.report import Report, to_html, to_json
from disco.replay.report.claim import Claim, claim_table
from disco.replay.report.table import Table
from disco.replay.simulator.event_evaluator import as_stations, simulate
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import (
    Progress,
    available_cores,
    open_executor,
    run_all,
    share,
    shared_value,
)
from disco.replay.sweeps.sweep import Swept, run_sweep
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import is_recording, scenario_of_routes
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace
from disco.replay.workload.trace import Gaps, Trace

__all__ = [
    "Arm",
    "Cell",
    "Claim",
    "DraftedRequest",
    "Figure",
    "Gaps",
    "Outcome",
    "Progress",
    "Reading",
    "Report",
    "Scenario",
    "SeedFigures",
    "Skipped",
    "Summary",
    "Swept",
    "Table",
    "Trace",
    "Workload",
    "alpaca_like",
    "as_stations",
    "available_cores",
    "bootstrap_mean",
    "claim_table",
    "evaluate",
    "figure",
    "figures_of",
    "is_recording",
    "mean_interval",
    "normal_interval",
    "open_executor",
    "paired_bootstrap",
    "paired_difference",
    "percentile_interval",
    "read_chunks",
    "read_drafts",
    "read_trace",
    "resampled_means",
    "resolve",
    "run_all",
    "run_sweep",
    "scenario_for",
    "scenario_of_routes",
    "share",
    "shared_prose",
    "shared_value",
    "simulate",
    "sum_by_group",
    "summarise",
    "sweep_chunks",
    "synthetic_trace",
    "to_html",
    "to_json",
    "wilson",
    "write_drafts",
    "write_trace",
]
