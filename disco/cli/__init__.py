"""The command line."""

from disco.cli.main import main

__all__ = ["main"]
