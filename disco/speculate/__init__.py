"""Rounds of drafting and verifying: the state machine, windows, estimates and messages; no I/O, no clock."""
