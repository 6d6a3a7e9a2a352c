"""The way from a request to its session: it joins endpoints, presets, budgets and statistics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import numpy as np

from disco.client.accounting import Accounting
from disco.client.background_probes import BackgroundProbes
from disco.client.background_tasks import BackgroundTasks
from disco.client.endpoint_catalog.catalog import CatalogEntry, EndpointCatalog, price_of
from disco.client.endpoint_catalog.local_servers import LocalServer, is_address
from disco.client.endpoint_catalog.statistics import EndpointStatistics, make_room
from disco.client.live_driver import LiveSession
from disco.client.planning import PlanningView, prepare
from disco.client.request_options import NO_OPTIONS, RequestOptions
from disco.cost.budget_limiter import BudgetLimiter
from disco.cost.budget_reservation import BudgetReservation
from disco.cost.token_bounds import most_prompt_tokens
from disco.dispatch import Dispatcher, Features, Preset, features_of, load_preset
from disco.dispatch.breakers.endpoint_health import Health
from disco.dispatch.presets import with_limits
from disco.endpoints.contract import Endpoint
from disco.errors import ConfigurationError
from disco.plan import Candidate
from disco.profiles import DeviceProfile, ServerProfile
from disco.request import Request
from disco.telemetry import OnRoute, Reporter, RequestFacts
from disco.telemetry.log_lines import log_plan, log_probe
from disco.telemetry.reporter import AnswerReport

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.backup_server import BackupServer
    from disco.endpoints.openai_api import OpenAIEndpoint

__all__ = ["Router"]


class Router:
    """Plans and starts the sessions of one client and of its copies.

    Mutable: `catalog`, `health`, the two caches, `limiter`, `_refused` (servers whose refusal of the key was logged).
    """

    def __init__(
        self,
        *,
        local: str | Path | Endpoint | LocalServer | None,
        isolation: Literal["thread", "process"] = "thread",
        preset: str | os.PathLike[str] | Preset,
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: tuple[float, float] | None = None,
        on_route: OnRoute | None = None,
        backups: Sequence[BackupServer] = (),
        budget: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """See `AsyncDisco` for the arguments; `seed` fixes the random choices of dispatch."""
        self.preset = with_limits(load_preset(preset), budget)
        self.limiter = BudgetLimiter()
        self._owns_local = not isinstance(local, Endpoint)
        self.local = None if local is None else _local_endpoint(local, isolation)
        self.catalog = EndpointCatalog(
            local=self.local, device_profile=device_profile, server_profile=server_profile, price=price
        )
        self.statistics = self.catalog.statistics
        self._reporter = Reporter(on_route)
        self._rng = np.random.default_rng(seed)
        self._presets: dict[str, Preset] = {}
        self._backups = tuple(backups)
        self._standby = tuple(CatalogEntry(b, b.model, price_of(b.price), standby=True) for b in backups)
        self.health = Health()
        self._refused: set[object] = set()
        self._dispatchers: dict[Any, tuple[Dispatcher, EndpointStatistics | None]] = {}
        self._host = BackgroundTasks()
        self._probes = BackgroundProbes(self._host)
        # Records of direct answers are written in the application's threads, also by destructors.
        self._many_threads = threading.RLock()

    def members(self, server: Endpoint | None) -> tuple[CatalogEntry, ...]:
        """Return the endpoints of the client with this server of its own, in the user's order.

        Raises:
            ConfigurationError: two endpoints have the same name.
        """
        members = [CatalogEntry(e) for e in (self.local, server) if e is not None]
        if server is not None:  # backups need a first server
            members.extend(self._standby)
        names = [member.name for member in members]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"Two endpoints are called {name!r}. Give the local one another name."
                )
        return tuple(members)

    def check(self, server: Endpoint | None, defaults: RequestOptions = NO_OPTIONS) -> None:
        """Refuse a configuration under which no request could ever be served.

        Args:
            server: the client's server, if it has one.
            defaults: the default options of requests.

        Raises:
            ConfigurationError: no request could be served, or the preset in `defaults` is unknown.
        """
        if self.local is None and server is None:
            raise ConfigurationError(
                "Neither a local model nor a server is configured: pass local=..., or api_key=..."
            )
        preset = self._preset(defaults)
        policy = preset.dispatch.policy
        device = self.local is not None and self.local.reach == "device"
        if not device and (self.is_local_only(defaults) or policy == "device_only"):
            chosen = "local_only = True" if defaults.local_only else f"The preset {preset.name!r}"
            if self.local is not None:
                raise ConfigurationError(
                    f"{chosen} keeps answers on this machine, but the local model is on another one "
                    f"(reach={self.local.reach!r})."
                )
            raise ConfigurationError(
                f"{chosen} keeps answers on this machine, but no local model is "
                'configured: pass local="smollm2-135m", or the path of a GGUF file.'
            )
        if server is None and policy in ("server_only", "race"):
            raise ConfigurationError(
                f"The preset {preset.name!r} needs a server, but none is configured: pass api_key=... "
                "(and base_url=...), or choose another preset."
            )

    @property
    def local_model(self) -> str | None:
        """The name of the model on this machine in a list of models; None if there is none.

        The name has a prefix, because the server may have a model of the same name.
        """
        if self.local is None or self.local.reach != "device":
            return None
        return f"local/{getattr(self.local, 'profile_name', self.local.name)}"

    def is_local_only(self, options: RequestOptions) -> bool:
        """Return whether a request with these options must stay on this machine."""
        return bool(options.local_only) or self._preset(options).limits.local_only

    def is_direct(self, server: OpenAIEndpoint, model: str, options: RequestOptions) -> bool:
        """Return whether nothing is left to decide about a request: the server gives the answer, as it comes.

        That is so where no other endpoint may take part, no budget limits the answer, the reader wants no pace and no
        deadline, and the server is not known to continue an answer that breaks off.
        """
        return (
            self.local is None
            and not self._standby
            and options.pace_tps in (None, "off")
            and options.deadline_s is None
            and not (self.preset.limits.budgets or self._preset(options).limits.budgets)
            and not self.is_local_only(options)
            and not server.is_known_to_continue(model)
        )

    def candidate_of(self, server: Endpoint, model: str, options: RequestOptions) -> tuple[Candidate, str]:
        """Return the server as a session sees it, and the name of the preset that applies."""
        preset = self._preset(options)
        able = server.capabilities(model)
        with self._many_threads:
            return self.catalog.candidate(0, CatalogEntry(server), model, preset, able), preset.name

    @property
    def is_heard(self) -> bool:
        """Whether anything may listen to the end of an answer."""
        return self._reporter.is_heard

    def report_on(
        self, body: Mapping[str, Any], server: Endpoint | None, *, stream: bool, at: float
    ) -> AnswerReport:
        """Begin the report of an answer to a request that came at the Unix time `at`, in seconds."""
        return self._reporter.begin(
            RequestFacts(
                model=str(body.get("model")),
                stream=stream,
                params=body,
                created_s=at,
                local_model=self.local_model,
                address=getattr(server, "address", None),
            )
        )

    async def open(
        self,
        request: Request,
        server: Endpoint | None,
        *,
        stream: bool,
        options: RequestOptions,
        max_retries: int = 2,
    ) -> LiveSession:
        """Plan a request and start its session in the background.

        Args:
            request: the request.
            server: the server of this client or of this copy of it; None if it has none.
            stream: whether a reader gets the text as it is written.
            options: disco's options of this request.
            max_retries: how often the only endpoint left is tried again.

        Raises:
            NoEndpointError: no configured endpoint may serve the request (ContextLengthError if it is only too long).
            ConfigurationError: an unknown preset in the options, or a budget in USD and no price.
            BudgetExceededError: the budget has nothing left for the only endpoints that may serve the request.
        """
        created_s, now, model = time.time(), anyio.current_time(), request.model
        preset = self._preset(options)
        if options.deadline_s is not None:
            request = request.due_in(options.deadline_s)
        local_only = self.is_local_only(options) or model == self.local_model  # requested by name
        features = features_of(request, stream=stream, local_only=local_only)
        members = self.members(server)
        endpoints = {m.name: m.endpoint for m in members}
        known = {m.name: self.catalog.known(m, model) for m in members}
        able = [m.endpoint.capabilities(model) for m in members]
        candidates = [
            self.catalog.candidate(rank, m, model, preset, can)
            for rank, (m, can) in enumerate(zip(members, able, strict=True))
        ]
        watch = self.health.watch({m.name: (m.name, m.address) for m in members}, model)
        reservation = self._reservation(preset, request, features, members, candidates, created_s - now)
        view = PlanningView(
            candidates=candidates,
            served={c.name: can.features for c, can in zip(candidates, able, strict=True)},
            known=[name for name, statistics in known.items() if self.catalog.knows(statistics)],
            offline=[m.name for m in members if not m.endpoint.has_route],
            dispatcher=self._dispatcher(preset, members, known, model),
            watch=watch,
            reservation=reservation,
            lengths=self.statistics.answer_lengths(),
            now=now,
        )
        planned = prepare(request, features, preset, options, view, max_retries=max_retries)
        log_plan(planned.plan, preset=preset.name, model=model, prompt_tokens=features.prompt_tokens)
        report = self.report_on({**request.params, "model": model}, server, stream=stream, at=created_s)
        accounting = Accounting(
            watch=watch,
            reservation=reservation,
            report=report,
            statistics=self.statistics,
            endpoints=known,
            refused=self._refused,
            preset=preset.name,
            created_s=created_s,
            on_refit=self._refit,
            probes=None if local_only else self._probes,
            members=endpoints,
            model=model,
        )
        live = accounting.live = LiveSession(planned.session, endpoints, planned.request, on_done=accounting)
        with report.current():
            await self._host.start(live.run)
        return live

    async def warm_up(self, server: OpenAIEndpoint | None, model: str | None = None) -> None:
        """Warm up every endpoint, all at once; `model` names the server's model to probe."""

        async def warm_up_server() -> None:
            if server is not None:
                await server.warm_up()
                if model is not None and server.probes:
                    await server.probe(model)
                log_probe(model, server.continuation(model).method)
                for backup in self._backups:
                    group.start_soon(backup.warm_up)

        error: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(warm_up_server)
            if self.local is not None:
                try:
                    await self.local.warm_up()
                except Exception as raised:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
                    error = raised
        if error is not None:
            raise error

    async def aclose(self) -> None:
        """End all sessions and free the local model, unless the caller owns it. Idempotent."""
        await self._host.aclose()
        for backup in self._backups:
            await backup.aclose()
        if self.local is not None and self._owns_local:
            await self.local.aclose()

    # ------------------------------------------------------------------ budgets, presets and plans

    def _reservation(
        self,
        preset: Preset,
        request: Request,
        features: Features,
        members: Sequence[CatalogEntry],
        candidates: Sequence[Candidate],
        offset_s: float,
    ) -> BudgetReservation | None:
        """Return the request's access to its budgets; None if there are none.

        The client's own budgets apply to every request, whatever preset it names. Those of the request's preset
        are added to them.

        Raises:
            ConfigurationError: a budget is in USD, and a server's price is not known.
        """
        limits = tuple(dict.fromkeys((*self.preset.limits.budgets, *preset.limits.budgets)))
        if not limits:
            return None
        if not features.local_only and any(limit.unit == "usd" for limit in limits):
            for model in self.catalog.unpriced.intersection(m.asked_for(request.model) for m in members):
                raise ConfigurationError(
                    f"server_usd needs the price of the server's model {model!r}, which is in no price table. Pass "
                    "price=(usd_per_million_in, usd_per_million_out), or give the budget as server_tokens."
                )
        choices = request.params.get("n")
        strict = "reserved" in (self.preset.limits.unreported, preset.limits.unreported)
        return BudgetReservation(
            self.limiter,
            limits,
            {c.name: c.payers for c in candidates},
            most_prompt_tokens(request),
            max_tokens=features.max_tokens,
            choices=choices if isinstance(choices, int) and choices > 0 else 1,
            unproved={c.name for c in candidates if c.continues_if_proved},
            unreported="reserved" if strict else "estimated",
            offset_s=offset_s,
        )

    def _preset(self, options: RequestOptions) -> Preset:
        if options.preset is None:
            return self.preset
        if options.preset not in self._presets:
            self._presets[options.preset] = load_preset(options.preset)
        return self._presets[options.preset]

    def _dispatcher(
        self,
        preset: Preset,
        members: Sequence[CatalogEntry],
        known: Mapping[str, EndpointStatistics],
        model: str,
    ) -> Dispatcher:
        """Return the dispatcher that plans under this preset, with the TTFT of the first endpoint that has one."""
        timed = next((m for m in members if known[m.name].ttft is not None), None)
        where = None if timed is None else (timed.name, timed.address)
        key = (id(preset), where, model)  # by id: presets are kept here, and two may have the same name
        found = self._dispatchers.get(key)
        if found is None:
            statistics = None if timed is None else known[timed.name]
            seen = None if statistics is None else statistics.ttft
            ttft = self.catalog.server.ttft() if seen is None else seen.snapshot()
            make_room(self._dispatchers)
            dispatcher = Dispatcher(preset, lengths=self.statistics.prompts, ttft=ttft, rng=self._rng)
            found = self._dispatchers[key] = dispatcher, statistics
        return found[0]

    def _refit(self) -> None:
        for dispatcher, statistics in self._dispatchers.values():
            if statistics is not None and statistics.ttft is not None:
                dispatcher.refit(self.statistics.prompts, statistics.ttft.snapshot())


def _local_endpoint(
    local: str | Path | Endpoint | LocalServer, isolation: Literal["thread", "process"]
) -> Endpoint:
    if isinstance(local, Endpoint):
        if isolation != "thread":
            raise ConfigurationError(
                f"isolation={isolation!r} is for a model that local=... names. This local model is an endpoint "
                "object already. Give isolation to that object: LlamaCppEndpoint(isolation=...)."
            )
        return local
    if isinstance(local, str) and is_address(local):
        local = LocalServer.at(local)
    if isinstance(local, LocalServer):
        if isolation != "thread":
            raise ConfigurationError(
                f"isolation={isolation!r} is for a model that runs in this program. This one runs in a server: leave "
                "isolation out."
            )
        return local.endpoint()
    from disco.endpoints.llamacpp import LlamaCppEndpoint  # noqa: PLC0415 - only if it is used

    return LlamaCppEndpoint(model=local, name="device", isolation=isolation)
