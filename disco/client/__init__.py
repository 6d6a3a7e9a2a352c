"""Drop-in clients: the classes of the `openai` package, with a second model behind them."""

from disco.client.async_client import AsyncDisco
from disco.client.endpoint_catalog.backups import Backup
from disco.client.endpoint_catalog.tiers import Tier
from disco.client.sync.sync_client import Disco
from disco.power import PowerReadings
from disco.telemetry.route_log import RouteLog

__all__ = ["AsyncDisco", "Backup", "Disco", "PowerReadings", "RouteLog", "Tier"]
