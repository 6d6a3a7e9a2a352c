"""Redaction: what leaves this machine has placeholders in place of what the application's hook names."""

from disco.endpoints.redaction.redacting_endpoint import RedactingEndpoint, redacting
from disco.endpoints.redaction.redaction import Redact, Redaction

__all__ = ["Redact", "RedactingEndpoint", "Redaction", "redacting"]
