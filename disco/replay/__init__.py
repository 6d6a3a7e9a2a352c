"""Replay of request traces under policies, budgets and paces: cost, TTFT, and the distance to the best possible.

Functions that have the name of their module (`sweep`, `survey`, `tune`) are imported from that module.
"""

from disco.replay.formats import Skipped, read_chunks, read_trace, write_trace
from disco.replay.metrics.outcome import Outcome, Reading
from disco.replay.metrics.over_seeds import Cell, Figure, Summary, figures_of, summarise
from disco.replay.report import Report, to_html, to_json
from disco.replay.simulator.event_evaluator import simulate
from disco.replay.sweeps.chunked_sweep import sweep_chunks
from disco.replay.sweeps.executors import open_executor
from disco.replay.sweeps.sweep import Swept, run_sweep
from disco.replay.vector.evaluator import evaluate
from disco.replay.workload.from_recording import is_recording, scenario_of_routes
from disco.replay.workload.scenario import Arm, Scenario, Workload, resolve, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace
from disco.replay.workload.trace import Gaps, Trace

__all__ = [
    "Arm",
    "Cell",
    "Figure",
    "Gaps",
    "Outcome",
    "Reading",
    "Report",
    "Scenario",
    "Skipped",
    "Summary",
    "Swept",
    "Trace",
    "Workload",
    "alpaca_like",
    "evaluate",
    "figures_of",
    "is_recording",
    "open_executor",
    "read_chunks",
    "read_trace",
    "resolve",
    "run_sweep",
    "scenario_for",
    "scenario_of_routes",
    "simulate",
    "summarise",
    "sweep_chunks",
    "synthetic_trace",
    "to_html",
    "to_json",
    "write_trace",
]
