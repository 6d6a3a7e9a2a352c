"""Fleets whose model is cut in two: shallow layers and head on the devices, deep layers in one cloud."""
