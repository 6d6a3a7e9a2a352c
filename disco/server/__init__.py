"""The local OpenAI-compatible HTTP server, `disco serve`, built on `AsyncDisco`. Extra: `server`."""

from disco.server.app import make_app
from disco.server.prometheus import Metrics
from disco.server.serving import serve

__all__ = ["Metrics", "make_app", "serve"]
