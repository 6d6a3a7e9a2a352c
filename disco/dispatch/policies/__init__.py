"""Policies for one device and one server, one per file, and the registry of their names."""
