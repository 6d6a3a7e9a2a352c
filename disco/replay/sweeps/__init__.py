"""Policies × budgets × seeds × scenarios, in one process, in many, or on a cluster."""
