"""Measuring what a ladder of models answers to texts with known answers."""
