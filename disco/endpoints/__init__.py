"""Endpoints under one contract: models on this machine, models behind an API, and simulated ones."""
