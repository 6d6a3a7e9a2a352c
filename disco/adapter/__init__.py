"""Trains the adapter of a model cut in two: the layer that drafts from the states of the first layers.

Only `network`, `training` and what uses them need torch, and import it when they are used.
"""
