"""Metrics with confidence intervals, computed from the outcomes of all requests."""
