"""A server on this machine, or on another of the user's, as the local side: Ollama, LM Studio, llama-server, ..."""

from disco.endpoints.local_server.local_endpoint import LocalServerEndpoint

__all__ = ["LocalServerEndpoint"]
