"""Fleets of drafting devices and verify servers, in virtual time: `python -m papers.fleet`."""
