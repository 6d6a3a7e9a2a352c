"""From a request's features to its plan: which endpoints may serve it, which start when, which may take over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from disco.dispatch.arranging import Arranging, BudgetClass
from disco.dispatch.eligibility import eligible
from disco.dispatch.presets import Preset
from disco.dispatch.request_features import Features
from disco.dispatch.two_sided import TwoSided
from disco.plan import Candidate, CoolDown, Migration, Plan, Start
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["BudgetClass", "Dispatcher"]

# Length an answer is taken to have where the caller set no limit; only ranks endpoints by cost.
_TYPICAL_ANSWER_TOKENS = 256
_NONE: Mapping[str, CoolDown] = {}


class Dispatcher:
    """Plans requests under one preset, over any number of endpoints.

    The same preset, distributions, seed and sequence of requests give the same plans. Mutable: what decides the
    starts, through `refit` and from request to request.
    """

    __slots__ = ("_arranging", "_preset")

    def __init__(
        self,
        preset: Preset,
        *,
        lengths: Lengths,
        ttft: Empirical,
        rng: np.random.Generator,
        arranging: Arranging | None = None,
    ) -> None:
        """Make a dispatcher; the first three arguments after the preset are for what the preset's policy stands for.

        Args:
            preset: what the user wants.
            lengths: prompt lengths, tokens, counted or estimated as `features_of` does.
            ttft: the server's time to first token as the user feels it, s.
            rng: the only source of randomness.
            arranging: decides which endpoints start; None: the preset's policy does.
        """
        self._preset = preset
        self._arranging = arranging or TwoSided(preset.dispatch, lengths=lengths, ttft=ttft, rng=rng)

    @property
    def preset(self) -> Preset:
        """What it plans under."""
        return self._preset

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Follow the distributions as they change."""
        self._arranging.refit(lengths, ttft)

    def plan(
        self,
        features: Features,
        candidates: Sequence[Candidate],
        served: Mapping[str, frozenset[str] | None],
        *,
        budget_class: BudgetClass = "standard",
        resting: Mapping[str, CoolDown] = _NONE,
        probing: Collection[str] = (),
    ) -> Plan:
        """Plan one request.

        Of the eligible endpoints, cheapest first and those on standby last, the preset's policy says which start
        when; all others are fallbacks, in that order. `moves` says where an answer may go; whether and when it pays
        is the session's.

        An endpoint that rests takes no part as long as another one may serve the request: it is the last of the
        fallbacks, and no answer moves there. One that is being probed takes part as always, but is not relied on:
        where it would start alone, the next in rank joins it once it is slow.

        Args:
            features: of the request.
            candidates: every configured endpoint, with names that differ.
            served: see `eligible`.
            budget_class: "background" starts no endpoint that the policy spares and moves nothing there, though
                these still stand by should the others fail; "urgent" starts at once all that the policy chooses
                among. Neither is counted in the policy's budget.
            resting: by name, endpoints that rest, with the reason.
            probing: names of endpoints that have deprioritised and may be tried again by this request.

        Raises:
            NoEndpointError, ContextLengthError: see `eligible`.
        """
        if self._preset.limits.local_only and features.reach != "device":
            features = replace(features, reach="device")
        able = eligible(features, candidates, served)
        if len(able) > 1:
            answer_tokens = _TYPICAL_ANSWER_TOKENS if features.max_tokens is None else features.max_tokens
            able.sort(key=lambda c: _rank(c, features.prompt_tokens, answer_tokens))
        # Whatever rests, the request is tried: none is refused because of that.
        deprioritised = [c for c in able if c.name in resting] if resting else []
        if deprioritised and len(deprioritised) < len(able):
            able = [c for c in able if c.name not in resting]
        else:
            deprioritised = []
        arranged = self._arranging.arrange(features, able, budget_class)
        starts = arranged.starts
        if probing and budget_class != "background" and all(start.endpoint in probing for start in starts):
            starts = _backed(starts, able, probing, self._arranging.limited(able), features.prompt_tokens)
        starting = [start.endpoint for start in starts]
        migration = self._preset.migration
        migrations: dict[str, Migration] = {}
        if migration.enabled and features.may_migrate:
            firm = [
                c
                for c in able
                if c.name not in resting
                and c.name not in probing
                and c.name not in arranged.spared
                # One on standby is there for need only, not to save money.
                and (not c.standby or c.name in arranged.chosen)
            ]
            migrations = _migrations(able, firm)
        return Plan(
            starts=starts,
            fallbacks=tuple([c.name for c in (*able, *deprioritised) if c.name not in starting]),
            migrations=migrations,
            order=migration.order,
            deprioritised=tuple([resting[c.name] for c in deprioritised]),
        )


def _rank(candidate: Candidate, prompt_tokens: int, answer_tokens: int) -> tuple[bool, float, float]:
    """Cheapest for this request first; of equals the one that writes sooner, then the one given first.

    Those on standby come after all others.
    """
    cost = prompt_tokens * candidate.rates.cost_in + answer_tokens * candidate.rates.cost_out
    return candidate.standby, cost, candidate.time_to_first_token_s(prompt_tokens)


def _backed(
    starts: tuple[Start, ...],
    able: list[Candidate],
    probing: Collection[str],
    limited: Collection[str],
    prompt_tokens: int,
) -> tuple[Start, ...]:
    """`starts`, all of them probes, with the next in rank to join the first.

    Not one of those `limited`, whose tokens a budget counts, unless the probe is one of them.
    """
    probed = next(c for c in able if c.name == starts[0].endpoint)
    for c in able:
        if c.name not in probing and (c.name not in limited or probed.name in limited):
            # Slower than this it hardly ever was: waiting any longer would be in vain.
            return *starts, Start(c.name, probed.time_to_first_token_s(prompt_tokens))
    return starts


def _migrations(able: list[Candidate], targets: list[Candidate]) -> dict[str, Migration]:
    """Every more expensive writer may hand over to the one of `targets` that continues answers most cheaply."""
    target: Candidate | None = None
    for c in targets:
        # Strictly cheaper only: of equals, the first in rank stays.
        if c.continues and (target is None or _out_then_in(c) < _out_then_in(target)):
            target = c
    if target is None:
        return {}
    move = Migration(target.name, keep_prefill=target.parks)
    return {c.name: move for c in able if c.rates.cost_out > target.rates.cost_out}


def _out_then_in(candidate: Candidate) -> tuple[float, float]:
    return candidate.rates.cost_out, candidate.rates.cost_in
