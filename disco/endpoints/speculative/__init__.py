"""A drafter on this machine and a verify server, as one endpoint."""

from disco.endpoints.speculative.speculative_attempt import SpeculativeAttempt
from disco.endpoints.speculative.speculative_endpoint import SpeculativeEndpoint

__all__ = ["SpeculativeAttempt", "SpeculativeEndpoint"]
