"""The local OpenAI-compatible HTTP server, `disco serve`, built on `AsyncDisco`. Extra: `server`."""

from disco.server.app import make_app
from disco.server.live_page.live_board import LiveBoard
from disco.server.named_models import NamedModel, NamedModels
from disco.server.prometheus import Metrics
from disco.server.serving import serve

__all__ = ["LiveBoard", "Metrics", "NamedModel", "NamedModels", "make_app", "serve"]
