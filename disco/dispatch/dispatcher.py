"""Makes a request's plan from its features: which endpoints may serve it, which start when, which may take over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from disco.candidate import PATIENT_S, Candidate, Place
from disco.dispatch.arranging import Arranging, BudgetClass
from disco.dispatch.assist import AssistPolicy, typical_answers
from disco.dispatch.assist_solver import AnswerSurvival
from disco.dispatch.cascade import CascadePolicy
from disco.dispatch.cold_start import with_writer
from disco.dispatch.eligibility import cramped, eligible, known_names, left_out
from disco.dispatch.heirs import heirs_of
from disco.dispatch.policies.policy_registry import ASSIST, AUTO, CASCADE, SERVER_ONLY
from disco.dispatch.presets import Preset
from disco.dispatch.request_features import TYPICAL_ANSWER_TOKENS, Features
from disco.dispatch.two_sided import TwoSided
from disco.plan import Cascade, CoolDown, Migration, Plan, Spend, Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["BudgetClass", "Dispatcher"]

_UNEXPLAINED: Mapping[str, Mapping[str, str]] = {}
_NONE: Mapping[str, CoolDown] = {}
# Policies under which no other endpoint writes while a model is loaded: who may answer is fixed there.
_WAITS = frozenset({"device_only", CASCADE})


class Dispatcher:
    """Plans requests under one preset, over any number of endpoints.

    The same preset, distributions, seed and sequence of requests give the same plans. Mutable: the state of the
    policy, through `refit`, `settle` and with each request.
    """

    __slots__ = ("_arranging", "_policy", "_preset", "_two_sided")

    def __init__(
        self,
        preset: Preset,
        *,
        lengths: Lengths,
        ttft: Empirical,
        rng: np.random.Generator,
        answers: Callable[[int | None], AnswerSurvival] = typical_answers,
        arranging: Arranging | None = None,
        holds_budget: bool = False,
    ) -> None:
        """Make a dispatcher; `lengths`, `ttft` and `rng` are for the preset's policy.

        Args:
            preset: the user's choices.
            lengths: prompt lengths, tokens, counted or estimated in the same way as by `features_of`.
            ttft: the server's time to first token as the user sees it, s.
            rng: the only source of randomness.
            answers: returns the distribution of the lengths of answers with this limit, as it is known now; for the
                policy "assist".
            arranging: decides which endpoints start; None: the preset's policy decides.
            holds_budget: see `TwoSided`; the outcome of each plan with a `spend` is then to be told to `settle`.
        """
        self._preset = preset
        two_sided: TwoSided | None = None
        if arranging is None and preset.dispatch.policy == CASCADE:
            arranging = CascadePolicy()
        divides = arranging is None and preset.dispatch.policy == ASSIST
        section = preset.dispatch.model_copy(update={"policy": AUTO}) if divides else preset.dispatch
        if arranging is None:
            two_sided = TwoSided(section, lengths=lengths, ttft=ttft, rng=rng, holds_budget=holds_budget)
            arranging = AssistPolicy(preset.assist, two_sided, answers) if divides else two_sided
        self._arranging = arranging
        self._policy = preset.dispatch.policy
        self._two_sided = two_sided

    @property
    def preset(self) -> Preset:
        """The preset that the plans follow."""
        return self._preset

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Use these distributions from now on: prompt lengths, and the server's time to first token.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
        """
        self._arranging.refit(lengths, ttft)

    def settle(self, spend: Spend | None, places: Collection[Place]) -> None:
        """Tell the policy's budget what became of a plan, once its answer is over.

        Args:
            spend: the plan's.
            places: where an attempt was started.
        """
        if spend is not None and self._two_sided is not None:
            self._two_sided.settle(spend, used=spend.place in places)

    def plan(
        self,
        features: Features,
        candidates: Sequence[Candidate],
        served: Mapping[str, frozenset[str] | None],
        *,
        budget_class: BudgetClass = "standard",
        resting: Mapping[str, CoolDown] = _NONE,
        probing: Collection[str] = (),
        spared: Mapping[str, CoolDown] = _NONE,
        takeover: tuple[str, ...] | None = None,
        lacks: Mapping[str, Mapping[str, str]] = _UNEXPLAINED,
    ) -> Plan:
        """Plan one request.

        The eligible endpoints are ordered, cheapest first and standby endpoints last; for a cascade, in the user's
        order (`Candidate.rank`), and under "server_only" in the opposite one, devices last. The preset's policy decides
        which of them start when; all others are fallbacks, in that order, unless `takeover` gives another.
        `Plan.migrations` says where an answer may move; the session decides whether and when that pays.

        An endpoint that cools down does not take part while another one may serve the request: it is the last of the
        fallbacks, and no answer moves there. The same holds, before those, for an endpoint that is spared, and before
        these for one whose context would probably cut the answer off (`cramped`). An endpoint that is probed takes part
        as usual. Where only probes would start, the next endpoint in order joins them once the probe is slow. Where
        only models would start that have to be loaded first, a server writes meanwhile, unless the policy is
        "device_only" or "cascade".

        Args:
            features: the request's features.
            candidates: every configured endpoint; their names differ.
            served: see `eligible`.
            budget_class: "background" starts no endpoint that the policy spares and moves no answer there; these
                endpoints remain fallbacks for when the others fail. "urgent" starts at once all endpoints that the
                policy chooses between. Neither counts towards the policy's budget.
            resting: endpoints that cool down, by name, with the reason.
            probing: names of endpoints whose cool-down is over and which this request may probe.
            spared: endpoints that work and are to be left alone while another one may serve the request, by name, with
                the reason. They come after those, and before the endpoints that cool down.
            takeover: the order of the fallbacks, in place of the preset's; see `DispatchSection`.
            lacks: see `eligible`.

        Raises:
            ConfigurationError: `takeover`, or the pin of the request, names an endpoint that does not exist.
            NoEndpointError, ContextLengthError: see `eligible`.
        """
        if self._preset.limits.local_only and features.reach != "device":
            features = replace(features, reach="device")
        able = eligible(features, candidates, served, lacks)
        if len(able) > 1:
            answer_tokens = TYPICAL_ANSWER_TOKENS if features.max_tokens is None else features.max_tokens
            able.sort(key=lambda c: _preference(c, features.prompt_tokens, answer_tokens))
            if isinstance(self._arranging, CascadePolicy):
                able.sort(key=lambda c: c.rank)  # stable: endpoints of one tier stay in order of cost
            elif self._policy == SERVER_ONLY:
                able.sort(key=lambda c: (c.place == "device", -c.rank))  # the best model's servers first
        short = {c.name: CoolDown(c.name, "short_context") for c in cramped(features, able)}
        able, deprioritised, why = _apart(able, resting, spared, short)
        arranged = self._arranging.arrange(features, able, budget_class)
        starts = arranged.starts
        order = self._preset.dispatch.takeover if takeover is None else takeover
        if order:
            known_names(order, [candidate.name for candidate in candidates], "takeover")
            able = _in_order(able, order)
            deprioritised = _in_order(deprioritised, order)
        heirs = heirs_of(able, arranged, {*resting, *probing})
        if probing and budget_class != "background" and all(start.endpoint in probing for start in starts):
            starts = _backed(starts, able, probing, self._arranging.limited(able), features.prompt_tokens)
        if self._policy not in _WAITS and budget_class != "background":
            starts = with_writer(starts, able, arranged.spared, features.prompt_tokens)
        starting = [start.endpoint for start in starts]
        if arranged.last:
            able.sort(key=lambda c: c.name in arranged.last)
        migration = self._preset.migration
        migrations: dict[str, Migration] = {}
        if migration.enabled and features.may_migrate:
            firm = [
                c
                for c in able
                if c.name not in resting
                and c.name not in spared
                and c.name not in short
                and c.name not in probing
                and c.name not in arranged.spared
                # A standby endpoint serves where it is needed, not to save money.
                and (not c.standby or c.name in arranged.chosen)
            ]
            migrations = _migrations(able, firm)
        return Plan(
            starts=starts,
            fallbacks=tuple([c.name for c in (*able, *deprioritised) if c.name not in starting]),
            migrations=migrations,
            order=migration.order,
            deprioritised=tuple([why[c.name] for c in deprioritised]),
            cascade=Cascade(arranged.tiers) if len(arranged.tiers) > 1 else None,
            assist=arranged.assist,
            undivided=arranged.undivided,
            heirs=heirs,
            spend=arranged.spend,
            left_out=()
            if len(able) + len(deprioritised) == len(candidates)
            else left_out(features, candidates, served, lacks),
        )


def _apart(
    able: list[Candidate], *classes: Mapping[str, CoolDown]
) -> tuple[list[Candidate], list[Candidate], dict[str, CoolDown]]:
    """Return the endpoints that take part, those that are deprioritised, both in order of preference, and why.

    Where every able endpoint cools down, the request is still tried, on all of them. Where those that are left are all
    spared, none is: a request that must stay on this machine is answered here, whatever the battery says.

    Args:
        able: in order of preference.
        classes: why an endpoint is deprioritised, by its name; the last resort first.
    """
    deprioritised: list[Candidate] = []
    why: dict[str, CoolDown] = {}
    for reasons in classes:
        away = [c for c in able if c.name in reasons] if reasons else []
        if away and len(away) < len(able):
            able = [c for c in able if c.name not in reasons]
            deprioritised = [*away, *deprioritised]
            why |= {c.name: reasons[c.name] for c in away}
    return able, deprioritised, why


def _in_order(candidates: list[Candidate], names: tuple[str, ...]) -> list[Candidate]:
    """Return the candidates that `names` has, in its order, and behind them the others as they are."""
    places = {name: place for place, name in enumerate(names)}
    return sorted(candidates, key=lambda c: places.get(c.name, len(places)))


def _preference(candidate: Candidate, prompt_tokens: int, answer_tokens: int) -> tuple[bool, float, float]:
    """Return the sort key of a candidate: standby endpoints last, then by cost of this request, then by TTFT."""
    cost = prompt_tokens * candidate.rates.cost_in + answer_tokens * candidate.rates.cost_out
    return candidate.standby, cost, candidate.time_to_first_token_s(prompt_tokens)


def _backed(
    starts: tuple[Start, ...],
    able: list[Candidate],
    probing: Collection[str],
    limited: Collection[str],
    prompt_tokens: int,
) -> tuple[Start, ...]:
    """Add a start of the next endpoint in order to `starts`, which are all probes.

    An endpoint of `limited`, whose tokens a budget counts, is added only if the first probe is of `limited`, too.
    """
    probed = next(c for c in able if c.name == starts[0].endpoint)
    for c in able:
        if c.name not in probing and (c.name not in limited or probed.name in limited):
            # The probe hardly ever takes longer than this, so a longer wait would not help.
            late_s = probed.time_to_first_token_s(prompt_tokens)
            if not probed.may_be_doubted:
                late_s = max(late_s, PATIENT_S)
            return *starts, Start(c.name, late_s, Why("beside_probe", late_s, what=probed.name), doubts=True)
    return starts


def _migrations(able: list[Candidate], targets: list[Candidate]) -> dict[str, Migration]:
    """Let every writer of `able` migrate to the cheapest of `targets` that continues answers, if that is cheaper."""
    target: Candidate | None = None
    for c in targets:
        # Only a strictly cheaper one replaces it: of equals, the first in order stays.
        if c.continues and (target is None or _out_then_in(c) < _out_then_in(target)):
            target = c
    if target is None:
        return {}
    move = Migration(target.name, keep_prefill=target.parks)
    return {c.name: move for c in able if c.rates.cost_out > target.rates.cost_out}


def _out_then_in(candidate: Candidate) -> tuple[float, float]:
    return candidate.rates.cost_out, candidate.rates.cost_in
