"""Inputs of a replay: traces, synthetic workloads, and scenarios."""
