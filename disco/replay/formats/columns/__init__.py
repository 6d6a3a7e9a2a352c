"""Conversion of batches to columns of a trace, with a check of every cell."""
