"""A simulated endpoint, defined by numbers alone, for tests and for replay."""
