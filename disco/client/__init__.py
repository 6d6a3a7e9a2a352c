"""Drop-in clients: the `openai` package's classes with a second model behind them."""

from disco.client.async_client import AsyncDisco
from disco.client.backups import Backup
from disco.client.route_log import RouteLog
from disco.client.sync_client import Disco

__all__ = ["AsyncDisco", "Backup", "Disco", "RouteLog"]
