"""Requests to a fleet: traces, made-up ones, and when they arrive."""
