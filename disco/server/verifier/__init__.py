"""The HTTP side of a verify server: rounds of drafted tokens in, its model's verdicts out."""

from disco.server.verifier.engine_endpoint import EngineEndpoint
from disco.server.verifier.round_engine import RoundEngine

__all__ = ["EngineEndpoint", "RoundEngine"]
