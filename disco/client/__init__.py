"""Drop-in clients: the `openai` package's classes with a second model behind them."""

from disco.client.async_client import AsyncDisco

__all__ = ["AsyncDisco"]
