"""The way from a request to its session: it joins endpoints, presets, budgets and statistics."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from disco.candidate import Candidate, Reach
from disco.client.accounting import Accounting
from disco.client.background_probes import BackgroundProbes
from disco.client.endpoint_catalog.catalog import CatalogEntry, EndpointCatalog
from disco.client.endpoint_catalog.client_endpoints import AnyTier, ClientEndpoints, Hosting
from disco.client.endpoint_catalog.dispatchers import Dispatchers
from disco.client.endpoint_catalog.local_servers import LocalServer
from disco.client.endpoint_catalog.observed.refusals import Refusals
from disco.client.endpoint_catalog.observed.statistics import PlannedStarts
from disco.client.endpoint_catalog.observed.told_ttft import ToldTtft
from disco.client.endpoint_catalog.pairs import Speculate, drafting_of, questions
from disco.client.endpoint_catalog.plugged import Plugin
from disco.client.endpoint_catalog.pricing import check_known
from disco.client.learnt.learnt_state import LearntState, store_in
from disco.client.live_driver import LiveSession
from disco.client.planning import PlanningView, as_asked, passes_on, prepare, with_counts, with_heir_prompts
from disco.client.power_watch import PowerSource, PowerWatch
from disco.client.request_options import NO_OPTIONS, RequestOptions
from disco.client.session_watch import tell_of
from disco.client.shadow.shadow_preset import Shadow
from disco.cost.budget_limiter import BudgetLimiter
from disco.cost.budget_reservation import BudgetReservation
from disco.cost.token_bounds import most_prompt_tokens
from disco.dispatch import Features, Preset, features_of, load_preset
from disco.dispatch.answer_judging import Judging
from disco.dispatch.breakers.endpoint_health import Health, HealthWatch
from disco.dispatch.eligibility import is_within, known_names
from disco.dispatch.presets import with_limits
from disco.endpoints.background_tasks import BackgroundTasks
from disco.endpoints.contract import Endpoint
from disco.judging import HistoryStore, store_of
from disco.notices import warn
from disco.profiles import DeviceProfile, ServerProfile
from disco.rates import PriceChoice
from disco.request import Request
from disco.state import database_of, limiter_of
from disco.telemetry import OnRoute, Reporter, RequestFacts
from disco.telemetry.log_lines import log_plan
from disco.telemetry.reporter import AnswerReport

if TYPE_CHECKING:
    from disco.endpoints.openai_api import OpenAIEndpoint

__all__ = ["Router"]


class Router:
    """Plans and starts the sessions of one client and of its copies.

    Mutable: `catalog`, `health`, `judging`, the two caches, `limiter`.

    Attributes:
        local: the local endpoint; None if there is none.
        database: the state file; None where the client has none.
        learnt: what the file knows and what the client learns.
    """

    def __init__(
        self,
        *,
        local: str | Path | Endpoint | LocalServer | Plugin | None,
        here: Hosting = Hosting(),  # noqa: B008 - a tuple
        preset: str | os.PathLike[str] | Preset,
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: PriceChoice | None = None,
        on_route: OnRoute | None = None,
        tiers: Sequence[AnyTier] = (),
        backups: Sequence[CatalogEntry] = (),
        budget: Mapping[str, Any] | None = None,
        histories: str | os.PathLike[str] | HistoryStore | None = None,
        state: str | os.PathLike[str] | bool | None = None,
        speculate: Speculate = "off",
        power: PowerSource = None,
        shadow: str | os.PathLike[str] | Preset | None = None,
        seed: int | None = None,
        beside: Router | None = None,
    ) -> None:
        """See `AsyncDisco` for the arguments.

        `here`: how `local` runs; `seed`: of the random choices of dispatch; `beside`: another client's in this program,
        whose budgets and breakers are this one's, too. It is closed after this one.
        """
        self.preset = with_limits(load_preset(preset), budget)
        self.endpoints = ClientEndpoints(
            local=local, here=here, tiers=tiers, backups=backups, price=price, speculate=speculate
        )
        self.local = self.endpoints.local
        self.catalog = EndpointCatalog(
            local=self.local, device_profile=device_profile, server_profile=server_profile
        )
        self.statistics = self.catalog.statistics
        self._reporter = Reporter(on_route)
        self._presets: dict[str, Preset] = {}
        self.health: Health = Health() if beside is None else beside.health
        self.database = database_of(state)
        self._owns_limiter = beside is None
        path = None if self.database is None else self.database.path
        self.limiter: BudgetLimiter = limiter_of(path) if beside is None else beside.limiter
        self.judging = Judging(store := store_in(self.database, store_of(histories)))
        self._dispatchers = Dispatchers(self.catalog, np.random.default_rng(seed))
        self._shadow = None if shadow is None else Shadow(shadow, budget, self.catalog, seed=seed)
        self._host = BackgroundTasks()
        parts = self.statistics, self.health, self.judging.book, self._host
        self.learnt = LearntState(self.database, store, *parts, on_news=self._refit)
        self._probes = BackgroundProbes(self._host)
        self._refusals = Refusals(lambda: self.health, self._host)
        self._has_told_uncounted = False
        self.power = PowerWatch(power, self._host, knows_own_load=lambda: self.endpoints.runs_here)
        self._told = ToldTtft(self.catalog, self._host, on_told=self._refit)
        # Records of direct answers are written in the application's threads, also by destructors.
        self._many_threads = threading.RLock()

    def check(self, server: Endpoint | None, defaults: RequestOptions = NO_OPTIONS) -> None:
        """Refuse a configuration under which no request could ever be served.

        Args:
            server: the client's server, if it has one.
            defaults: the default options of requests.

        Raises:
            ConfigurationError: no request could be served, a tier has no price under the aim "money", or `defaults`
                names an unknown preset or endpoint.
        """
        preset, reach = self._preset(defaults), self.reach_of(defaults)
        if defaults.local_only:
            chosen = "local_only = True"
        elif defaults.reach == reach:
            chosen = f"reach = {reach!r}"
        else:
            chosen = f"The preset {preset.name!r}"
        self.endpoints.check(server, reach, chosen=chosen, preset=preset)
        names = [member.name for member in self.endpoints.members(server)]
        known_names(
            preset.dispatch.takeover if defaults.takeover is None else defaults.takeover, names, "takeover"
        )
        if defaults.endpoint is not None:
            known_names((defaults.endpoint,), names, 'The option "endpoint"')
        self.endpoints.pairs.check(preset.speculate, has_server=server is not None)
        if preset.cascade.aim == "money":
            self.catalog.check_prices(self.endpoints.tiers, "")

    @property
    def local_model(self) -> str | None:
        """The name of the model on this machine in a list of models; None if there is none.

        The name has a prefix, because the server may have a model of the same name.
        """
        if self.local is None or self.local.reach != "device":
            return None
        return f"local/{getattr(self.local, 'profile_name', self.local.name)}"

    def reach_of(self, options: RequestOptions) -> Reach:
        """Return how far a request with these options may travel: the narrowest of what options and preset allow."""
        if options.local_only or self._preset(options).limits.local_only:
            return "device"
        return options.reach or "any"

    def may_ask(self, server: Endpoint, options: RequestOptions) -> bool:
        """Return whether a request with these options may travel to this server."""
        return is_within(server.reach, self.reach_of(options))

    def is_direct(self, server: OpenAIEndpoint, model: str, options: RequestOptions) -> bool:
        """Return whether nothing is left to decide about a request: the server gives the answer, as it comes.

        That is so where no other endpoint may take part, no budget limits the answer, the reader wants no pace, no
        sentences and no deadline, there are no classes to choose between, and the server is not known to continue an
        answer that breaks off.
        """
        return (
            not self.endpoints.has_others
            and not options.classes
            and passes_on(self._preset(options), options)
            and options.deadline_s is None
            and options.endpoint is None
            and not options.takeover
            and not self.has_budget(options)
            and not self.endpoints.pairs.may_draft(server, drafting_of(options, self._preset(options)))
            and self.may_ask(server, options)
            and not server.is_known_to_continue(model)
        )

    def has_budget(self, options: RequestOptions) -> bool:
        """Return whether a budget limits requests with these options."""
        return bool(self.preset.limits.budgets or self._preset(options).limits.budgets)

    def budgets_left(self) -> dict[str, dict[str, float | str]]:
        """Return `amount`, `per` or `window_s`, and what is `left` now of each absolute budget, by its name."""
        counters = map(self.limiter.counter, self.preset.limits.budgets)
        return {
            c.limit.name: {
                "amount": c.limit.amount,
                **c.limit.period,
                "left": c.amount(c.left(time.time())),
            }
            for c in counters
        }

    def candidate_of(self, server: Endpoint, model: str, options: RequestOptions) -> tuple[Candidate, str]:
        """Return the server as a session sees it, and the name of the preset that applies."""
        preset = self._preset(options)
        able = server.capabilities(model)
        with self._many_threads:
            entry = self.endpoints.server_entry(server)
            return self.catalog.candidate(entry, model, preset, able), preset.name

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
            max_retries: how often each endpoint is tried again, once none is left that has not failed.

        Raises:
            NoEndpointError: no configured endpoint may serve the request (ContextLengthError if it is only too long).
            ConfigurationError: an unknown preset in the options, classes under another policy than the cascade, or a
                budget in USD and no price.
            BudgetExceededError: the budget has nothing left for the only endpoints that may serve the request.
        """
        created_s, now, model = time.time(), anyio.current_time(), request.model
        preset = self._preset(options)
        request = as_asked(request, options, preset)
        local_only = model == self.local_model  # requested by name
        features = features_of(request, stream=stream, local_only=local_only, reach=self.reach_of(options))
        if options.endpoint is not None:
            features = replace(features, endpoint=options.endpoint)
        await self._host.begin()  # a request that is cancelled here has claimed nothing yet
        power = await self.power.look(preset.power)
        members = self.endpoints.members(server, drafting_of(options, preset, power))
        endpoints = {m.name: m.endpoint for m in members}
        features, refined = await with_heir_prompts(features, request, preset, options, endpoints)
        within = [m for m in members if is_within(m.endpoint.reach, features.reach)]
        if preset.cascade.aim == "money":
            self.catalog.check_prices(within, model)
        by_name = {m.name: m for m in members}
        for member in within:
            await member.endpoint.look()
        await self.learnt.ready(members, model)
        known = {m.name: self.learnt.known(m, model, self.catalog.known(m, model)) for m in members}
        able = [m.endpoint.capabilities(model) for m in members]
        if request.unusual and not any(
            can.features is None for m, can in zip(members, able, strict=True) if m in within
        ):
            raise next(iter(request.unusual.values()))
        contexts = {m.name: can.context_tokens for m, can in zip(members, able, strict=True)}
        features = await with_counts(
            features, request, {m.name: (m.endpoint, contexts[m.name]) for m in within}
        )
        candidates = [
            self.catalog.candidate(m, model, preset, can, power) for m, can in zip(members, able, strict=True)
        ]
        watch = self.watch(members, model, request.extra_headers)
        reservation = self._reservation(preset, request, features, candidates, created_s - now)
        view = PlanningView(
            candidates=candidates,
            served={c.name: can.features for c, can in zip(candidates, able, strict=True)},
            lacks={c.name: can.lacks for c, can in zip(candidates, able, strict=True)},
            known=[name for name, statistics in known.items() if self.catalog.knows(statistics)],
            offline=[m.name for m in members if not m.endpoint.has_route],
            dispatcher=self._dispatchers.of(preset, members, known, candidates, model),
            watch=watch,
            reservation=reservation,
            lengths=self.statistics.answer_lengths(),
            judging=self.judging,
            model_of=lambda name: by_name[name].answers_with(model),
            now=now,
            power=power,
        )
        shadow = self._shadow
        beside = (
            None
            if shadow is None
            else shadow.beside(request, features, options, view, members, known, local_only=local_only)
        )
        planned = prepare(request, features, refined, preset, options, view, max_retries=max_retries)
        log_plan(planned.plan, preset=preset.name, model=model, prompt_tokens=features.prompt_tokens)
        report = self.report_on({**request.params, "model": model}, server, stream=stream, at=created_s)
        accounting = Accounting(
            watch=watch,
            reservation=reservation,
            report=report,
            statistics=self.statistics,
            endpoints=known,
            refusals=self._refusals,
            dispatcher=view.dispatcher,
            judging=self.judging,
            created_s=created_s,
            on_refit=self._refit,
            on_end=partial(self.learnt.answered, watch),
            told=partial(self._told.after, within, model),
            probes=None if features.local_only else self._probes,
            members=endpoints,
            model=model,
            shadow=beside,
        )
        live = accounting.live = LiveSession(
            planned.session,
            endpoints,
            planned.request,
            on_done=accounting,
            planned=PlannedStarts(planned.plan, known),
        )
        tell_of(live)
        with report.current():
            await self._host.start(live.run)
        if beside is not None:
            beside.plan()  # now that the real attempts are under way
        for ask in questions(m.endpoint for m in within):
            self._host.start_soon(ask)
        self._refusals.look_again(within, watch, now)
        return live

    def watch(
        self, members: Sequence[CatalogEntry], model: str, extra_headers: Mapping[str, Any] | None = None
    ) -> HealthWatch:
        """Return what a request that names `model` sees of the endpoints' breakers; its headers may hold a key."""
        return self.health.watch({m.name: m.as_asked(model, extra_headers) for m in members})

    async def warm_up(
        self,
        server: OpenAIEndpoint | None,
        model: str | None,
        options: RequestOptions = NO_OPTIONS,
        *,
        on_local: Callable[[], None] | None = None,
    ) -> None:
        """Warm up every endpoint that requests with these options may reach; see `ClientEndpoints.warm_up`."""
        drafting, reach = drafting_of(options, self._preset(options)), self.reach_of(options)
        members = self.endpoints.members(server, drafting)
        await self.power.look(self._preset(options).power)  # its first readings take longer than later ones
        await self.learnt.warm_up(members, model)
        await self.endpoints.warm_up(server, model, reach, drafting, on_local)
        self._refusals.after_warm_up([m for m in members if is_within(m.endpoint.reach, reach)], model)
        await self._told.ask_all(members, model, reach)

    async def aclose(self) -> None:
        """End all sessions, and close every endpoint but the server and those that the caller owns. Idempotent."""
        await self._host.aclose()
        await self.learnt.aclose()
        await self.endpoints.aclose()
        if self._owns_limiter and self.limiter.is_shared:
            await anyio.to_thread.run_sync(self.limiter.close)

    # ------------------------------------------------------------------ budgets, presets and plans

    def _reservation(
        self,
        preset: Preset,
        request: Request,
        features: Features,
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
        if any(limit.unit == "usd" for limit in limits):
            check_known(c for c in candidates if is_within(c.reach, features.reach))
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

    def tell_of_cut(self, server: Endpoint, model: str, read: int, sent: int) -> None:
        """Warn once that the only server cuts prompts: so many tokens read of at least so many."""
        self._refusals.after_cut(server, (server.name, model), read, sent)

    def tell_uncounted(self, options: RequestOptions, path: str) -> None:
        """Warn once that the budget of a request does not count it: it is passed on as it is, to this path."""
        if self._has_told_uncounted or not (
            self.preset.limits.budgets or self._preset(options).limits.budgets
        ):
            return
        self._has_told_uncounted = True
        warn(
            f"POST {path} goes to the server as it is: no budget counts or refuses it, nor any other request that "
            "passes through (embeddings, images, sound, several choices, ...). This is said once."
        )

    def _preset(self, options: RequestOptions) -> Preset:
        if options.preset is None:
            return self.preset
        if options.preset not in self._presets:
            self._presets[options.preset] = load_preset(options.preset)
        return self._presets[options.preset]

    def _refit(self) -> None:
        self._dispatchers.refit()
        if self._shadow is not None:
            self._shadow.refit()
