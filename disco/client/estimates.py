"""What every endpoint is expected to cost and how fast it is, before and after anything was seen of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from disco.client.knowledge import Knowledge, Speeds
from disco.cost import ExchangeRate, Rates, device_rates, server_rates
from disco.dispatch import Preset
from disco.endpoints.base import Endpoint
from disco.profiles import (
    DeviceProfile,
    FlopsPerToken,
    Price,
    PriceTable,
    Rolling,
    ServerProfile,
    available_profiles,
    load_device,
    load_lengths,
    load_prices,
    load_server,
)
from disco.telemetry.lines import LOG

if TYPE_CHECKING:
    from disco.client.backup_server import BackupServer

__all__ = ["Estimates", "make_room"]

LENGTHS = "lengths-azure-conv-2023"  # prompt and answer lengths before there are any of the user's own
SERVER = "gpt-4o-mini-2024"  # a server's TTFT before any was seen
SEEN = 5  # starts of a server after which its TTFT counts as known
MOST_MODELS = 256  # of which something is remembered
UNPRICED = "gpt-4o-mini"  # what a model that is in no price table is taken to cost, with a warning

# A device nobody has measured: slow enough that it is not trusted with a hand-over it cannot make in time.
UNMEASURED = DeviceProfile(
    name="unmeasured",
    source="assumed until `disco profile` or a few answers have measured it",
    prefill_tps=100.0,
    decode_tps=15.0,
    c_s=0.05,
    load_s=2.0,
    flops=FlopsPerToken(prompt_tokens=(128.0,), prefill=(1e9,), decode=1e9),
)


class Estimates:
    """Profiles and prices of one client's endpoints, and what it has learnt.

    Mutable: `knowledge`, `unpriced`.

    Attributes:
        knowledge: what was seen so far.
        server: the server's profile.
        unpriced: models whose price nobody knows.
    """

    def __init__(
        self,
        *,
        local: Endpoint | None,
        backups: Sequence[BackupServer],
        device_profile: str | os.PathLike[str] | DeviceProfile | None,
        server_profile: str | os.PathLike[str] | ServerProfile | None,
        price: tuple[float, float] | None,
    ) -> None:
        """See `AsyncDisco` for the last three."""
        self.server = (
            server_profile
            if isinstance(server_profile, ServerProfile)
            else load_server(server_profile or SERVER)
        )
        self._knows_server = server_profile is not None  # its user knows how soon it writes
        self._device = _device_profile(device_profile, local)
        self._backups = tuple(backups)
        self._price = _price(price)
        self._prices: PriceTable = load_prices()
        self.unpriced: set[str] = set()
        prior = load_lengths(LENGTHS)
        self.knowledge = Knowledge(prompts=prior.prompt(weight=50.0), prior=prior)

    def speeds(self, endpoint: Endpoint, model: str, preset: Preset) -> Speeds:
        """What is known of an endpoint under a model's name; from its profile where nothing was seen."""
        price = self._price
        if endpoint in self._backups:
            model, price = endpoint.model, _price(endpoint.price)
        key = (endpoint.name, None if endpoint.place == "device" else model)
        known = self.knowledge.speeds.get(key)
        if known is None:
            make_room(self.knowledge.speeds)
        if endpoint.place == "device":
            rates = self._device_rates(preset)
            if known is None:
                line = self._device.line
                known = self.knowledge.speeds[key] = Speeds(
                    place="device",
                    rates=rates,
                    prefill_tps=1.0 / line.k_s_per_token,
                    overhead_s=line.c_s,
                    decode_tps=self._device.decode_tps,
                    load_s=self._device.load_s or 0.0,
                )
            known.rates = rates  # λ may differ from preset to preset
        elif known is None:
            known = self.knowledge.speeds[key] = Speeds(
                place="server",
                rates=self._server_rates(model, price),
                ttft=Rolling(prior=self.server.ttft()),
                decode_tps=self.server.decode_tps or 50.0,
            )
        return known

    def _device_rates(self, preset: Preset) -> Rates:
        profile = self._device
        if profile.flops is None:
            profile = profile.model_copy(update={"flops": UNMEASURED.flops})
        return device_rates(profile, ExchangeRate(usd_per_mflop=preset.cost.exchange_rate))

    def _server_rates(self, model: str, price: Price | None) -> Rates:
        price = price or self._prices.models.get(model)
        if price is None:
            self.unpriced.add(model)
            price = self._prices.models[UNPRICED]
            LOG.warning(
                "No price is known for the server's model; costs are counted at %s's until you pass "
                "price=(usd_per_million_in, usd_per_million_out).",
                UNPRICED,
            )
        return server_rates(price)

    def knows(self, speeds: Speeds) -> bool:
        """Whether there is data on how soon an endpoint writes: seen here, or given by the user."""
        ttft = speeds.ttft
        return ttft is None or self._knows_server or ttft.count + ttft.censored_count >= SEEN


def _price(price: tuple[float, float] | None) -> Price | None:
    return None if price is None else Price(usd_per_mtok_in=price[0], usd_per_mtok_out=price[1])


def make_room(known: dict[Any, Any]) -> None:
    """Forget the oldest entry where there are too many: callers of `disco serve` may make up any model's name."""
    if len(known) >= MOST_MODELS:
        del known[next(iter(known))]


def _device_profile(
    chosen: str | os.PathLike[str] | DeviceProfile | None, local: Endpoint | None
) -> DeviceProfile:
    """The profile asked for, else the one `disco profile` saved for this model, else cautious figures."""
    if chosen is not None:
        return chosen if isinstance(chosen, DeviceProfile) else load_device(chosen)
    name = getattr(local, "profile_name", None)
    if name is not None and name in available_profiles("device"):
        return load_device(name)
    return UNMEASURED
