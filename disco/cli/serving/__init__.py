"""`disco serve`: an OpenAI-compatible server for both models, and with `--verify` a verify server."""

from disco.cli.serving.serve_command import run_serve
from disco.cli.serving.serve_options import add_serve

__all__ = ["add_serve", "run_serve"]
