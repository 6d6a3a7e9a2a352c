"""Batches become columns of a trace, every cell checked."""
