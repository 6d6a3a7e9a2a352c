"""From a request to a session that is ready to start: the only place that prepares an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from disco.candidate import Candidate
from disco.client.request_options import RequestOptions
from disco.cost.budget_reservation import BudgetReservation
from disco.dispatch import Dispatcher, Features, Preset
from disco.dispatch.answer_judging import Judging
from disco.dispatch.breakers.endpoint_health import HealthWatch
from disco.dispatch.eligibility import is_doubtful
from disco.dispatch.policies.policy_registry import ASSIST, CASCADE
from disco.dispatch.power.power_rule import spared_by, with_offline
from disco.dispatch.within_budget import within_budget
from disco.endpoints.contract import Endpoint
from disco.errors import BudgetExceededError, ConfigurationError
from disco.plan import Plan, Power
from disco.playback import Pace, playback_for
from disco.refine import Refined, refine
from disco.request import Request
from disco.session.cut_prompt import least_tokens
from disco.session.machine import Session, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = [
    "PlannedAnswer",
    "PlanningView",
    "as_affordable",
    "as_asked",
    "is_judgeable",
    "pace_of",
    "passes_on",
    "prepare",
    "with_counts",
    "with_heir_prompts",
]

COUNT_WITHIN_S = 0.03  # time for the devices to count a prompt; every reader of such an answer waits for it
# What a template writes of tools is not in the count, nor what an image takes.
_UNCOUNTED = frozenset({"tools", "images", "audio"})
CONNECT_S = 1.5  # time to connect if another endpoint may serve; a lost packet is sent again after 1 s


@dataclass(frozen=True, slots=True)
class PlanningView:
    """What preparing an answer needs besides the request.

    Attributes:
        candidates: every endpoint, in its present state.
        served: by endpoint name, the request features that the endpoint serves; see `eligible`.
        lacks: by endpoint name, why it does not serve a feature; see `eligible`.
        known: names of the endpoints whose TTFT is known.
        offline: names of the endpoints that this machine has no route to.
        dispatcher: plans under the preset.
        watch: which endpoints cool down; the session reports the course of its attempts to it.
        reservation: the request's access to the budgets; None if there are none.
        lengths: the distribution of answer lengths.
        judging: the judge of the client's answers.
        model_of: returns the model that answers on an endpoint.
        now: on the session's clock.
        power: what the state of this machine changes; None: nothing was asked about it.
    """

    candidates: Sequence[Candidate]
    served: Mapping[str, frozenset[str] | None]
    lacks: Mapping[str, Mapping[str, str]]
    known: Sequence[str]
    offline: Sequence[str]
    dispatcher: Dispatcher
    watch: HealthWatch
    reservation: BudgetReservation | None
    lengths: AnswerLengths
    judging: Judging
    model_of: Callable[[str], str]
    now: float
    power: Power | None = None


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """A request with its plan and its session.

    Attributes:
        request: what its attempts are asked.
        plan: which attempts start, and when.
        session: not started.
    """

    request: Request
    plan: Plan
    session: Session


def as_asked(request: Request, options: RequestOptions, preset: Preset) -> Request:
    """Return the request with its deadline and its classes.

    Raises:
        ConfigurationError: classes under another policy than the cascade.
    """
    if options.deadline_s is not None:
        request = request.due_in(options.deadline_s)
    if options.classes:
        if preset.dispatch.policy != CASCADE:
            raise ConfigurationError(
                f"classes have no effect under the preset {preset.name!r}, whose policy is "
                f'{preset.dispatch.policy!r}. Leave them out, or choose preset="cascade".'
            )
        request = replace(request, classes=options.classes)
    return request


async def with_heir_prompts(
    features: Features,
    request: Request,
    preset: Preset,
    options: RequestOptions,
    endpoints: Mapping[str, Endpoint],
) -> tuple[Features, Refined | None]:
    """Add what the division of an answer needs to know, only where the answer may be divided.

    Args:
        features: not changed.
        request: not changed.
        preset: the request's.
        options: the request's.
        endpoints: by name; those on this machine count the prompt, within `COUNT_WITHIN_S`.

    Returns:
        The features, and the refined prompt, if the preset asks for one.
    """
    pace = pace_of(features, preset, options)
    if pace is None or options.migrate is False:
        return features, None
    features = replace(features, divided_at_tps=pace.tps)
    if preset.dispatch.policy != ASSIST or not features.may_migrate or features.local_only:
        return features, None
    refined = None
    if preset.assist.refine != "off":
        refined = refine(request.messages, keep=preset.assist.keep, selector=preset.assist.refine)
        features = replace(features, refined_tokens=round(features.prompt_tokens * refined.prompt_share))
        request = replace(request, messages=refined.messages)
    sizes = {
        name: await endpoint.prompt_size(request, COUNT_WITHIN_S)
        for name, endpoint in endpoints.items()
        if endpoint.reach == "device"
    }
    counted = {name: size for name, size in sizes.items() if size is not None}
    return replace(features, heir_prompts=counted), refined


async def with_counts(
    features: Features, request: Request, members: Mapping[str, tuple[Endpoint, int | None]]
) -> Features:
    """Let the endpoints count the prompt for whose context the estimate is not clearly short or long enough.

    Only where another endpoint could answer as well: one that is alone decides itself.

    Args:
        features: not changed.
        request: not changed.
        members: by name, every endpoint that the request may reach, and its context, tokens, if known.
    """
    if len(members) < 2 or not features.needs.isdisjoint(_UNCOUNTED):
        return features
    counted = dict(features.counted)
    for name, (endpoint, context_tokens) in members.items():
        if context_tokens is None or not is_doubtful(features, context_tokens):
            continue
        size = await endpoint.prompt_size(request, COUNT_WITHIN_S)
        if size is not None:
            counted[name] = size.tokens
    return replace(features, counted=counted)


def prepare(
    request: Request,
    features: Features,
    refined: Refined | None,
    preset: Preset,
    options: RequestOptions,
    view: PlanningView,
    *,
    max_retries: int,
) -> PlannedAnswer:
    """Plan a request within its budget, and make its session; `features` and `refined` are of `with_heir_prompts`.

    Raises:
        NoEndpointError: no configured endpoint may serve the request (ContextLengthError if it is only too long).
        BudgetExceededError: the budget has nothing left for the only endpoints that may serve the request.
    """
    by_name = {c.name: c for c in view.candidates}
    pace = pace_of(features, preset, options)
    resting, probing = view.watch.look(view.now, view.offline)
    plan = view.dispatcher.plan(
        features,
        view.candidates,
        view.served,
        budget_class=options.budget_class or "standard",
        resting=resting,
        probing=probing,
        spared=spared_by(view.power, view.candidates),
        takeover=options.takeover,
        lacks=view.lacks,
    )
    if view.power is not None:
        plan = replace(plan, power=with_offline(view.power, view.offline))
    if refined is not None and plan.assist is not None and plan.assist.heir_tokens is not None:
        request = replace(request, refined=refined.messages)
    plan = as_affordable(plan, view.dispatcher, by_name, view.reservation, features, options, view)
    is_text = is_judgeable(request, features)
    plan, judge = view.judging.judged(
        plan,
        preset,
        view.model_of,
        task=options.task,
        classes=request.classes,
        wish=options.judge,
        is_text=is_text,
        streams=features.stream,
        revises=request.responses is None,  # the events of a response cannot take text back
    )
    chooses = judge is not None and bool(request.classes)
    if chooses:  # events of a server's own, which hold its text, could not show the class instead
        request = replace(request, responses=None)
    view.watch.claim(plan, view.now)
    if features.reach == "any" and request.redaction is None:  # else the prompt is private
        request = replace(request, may_be_saved=True)
    request = with_short_connect(request, plan)
    config = SessionConfig(
        prompt_tokens=features.prompt_tokens,
        max_tokens=features.max_tokens,
        streams=features.stream,
        may_migrate=options.migrate is not False,
        may_continue=features.may_migrate and not chooses,  # a class is chosen as a whole
        may_be_empty=request.may_be_empty,
        pace_tps=None if pace is None else pace.tps,
        timeouts=request.timeouts,
        max_retries=max_retries,
        least_tokens=partial(least_tokens, request),
        is_hedged=True,
    )
    session = Session(
        plan,
        by_name,
        config,
        playback_for(pace),
        view.lengths,
        view.watch,
        view.reservation,
        judge,
        view.judging.agreement(plan, preset, view.model_of, task=options.task),
    )
    return PlannedAnswer(request, plan, session)


def as_affordable(
    plan: Plan,
    dispatcher: Dispatcher,
    candidates: Mapping[str, Candidate],
    reservation: BudgetReservation | None,
    features: Features,
    options: RequestOptions,
    view: PlanningView,
) -> Plan:
    """Return a plan without what the absolute budgets do not cover. What they refuse takes no room in the policy's.

    Args:
        plan: what `dispatcher` made of the request.
        dispatcher: the one of the preset that the request is planned under.
        candidates: by name, with the rates of that preset.
        reservation: the request's access to that preset's budgets; None: there are none.
        features: the request's.
        options: the request's.
        view: what is known, and when.

    Raises:
        BudgetExceededError: the budgets have nothing left for the only endpoints that may serve the request.
    """
    if reservation is None:
        return plan
    try:
        return within_budget(
            plan,
            candidates,
            reservation,
            view.now,
            known=view.known,
            prompt_tokens=features.prompt_tokens,
            urgent=options.budget_class == "urgent",
        )
    except BudgetExceededError:
        dispatcher.settle(plan.spend, ())
        raise


def is_judgeable(request: Request, features: Features) -> bool:
    """Return whether log probabilities say something about the answer: it is plain text, or a class."""
    # Thoughts have log probabilities of their own; a class is scored without them.
    return features.may_migrate and ("reasoning" not in features.needs or bool(request.classes))


def pace_of(features: Features, preset: Preset, options: RequestOptions) -> Pace | None:
    """Return the reading pace. None for programs, which read no text: they wait for tool calls or a JSON document."""
    wanted = preset.playback.pace_tps if options.pace_tps is None else options.pace_tps
    is_read = features.stream and features.needs.isdisjoint({"tools", "json_schema"})
    if wanted == "off" or not is_read:
        return None
    # Log probabilities belong to tokens: the chunks that carry them stay as they are.
    release = "word" if "logprobs" in features.needs else preset.playback.release
    return Pace(tps=float(wanted), max_hold_s=preset.playback.max_hold_s or 1e-3, release=release)


def passes_on(preset: Preset, options: RequestOptions) -> bool:
    """Return whether text may leave as it comes: the request asks for no pace, and its preset for no sentences."""
    if options.pace_tps is None:
        return preset.playback.release == "word"
    return options.pace_tps == "off"


def with_short_connect(request: Request, plan: Plan) -> Request:
    """Return the request with little time to connect where another endpoint may serve that does not cool down."""
    failing = sum(not rest.is_spared for rest in plan.deprioritised)
    limit = request.timeouts.connect_s
    if len(plan.starts) + len(plan.fallbacks) - failing <= 1 or (limit is not None and limit <= CONNECT_S):
        return request
    return replace(request, first_connect_s=CONNECT_S)
