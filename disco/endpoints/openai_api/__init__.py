"""A model behind an OpenAI-compatible API."""

from disco.endpoints.openai_api.attempt import ServerAttempt
from disco.endpoints.openai_api.endpoint import OpenAIEndpoint

__all__ = ["OpenAIEndpoint", "ServerAttempt"]
