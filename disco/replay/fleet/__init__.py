"""Fleets of drafting devices and verify servers, in virtual time: `disco fleet`."""
