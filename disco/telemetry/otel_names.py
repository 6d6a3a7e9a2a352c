"""Attributes that spans and metrics share, after the GenAI semantic conventions."""

from __future__ import annotations

from disco.telemetry.record_facts import Fact, RequestFacts

__all__ = ["ERROR_TYPE", "REQUEST_MODEL", "endpoint_attributes", "request_attributes"]

ERROR_TYPE = "error.type"
REQUEST_MODEL = "gen_ai.request.model"
_OPERATION = "gen_ai.operation.name"
_PROVIDER = "gen_ai.provider.name"


def request_attributes(asked: RequestFacts) -> dict[str, Fact]:
    """Return the attributes of a whole answer. It may have several providers, so its provider is disco."""
    return {_OPERATION: "chat", _PROVIDER: "disco", REQUEST_MODEL: asked.model}


def endpoint_attributes(asked: RequestFacts, place: str) -> dict[str, Fact]:
    """Return the attributes of one endpoint's work: its provider, its model and, for a server, its address.

    The provider of a server is "openai", whose API it speaks. The address tells which server it is.
    """
    if place == "device":
        return {_OPERATION: "chat", _PROVIDER: "local", REQUEST_MODEL: asked.local_model or asked.model}
    attributes: dict[str, Fact] = {_OPERATION: "chat", _PROVIDER: "openai", REQUEST_MODEL: asked.model}
    if asked.address is not None:
        attributes["server.address"], attributes["server.port"] = asked.address
    return attributes
