"""The life of one answer."""
