"""An endpoint made of numbers, for tests and for replay."""
