"""What a run of a fleet shows: figures per answer and of the system, as JSON and as tables."""
