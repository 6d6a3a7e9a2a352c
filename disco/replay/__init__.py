"""Sessions in virtual time."""
