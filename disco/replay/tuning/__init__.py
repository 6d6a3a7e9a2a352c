"""Search for the preset that serves an objective best."""
