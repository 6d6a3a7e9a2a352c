"""The attempts of one answer: opened, stopped, settled."""
