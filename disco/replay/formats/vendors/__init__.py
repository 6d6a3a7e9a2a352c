"""One adapter for each public kind of trace."""
