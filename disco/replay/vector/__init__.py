"""Vectorised evaluator: TTFT, budget and cost of millions of requests at once."""
