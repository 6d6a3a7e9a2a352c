"""From what became of every request to figures with intervals."""
