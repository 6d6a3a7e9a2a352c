"""Trains the adaptive window's network on sweeps of the simulator, and compares windows on fleets it has not seen."""
