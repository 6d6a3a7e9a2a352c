"""Saves what the model has read of prompts to disk, and takes it back after a start."""
