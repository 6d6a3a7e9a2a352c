"""What stands behind a client: the local endpoint, what is known, and the way from request to session."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
import numpy as np

from disco.client.driver import LiveSession
from disco.client.estimates import Estimates, make_room
from disco.client.host import Host
from disco.client.knowledge import Speeds
from disco.client.options import NO_OPTIONS, RequestOptions
from disco.cost.bounds import most_prompt_tokens
from disco.cost.governor import Governor
from disco.cost.purse import Purse
from disco.dispatch import Dispatcher, Features, Plan, Preset, features_of, load_preset
from disco.dispatch.health import Health, Watch
from disco.dispatch.presets import with_limits
from disco.dispatch.within_budget import within_budget
from disco.endpoints.base import Endpoint
from disco.errors import ConfigurationError, FailureKind
from disco.plan import Candidate, Payer
from disco.playback import Pace, Playback
from disco.profiles import DeviceProfile, ServerProfile
from disco.request import Request
from disco.session.billing import settle_accounts
from disco.session.machine import Session, Terms
from disco.session.record import make_record
from disco.telemetry import Asked, OnRoute, Reporter
from disco.telemetry.lines import LOG, log_plan, log_probe

if TYPE_CHECKING:
    from disco.client.backup_server import BackupServer
    from disco.endpoints.openai_api import OpenAIEndpoint

__all__ = ["Router"]

CONNECT_S = 1.5  # to connect, while somebody else may serve; one lost packet is sent again after 1 s


class Router:
    """Plans and starts the sessions of one client and of its copies.

    Mutable: `local` (made on first use where it was given by name), `knowledge`, `health`, the two caches,
    `governor`, `_refused` (servers whose refusal of the key was logged).
    """

    def __init__(
        self,
        *,
        local: str | Path | Endpoint | None,
        isolation: Literal["thread", "process"] = "thread",
        policy: str | os.PathLike[str] | Preset,
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: tuple[float, float] | None = None,
        on_route: OnRoute | None = None,
        backups: Sequence[BackupServer] = (),
        budget: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """See `AsyncDisco` for the arguments; `seed` fixes what little is random in dispatch."""
        self.preset = with_limits(load_preset(policy), budget)
        self.governor = Governor()
        self._owns_local = not isinstance(local, Endpoint)
        self.local = None if local is None else _local_endpoint(local, isolation)
        self._estimates = Estimates(
            local=self.local,
            backups=backups,
            device_profile=device_profile,
            server_profile=server_profile,
            price=price,
        )
        self.knowledge = self._estimates.knowledge
        self._reporter = Reporter(on_route)
        self._rng = np.random.default_rng(seed)
        self._presets: dict[str, Preset] = {}
        self._backups = tuple(backups)
        self.health = Health()
        self._refused: set[object] = set()
        # By the preset's identity, the server's name and its model.
        self._dispatchers: dict[tuple[int, str | None, str], Dispatcher] = {}
        self._host = Host()

    def check(self, server: Endpoint | None, defaults: RequestOptions = NO_OPTIONS) -> None:
        """Refuse a configuration under which no request could ever be served.

        Args:
            server: the client's, if it has one.
            defaults: the options of requests that say nothing else.

        Raises:
            ConfigurationError: it is one, or the preset in `defaults` is unknown.
        """
        if self.local is None and server is None:
            raise ConfigurationError(
                "Neither a local model nor a server is configured: pass local=..., or api_key=..."
            )
        preset = self._preset(defaults)
        policy = preset.dispatch.policy
        if self.local is None and (self.is_local_only(defaults) or policy == "device_only"):
            chosen = "local_only = True" if defaults.local_only else f"The policy {preset.name!r}"
            raise ConfigurationError(
                f"{chosen} has answers written on this machine, but no local model is "
                'configured: pass local="smollm2-135m", or the path of a GGUF file.'
            )
        if server is None and policy in ("server_only", "race"):
            raise ConfigurationError(
                f"The policy {preset.name!r} needs a server, but none is configured: pass api_key=... "
                "(and base_url=...), or choose another policy."
            )

    @property
    def local_model(self) -> str | None:
        """What the model on this machine is called in a list of models; None where there is none.

        With a prefix, because the server may hold a model of the same name.
        """
        if self.local is None:
            return None
        return f"local/{getattr(self.local, 'profile_name', self.local.name)}"

    def is_local_only(self, options: RequestOptions) -> bool:
        """Whether a request with these options must stay on this machine."""
        if options.local_only is not None:
            return options.local_only or self._preset(options).limits.local_only
        return self._preset(options).limits.local_only

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

        Raises:
            NoEndpointError: nothing configured may serve it (a ContextLengthError where only that is why).
            ConfigurationError: an unknown preset in the options, or a budget in USD and no price.
            BudgetExceededError: a budget leaves nothing for the only endpoints that may serve it.
        """
        created_s = time.time()
        preset = self._preset(options)
        if options.deadline_s is not None:
            request = replace(request, timeouts=replace(request.timeouts, total_s=options.deadline_s))
        local_only = self.is_local_only(options) or (
            self.local is not None and request.model == self.local_model  # asked for by its name
        )
        features = features_of(request, stream=stream, local_only=local_only)
        endpoints, speeds, candidates = self._field(request.model, server, preset)
        served = {name: e.capabilities(request.model).features for name, e in endpoints.items()}
        dispatcher = self._dispatcher(preset, None if server is None else server.name, request.model, speeds)
        watch, now = self._watch(endpoints, request.model), anyio.current_time()
        resting, probing = watch.look(now, [name for name, e in endpoints.items() if not e.has_route])
        plan = dispatcher.plan(
            features,
            list(candidates.values()),
            served,
            budget_class=options.budget_class or "standard",
            resting=resting,
            probing=probing,
        )
        purse = self._purse(preset, request, features, speeds, created_s - now)
        if purse is not None:
            plan = within_budget(
                plan,
                candidates,
                purse,
                now,
                known=[name for name, s in speeds.items() if self._estimates.knows(s)],
                prompt_tokens=features.prompt_tokens,
                urgent=options.budget_class == "urgent",
            )
        watch.claim(plan, now)
        request = _hurried(request, plan)
        log_plan(plan, policy=preset.name, model=request.model, prompt_tokens=features.prompt_tokens)
        session = self._session(
            plan, candidates, features, preset, request, options, max_retries, watch, purse
        )
        report = self._reporter.begin(
            Asked(
                model=request.model,
                stream=stream,
                params=request.params,
                created_s=created_s,
                local_model=self.local_model,
                address=getattr(server, "address", None),
            )
        )

        def done(finished: Session) -> None:
            watch.close()
            if purse is not None:
                purse.close(anyio.current_time())
            self._tell_of_refused_keys(finished, watch)
            rates = {name: s.rates for name, s in speeds.items()}
            ledger = settle_accounts(finished, rates)
            # The session has closed and changes no more, so the record may be written when it is asked for; only
            # the budgets that it reports go on changing.
            live.written = cache(
                partial(make_record, finished, ledger, policy=preset.name, created_s=created_s)
            )
            if purse is not None:
                live.written()
            if self.knowledge.learn(finished, speeds):
                self._refit()
            if report.listens:
                report.finish(live.written(), live.error)

        live = LiveSession(session, endpoints, request, on_done=done)
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
                except Exception as raised:  # noqa: BLE001 - carried out of the group as itself
                    error = raised
        if error is not None:
            raise error

    async def aclose(self) -> None:
        """End all sessions and free the local model, unless it is the caller's. Idempotent."""
        await self._host.aclose()
        for backup in self._backups:
            await backup.aclose()
        if self.local is not None and self._owns_local:
            await self.local.aclose()

    # ------------------------------------------------------------------ one request

    def _field(
        self, model: str, server: Endpoint | None, preset: Preset
    ) -> tuple[dict[str, Endpoint], dict[str, Speeds], dict[str, Candidate]]:
        """Endpoints, what is known of them, and how dispatch sees them, each by endpoint name."""
        endpoints: dict[str, Endpoint] = {}
        if self.local is not None:
            endpoints[self.local.name] = self.local
        if server is not None:
            if server.name in endpoints:
                raise ConfigurationError(
                    f"Two endpoints are called {server.name!r}; give the local one another name."
                )
            endpoints[server.name] = server
            for backup in self._backups:
                endpoints[backup.name] = backup
        speeds = {name: self._estimates.speeds(e, model, preset) for name, e in endpoints.items()}
        candidates = {
            name: speeds[name].candidate(name, e.capabilities(model), standby=e in self._backups)
            for name, e in endpoints.items()
        }
        return endpoints, speeds, candidates

    def _watch(self, endpoints: Mapping[str, Endpoint], model: str) -> Watch:
        """How the endpoints stand, for one request. A server at another address is another one."""
        return self.health.watch(
            {name: (name, getattr(e, "address", None)) for name, e in endpoints.items()}, model
        )

    def _tell_of_refused_keys(self, session: Session, watch: Watch) -> None:
        """Warn once for each server: the answer came from somebody else, and nobody would ever know."""
        for state in session.attempts:
            if state.failure is FailureKind.AUTHENTICATION:
                key, _ = watch.keys[state.candidate.name]
                if key not in self._refused:
                    self._refused.add(key)
                    LOG.warning(
                        "Endpoint %r refuses its key (401 or 403); others answer in its place where there are any. "
                        "Check api_key and base_url.",
                        state.candidate.name,
                    )

    def _session(
        self,
        plan: Plan,
        candidates: Mapping[str, Candidate],
        features: Features,
        preset: Preset,
        request: Request,
        options: RequestOptions,
        max_retries: int,
        watch: Watch,
        purse: Purse | None,
    ) -> Session:
        wanted = preset.playback.pace_tps if options.pace_tps is None else options.pace_tps
        # Pacing is for people who read: not for programs that wait for tool calls or a JSON document.
        paced = wanted != "off" and features.stream and features.needs.isdisjoint({"tools", "json_schema"})
        pace = Pace(tps=float(wanted), max_hold_s=preset.playback.max_hold_s or 1e-3) if paced else None
        terms = Terms(
            prompt_tokens=features.prompt_tokens,
            max_tokens=features.max_tokens,
            streams=features.stream,
            may_migrate=options.migrate is not False,
            may_continue=features.may_migrate,
            pace_tps=None if pace is None else pace.tps,
            timeouts=request.timeouts,
            max_retries=max_retries,
        )
        return Session(plan, candidates, terms, Playback(pace), self.knowledge.answer_lengths(), watch, purse)

    def _purse(
        self,
        preset: Preset,
        request: Request,
        features: Features,
        speeds: Mapping[str, Speeds],
        offset_s: float,
    ) -> Purse | None:
        """The request's way to its budgets; None where there are none.

        The client's own hold for every request, whatever policy it names; that policy's come on top.

        Raises:
            ConfigurationError: a budget is in money, and a server's price is not known.
        """
        limits = tuple(dict.fromkeys((*self.preset.limits.budgets, *preset.limits.budgets)))
        if not limits:
            return None
        models = [request.model, *(backup.model for backup in self._backups)]
        if not features.local_only and any(limit.unit == "usd" for limit in limits):
            for model in self._estimates.unpriced.intersection(models):
                raise ConfigurationError(
                    f"server_usd needs the price of the server's model {model!r}, which is in no price table: pass "
                    "price=(usd_per_million_in, usd_per_million_out), or give the budget as server_tokens."
                )
        choices = request.params.get("n")
        strict = "reserved" in (self.preset.limits.unreported, preset.limits.unreported)
        return Purse(
            self.governor,
            limits,
            {name: Payer(name, s.place, s.rates) for name, s in speeds.items()},
            most_prompt_tokens(request),
            max_tokens=features.max_tokens,
            choices=choices if isinstance(choices, int) and choices > 0 else 1,
            unreported="reserved" if strict else "estimated",
            offset_s=offset_s,
        )

    # ------------------------------------------------------------------ presets and plans

    def _preset(self, options: RequestOptions) -> Preset:
        if options.policy is None:
            return self.preset
        if options.policy not in self._presets:
            self._presets[options.policy] = load_preset(options.policy)
        return self._presets[options.policy]

    def _dispatcher(
        self, preset: Preset, server: str | None, model: str, speeds: Mapping[str, Speeds]
    ) -> Dispatcher:
        key = (id(preset), server, model)  # presets are kept here, and two may have one name
        dispatcher = self._dispatchers.get(key)
        if dispatcher is None:
            seen = None if server is None else speeds[server].ttft
            ttft = self._estimates.server.ttft() if seen is None else seen.snapshot()
            make_room(self._dispatchers)
            dispatcher = self._dispatchers[key] = Dispatcher(
                preset, lengths=self.knowledge.prompts, ttft=ttft, rng=self._rng
            )
        return dispatcher

    def _refit(self) -> None:
        for (_, server, model), dispatcher in self._dispatchers.items():
            speeds = None if server is None else self.knowledge.speeds.get((server, model))
            if speeds is not None and speeds.ttft is not None:
                dispatcher.refit(self.knowledge.prompts, speeds.ttft.snapshot())


def _hurried(request: Request, plan: Plan) -> Request:
    """While somebody else may serve, nobody waits out the connect clock at a server that is not there."""
    others = len(plan.starts) + len(plan.fallbacks) - len(plan.rested) > 1
    limit = request.timeouts.connect_s
    if not others or (limit is not None and limit <= CONNECT_S):
        return request
    return replace(request, timeouts=replace(request.timeouts, connect_s=CONNECT_S))


def _local_endpoint(local: str | Path | Endpoint, isolation: Literal["thread", "process"]) -> Endpoint:
    if isinstance(local, Endpoint):
        if isolation != "thread":
            raise ConfigurationError(
                f"isolation={isolation!r} is for a model that local=... names. This local model is an endpoint "
                "object already: give isolation to it (LlamaCppEndpoint(isolation=...))."
            )
        return local
    from disco.endpoints.llamacpp import LlamaCppEndpoint  # noqa: PLC0415 - only where it is used

    return LlamaCppEndpoint(model=local, name="device", isolation=isolation)
