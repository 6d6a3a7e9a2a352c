"""Sweeps over policies × budgets × seeds × scenarios, in one process, in many, or on a cluster."""
