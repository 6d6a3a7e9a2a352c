"""The HTTP side of a verify server: rounds of drafted tokens in, verdicts of its model out."""

from disco.server.verifier.round_engine import RoundEngine
from disco.server.verifier.serve_verifier import serve_verifier
from disco.server.verifier.verifier_app import make_verifier_app

__all__ = ["RoundEngine", "make_verifier_app", "serve_verifier"]
