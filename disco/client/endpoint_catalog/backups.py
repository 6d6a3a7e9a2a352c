"""Further servers, which answer when the first server does not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

    from disco.endpoints.continuation import Continuation
    from disco.rates import PriceChoice

__all__ = ["Backup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A server behind the first one. It serves requests that neither the first server nor the device can serve now.

    Attributes:
        base_url: the address of its API. Not in repr, because it may contain a password.
        api_key: its key; any text if the server checks none. Not in repr.
        model: the model to request from it, whatever the request calls the first server's model.
        price: USD per million (input, output) tokens, as for the client; None: the price table's.
        continuation: how it continues half-written answers, as for the client; see docs/concepts/continuation.md.
        name: its name in route records; by default "backup-1", "backup-2", ... in their order.
        http_client: for its connections (proxies, certificates); None: it makes its own. Closed with the client.
    """

    base_url: str = field(repr=False)
    api_key: str = field(repr=False)
    model: str
    price: PriceChoice | None = None
    continuation: str | Continuation = "auto"
    name: str | None = None
    http_client: httpx2.AsyncClient | None = field(default=None, repr=False)
