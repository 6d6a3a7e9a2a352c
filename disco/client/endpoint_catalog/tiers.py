"""Models between the local one and the server, in the user's order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disco.client.endpoint_catalog.local_servers import REACHES, LocalServer
from disco.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

    from disco.candidate import Reach
    from disco.endpoints.continuation import Continuation
    from disco.rates import PriceChoice

__all__ = ["PRICE_FORM", "Tier", "is_price"]

PRICE_FORM = (
    "two numbers of at least 0, USD per million input and output tokens, such as price=(0.1, 0.4), a third one for "
    "cached input, a fourth one for input that is written into a cache, or a name in the price table"
)
"""What a price may be, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A model behind an OpenAI-compatible API, between the local model and the server of the client.

    Under `preset="cascade"`, tiers answer in the order of `tiers=[...]`: the local model, the first tier, the next
    ones, the server. Under `server-first`, which applies where no preset is named, they take over behind the server and
    its backups, the best first. Under any other preset a tier is one more server: the cheapest one takes part, and the
    others take over when it fails.

    Attributes:
        base_url: the address of its API. Not in repr, because it may contain a password.
        model: the model to request from it, whatever the request calls the server's model.
        api_key: its key; None: it checks none, which only a server of the user's own may do. Not in repr.
        reach: "device": the server runs on this machine, so it serves requests that must stay here; its address must
            be this machine's. "own": it runs on another machine of the user's and passes no prompts on. "any": all
            others.
        price: USD per million (input, output) tokens, as for the client; (0, 0): it costs nothing. None: with reach
            "any" the price table's, otherwise the energy of its model as far as its server reports the size.
        continuation: how it continues half-written answers, as for the client; see docs/concepts/continuation.md.
        logp: whether its server gives log probabilities of what it writes; None: the first answer that is to be judged
            finds out. A free answer of a tier without them cannot be judged, so a cascade keeps it.
        name: its name in route records; by default "tier-1", "tier-2", ... in their order.
        http_client: for its connections (proxies, certificates), not with reach="device"; None: it makes its own,
            which with reach "device" and "own" use no proxy and follow no redirect. Closed with the client.

    Raises:
        ConfigurationError: a value is missing or invalid, or the address is not one of this machine's.
    """

    base_url: str = field(repr=False)
    model: str
    api_key: str | None = field(default=None, repr=False)
    reach: Reach = "any"
    price: PriceChoice | None = None
    continuation: str | Continuation = "auto"
    logp: bool | None = None
    name: str | None = None
    http_client: httpx2.AsyncClient | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        what = "A tier" if self.name is None else f"The tier {self.name!r}"
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise ConfigurationError(
                "A tier's name is empty or no text. Leave name out, or give the tier a name."
            )
        if self.logp not in (None, True, False):
            raise ConfigurationError(f"{what}: logp must be True, False or None, not {self.logp!r}.")
        if self.reach not in REACHES:
            raise ConfigurationError(f'{what}: reach must be "device", "own" or "any", not {self.reach!r}.')
        for option, remedy in (
            ("base_url", "the address of its API"),
            ("model", "the model to request from it"),
        ):
            if not getattr(self, option):
                raise ConfigurationError(f"{what} has no {option}: pass {option}=... ({remedy}).")
        if self.price is not None and not is_price(self.price):
            raise ConfigurationError(f"{what}: price must be {PRICE_FORM}; not {self.price!r}.")
        if self.reach == "any":
            if not self.base_url.startswith(("http://", "https://")):
                raise ConfigurationError(f"{what}: base_url must begin with http:// or https://.")
            if not self.api_key:
                raise ConfigurationError(
                    f'{what} has no api_key: pass api_key=... (any text if the server checks none), or reach="own" if '
                    "the server is one of your own machines."
                )
            return
        try:
            self.local_server("tier")
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from None

    def local_server(self, name: str) -> LocalServer:
        """Return a tier on one of the user's own machines as such a server, with this name."""
        assert self.reach != "any"
        return LocalServer(
            base_url=self.base_url,
            model=self.model,
            api_key=self.api_key,
            reach=self.reach,
            continuation=self.continuation,
            logp=self.logp,
            name=name,
            http_client=self.http_client,
        )


def is_price(price: object) -> bool:
    """Return whether it has the form of a price: two to four numbers, or a name, which is looked up later."""
    if isinstance(price, str):
        return bool(price)
    return (
        isinstance(price, tuple | list)
        and len(price) in (2, 3, 4)
        and all(isinstance(p, int | float) and math.isfinite(p) and p >= 0 for p in price)
    )
