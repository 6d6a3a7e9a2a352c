"""The search for the preset that serves an objective best."""
