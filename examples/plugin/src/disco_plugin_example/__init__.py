"""A policy and a kind of endpoint for disco."""
