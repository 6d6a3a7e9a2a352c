"""The session: one answer from its plan to its route record."""
