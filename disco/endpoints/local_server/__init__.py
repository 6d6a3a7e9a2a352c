"""A server on the user's own machines as the local side: Ollama, LM Studio, llama-server, vLLM, ..."""

from disco.endpoints.local_server.local_endpoint import LocalServerEndpoint

__all__ = ["LocalServerEndpoint"]
