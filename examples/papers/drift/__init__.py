"""Drift: planners that follow a server whose times change, compared in replay."""

from papers.drift.drift_run import DriftResult, run_drift
from papers.drift.drift_tables import drift_tables

__all__ = ["DriftResult", "drift_tables", "run_drift"]
