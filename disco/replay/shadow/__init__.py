"""Recordings of shadow mode: what another preset would have done with each answer, and what that would have come to."""
