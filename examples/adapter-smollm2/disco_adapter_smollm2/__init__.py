"""The adapter's file, for `disco split cut`; there is no code."""
