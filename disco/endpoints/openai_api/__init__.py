"""A model behind an OpenAI-compatible API."""

from disco.endpoints.openai_api.api_attempt import ServerAttempt
from disco.endpoints.openai_api.api_endpoint import OpenAIEndpoint

__all__ = ["OpenAIEndpoint", "ServerAttempt"]
