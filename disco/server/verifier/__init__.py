"""The HTTP side of a verify server: rounds of drafted tokens in, its model's verdicts out."""
