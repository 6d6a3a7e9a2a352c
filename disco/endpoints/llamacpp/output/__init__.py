"""Turns the model's tokens into text that may be shown."""
