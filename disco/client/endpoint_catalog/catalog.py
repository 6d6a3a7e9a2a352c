"""The endpoints of one client: their order, their costs, and their speed as far as it is known."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from disco.candidate import Candidate, Payer, place_of
from disco.client.endpoint_catalog.observed.statistics import EndpointStatistics, Statistics, make_room
from disco.client.endpoint_catalog.pricing import Pricing
from disco.cost import ExchangeRate, device_rates
from disco.cost.model_flops import ModelShapes
from disco.dispatch import Preset
from disco.dispatch.breakers.endpoint_health import Asked
from disco.dispatch.power.power_rule import with_traffic
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.gguf_header import Header
from disco.errors import ConfigurationError
from disco.notices import warn
from disco.plan import Power
from disco.profiles import (
    AdaptiveRolling,
    DeviceProfile,
    FlopsPerToken,
    Price,
    RollingLine,
    ServerProfile,
    available_profiles,
    load_device,
    load_lengths,
    load_prices,
    load_server,
)
from disco.rates import Rates

__all__ = ["CatalogEntry", "EndpointCatalog"]

PROMPTS = "lengths-alpaca-2023"  # prompt lengths until the client has seen its own: short questions
ANSWERS = "lengths-azure-conv-2023"  # answer lengths until then
PRIOR_WEIGHT = 8.0  # of the prompt lengths that are assumed at first, in requests
SERVER = "gpt-4o-mini-2024"  # a server's TTFT until one was measured
SEEN = 5  # starts of a server after which its TTFT counts as known

# A device that was never measured: slow enough that no migration is planned that it could not make in time.
UNMEASURED = DeviceProfile(
    name="unmeasured",
    source="assumed until `disco profile` or a few answers have measured it",
    prefill_tps=100.0,
    decode_tps=15.0,
    c_s=0.05,
    load_s=2.0,
    flops=FlopsPerToken(prompt_tokens=(128.0,), prefill=(1e9,), decode=1e9),
)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One endpoint of a client.

    Attributes:
        endpoint: the endpoint.
        model: the model to request from it instead of the request's model; None: the request's model.
        price: the price of its model, or its name in the price tables; None: what the tables say of the model, or the
            energy of a model on the user's own machines.
        standby: it serves only if no other endpoint of its place may.
        profile: a device's own profile; None: the client's.
        rank: its place in the user's order, from the smallest model (0) to the best.
        drafter: the endpoint that drafts for it now, and is charged for that; None: none does.
    """

    endpoint: Endpoint
    model: str | None = None
    price: Price | str | None = None
    standby: bool = False
    profile: DeviceProfile | None = None
    rank: int = 0
    drafter: CatalogEntry | None = None

    @property
    def name(self) -> str:
        """The endpoint's name in plans and records."""
        return self.endpoint.name

    @property
    def is_device(self) -> bool:
        """Whether the endpoint is measured and charged as a device."""
        return self.endpoint.place == "device"

    @property
    def costs_energy(self) -> bool:
        """Whether the endpoint's work costs energy, not money: it runs on the user's own machine and has no price."""
        return self.endpoint.reach != "any" and self.price is None

    @property
    def address(self) -> Hashable:
        """The endpoint's present address: a name may later stand for another server."""
        return getattr(self.endpoint, "address", None)

    @property
    def host(self) -> str | None:
        """The host of that address, on which a price may depend; None where it has none."""
        address = self.address
        return address[0] if isinstance(address, tuple) and isinstance(address[0], str) else None

    @property
    def identity(self) -> Hashable:
        """What tells this endpoint from all others of the program's clients: two models here may have one name."""
        address = self.address
        # All that this program has started have the same address.
        is_own = address is None or hasattr(self.endpoint, "process_id")
        return self.name, self.endpoint if is_own else address

    def as_asked(self, model: str, extra_headers: Mapping[str, Any] | None = None) -> Asked:
        """Return the endpoint as the breakers know it for a request that names `model`; its headers may hold a key."""
        of = getattr(self.endpoint, "account", None)
        account = None if of is None else of(extra_headers)
        return Asked(self.identity, self.asked_for(model), account)

    def asked_for(self, model: str) -> str:
        """Return the model to request from this endpoint for a request that names `model`."""
        return self.model or model

    def answers_with(self, model: str) -> str:
        """Return the name of the model that answers such a request: its own where the endpoint has one."""
        return self.model or str(getattr(self.endpoint, "profile_name", model))


class EndpointCatalog:
    """Profiles and prices of one client's endpoints, and the statistics of its answers.

    Mutable: `statistics`, `pricing`, `_rates` (the rates so far), `_shapes` (of the models, by endpoint).

    Attributes:
        statistics: the statistics of the answers so far.
        server: the profile that servers start from.
        pricing: what the servers' models cost.
    """

    def __init__(
        self,
        *,
        local: Endpoint | None,
        device_profile: str | os.PathLike[str] | DeviceProfile | None,
        server_profile: str | os.PathLike[str] | ServerProfile | None,
    ) -> None:
        """See `AsyncDisco` for the arguments."""
        self.server: ServerProfile = (
            server_profile
            if isinstance(server_profile, ServerProfile)
            else load_server(server_profile or SERVER)
        )
        self._knows_server = server_profile is not None  # the user has given its TTFT
        self._device = _device_profile(device_profile, local)
        self.pricing = Pricing(load_prices())
        self._rates: dict[Hashable, Rates] = {}
        self._shapes: dict[str, tuple[Header, ModelShapes | None]] = {}
        prompts = load_lengths(PROMPTS).prompt(weight=PRIOR_WEIGHT)
        self.statistics = Statistics(prompts=prompts, prior=load_lengths(ANSWERS))

    def known(self, member: CatalogEntry, model: str) -> EndpointStatistics:
        """Return what is known about an endpoint under a model's name; from its profile if nothing was measured."""
        key = (member.name, member.address, None if member.is_device else member.asked_for(model))
        known = self.statistics.endpoints.get(key)
        if known is None:
            make_room(self.statistics.endpoints)
            known = self.statistics.endpoints[key] = self._from_profile(member)
        return known

    def _from_profile(self, member: CatalogEntry) -> EndpointStatistics:
        if not member.is_device:
            return EndpointStatistics(
                ttft=AdaptiveRolling(prior=self.server.ttft()),
                decode_tps=self.server.decode_tps or 50.0,
                is_measured=self._knows_server,
            )
        profile = member.profile or self._device
        line = profile.line
        return EndpointStatistics(
            line=RollingLine(line.k_s_per_token, line.c_s),
            decode_tps=profile.decode_tps,
            load_s=profile.load_s or 0.0,
            is_measured=profile is not UNMEASURED,
        )

    def rates(self, member: CatalogEntry, model: str, preset: Preset, power: Power | None = None) -> Rates:
        """Return the cost of a token at an endpoint, at the preset's exchange rate. One object for all requests.

        Args:
            member: the endpoint.
            model: the model that the request names.
            preset: the request's.
            power: the state of this machine, which changes what its energy is worth; None: it is not known.
        """
        exchange_rate = None
        if member.costs_energy:
            exchange_rate = preset.cost.exchange_rate
            if power is not None and member.endpoint.reach == "device":
                exchange_rate *= power.energy_factor
        key = (
            member.name,
            member.address,
            exchange_rate,
            self._reported_flops(member.endpoint) if member.costs_energy else member.asked_for(model),
        )
        rates = self._rates.get(key)
        if rates is None:
            make_room(self._rates)
            rates = self._rates[key] = self._priced(member, model, exchange_rate)
        return rates

    def _priced(self, member: CatalogEntry, model: str, exchange_rate: float | None) -> Rates:
        if exchange_rate is not None:
            profile, is_known = self._with_flops(member)
            rates = device_rates(profile, ExchangeRate(usd_per_mflop=exchange_rate))
            # Plans need a number for an endpoint of which nothing is known. A record says that it is not known.
            return rates if is_known else replace(rates, j_in=None, j_out=None)
        rates = self.pricing.rates(member.asked_for(model), member.host, member.price)
        # A machine of the user's own with a price takes energy all the same.
        return rates if member.endpoint.reach == "any" else replace(rates, j_in=None, j_out=None)

    def _with_flops(self, member: CatalogEntry) -> tuple[DeviceProfile, bool]:
        """Return the device's profile with FLOPs per token, and whether they or its energy are more than assumed.

        They are the profile's, else what the endpoint reports or its model's file says, else assumed.
        """
        profile = member.profile or self._device
        if profile.flops is not None and profile is not UNMEASURED:
            return profile, True
        reported, is_assumed = self._reported_flops(member.endpoint)
        if is_assumed:
            warn(
                f"The energy of endpoint {member.name!r} is assumed, because its server does not report how many "
                "weights its model has. Pass LocalServer(parameters=...), or a device_profile."
            )
        if isinstance(reported, ModelShapes):
            flops: FlopsPerToken | None = reported.flops()
        else:
            flops = UNMEASURED.flops if reported is None else _same_for_all(reported)
        is_known = reported is not None or profile.energy is not None
        return profile.model_copy(update={"flops": flops}), is_known

    def _reported_flops(self, endpoint: Endpoint) -> tuple[ModelShapes | float | None, bool]:
        """Return the FLOPs of a token, or the shapes they follow from, if known; and whether they never can be."""
        reported = getattr(endpoint, "flops_per_token", None)
        header = getattr(endpoint, "header", None) if reported is None else None
        if header is not None:
            read, reported = self._shapes.get(endpoint.name, (None, None))
            if read is not header:
                reported = ModelShapes.of(header.metadata, vocabulary=header.tokens)
                make_room(self._shapes)
                self._shapes[endpoint.name] = header, reported
            weights = getattr(endpoint, "parameters", None)
            if reported is None and weights:
                reported = 2.0 * weights
        return reported, getattr(endpoint, "assumes_energy", False)

    def check_prices(self, members: Iterable[CatalogEntry], model: str) -> None:
        """Check that the price of each member is known for a request that names `model`.

        A model that the client runs by itself has no price: it costs energy at the preset's exchange rate.

        Raises:
            ConfigurationError: a price is not known; the message names the endpoint.
        """
        for member in members:
            asked = member.asked_for(model)
            # A `Tier` names its model. What it costs on another machine of the user's, only the user can say.
            listed = not member.costs_energy and self.pricing.knows(asked, member.host)
            is_known = listed or (member.costs_energy and member.model is None)
            if member.price is None and not is_known:
                raise ConfigurationError(
                    f'The aim "money" needs the price of every tier, and that of {member.name!r} is not known. Pass '
                    "price=(usd_per_million_in, usd_per_million_out) for it; (0, 0) if it costs nothing."
                )

    def candidate(
        self,
        member: CatalogEntry,
        model: str,
        preset: Preset,
        able: Capabilities,
        power: Power | None = None,
    ) -> Candidate:
        """Return the endpoint as dispatch and session see it for one request; `able` is what it can do now."""
        rates, drafter = self.rates(member, model, preset, power), member.drafter
        candidate = self.known(member, model).candidate(
            member.name,
            member.endpoint.reach,
            rates,
            able,
            standby=member.standby,
            rank=member.rank,
        )
        if drafter is not None:
            drafter_rates = self.rates(drafter, model, preset, power)
            drafts = Payer(drafter.name, place_of(drafter.endpoint.reach), drafter_rates, drafts=True)
            candidate = replace(candidate, parts=(Payer(member.name, candidate.place, rates), drafts))
        return candidate if power is None else with_traffic(candidate, power.traffic_usd_per_mb)

    def knows(self, statistics: EndpointStatistics) -> bool:
        """Return whether there is data on an endpoint's TTFT: measured here, given by the user, or told."""
        ttft = statistics.ttft
        if ttft is None or self._knows_server:
            return True
        return ttft.count + ttft.censored_count >= SEEN or statistics.told >= SEEN


def _same_for_all(flops: float) -> FlopsPerToken:
    return FlopsPerToken(prompt_tokens=(128.0,), prefill=(flops,), decode=flops)


def _device_profile(
    chosen: str | os.PathLike[str] | DeviceProfile | None, local: Endpoint | None
) -> DeviceProfile:
    """Return the chosen profile, else the one `disco profile` saved for this model, else cautious figures."""
    if chosen is not None:
        return chosen if isinstance(chosen, DeviceProfile) else load_device(chosen)
    name = getattr(local, "profile_name", None)
    if name is not None and name in available_profiles("device"):
        return load_device(name)
    return UNMEASURED
