"""From a request's features to its plan: who may serve it, who starts when, who may take over."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from disco.cost.unified import regime
from disco.dispatch.base import FittedPolicy, Policy, alone
from disco.dispatch.eligible import eligible
from disco.dispatch.features import Features
from disco.dispatch.fixed import Race
from disco.dispatch.presets import Preset
from disco.dispatch.registry import AUTO, build_policy
from disco.plan import Candidate, Move, Plan, Rest, Start
from disco.profiles.distributions import Empirical
from disco.profiles.lengths import Lengths
from disco.rates import Rates

__all__ = ["BudgetClass", "Dispatcher"]

BudgetClass = Literal["background", "standard", "urgent"]
"""What a request may spend: nothing of the budget, what the policy says, or whatever is fastest."""

# Length an answer is taken to have where the caller set no limit; only ranks endpoints by cost.
_TYPICAL_ANSWER_TOKENS = 256
_RACE = Race()
_NOBODY: Mapping[str, Rest] = {}
# Whose share of the tokens the fitted policies' budget limits; the others have none, or it depends on prices.
_LIMITED: Mapping[str, Literal["device", "server"]] = {
    "length_threshold": "server",
    "optimal_wait": "device",
    "wait_time": "device",
}


class Dispatcher:
    """Plans requests under one preset.

    The same preset, distributions, seed and sequence of requests give the same plans. Only ties in the
    budget's rounding (and the policy "random") draw on `rng`.
    """

    # Mutable: _lengths, _ttft (through refit), _policies (filled on first use), _prices, _server_constrained.
    __slots__ = ("_lengths", "_policies", "_preset", "_prices", "_rng", "_server_constrained", "_ttft")

    def __init__(
        self, preset: Preset, *, lengths: Lengths, ttft: Empirical, rng: np.random.Generator
    ) -> None:
        """Make a dispatcher; policies are fitted when they are first needed.

        Args:
            preset: what the user wants.
            lengths: prompt lengths, tokens, counted or estimated as `features_of` does.
            ttft: the server's time to first token as the user feels it, s.
            rng: the only source of randomness.
        """
        self._preset = preset
        self._lengths = lengths
        self._ttft = ttft
        self._rng = rng
        self._policies: dict[tuple[str, bool], Policy] = {}
        # The regime of the latest pair, which is nearly always the next one's too.
        self._prices: tuple[Rates, Rates] | None = None
        self._server_constrained = True

    @property
    def preset(self) -> Preset:
        """What it plans under."""
        return self._preset

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Follow the distributions; costs one planning per policy in use, tens of microseconds.

        Only "optimal_wait" takes longer, a millisecond or a few, and does it when the next request comes.
        """
        self._lengths = lengths
        self._ttft = ttft
        for policy in self._policies.values():
            if isinstance(policy, FittedPolicy):
                policy.refit(lengths, ttft)

    def policy_for(self, device: Candidate, server: Candidate) -> Policy:
        """The policy that decides between these two: the preset's, or for "auto" the regime's."""
        name = self._preset.dispatch.policy
        server_constrained = True
        if name in (AUTO, "random"):
            server_constrained = self._spares_server(device, server)
            if name == AUTO:
                name = "length_threshold" if server_constrained else "wait_time"
        key = name, server_constrained
        policy = self._policies.get(key)
        if policy is None:
            section = self._preset.dispatch
            policy = self._policies[key] = build_policy(
                name,
                lengths=self._lengths,
                ttft=self._ttft,
                device=device,
                budget=section.budget,
                tail=section.tail,
                rng=self._rng,
                server_constrained=server_constrained,
            )
        return policy

    def _spares_server(self, device: Candidate, server: Candidate) -> bool:
        """Whether the server is the constrained side at these prices."""
        prices = device.rates, server.rates
        if prices != self._prices:
            self._prices = prices
            self._server_constrained = regime(*prices) == "server-constrained"
        return self._server_constrained

    def constrained(self, device: Candidate, server: Candidate) -> Candidate:
        """The side that a background request leaves alone: the one the preset limits, else the dear one."""
        match self._preset.dispatch.policy:
            case "device_only":
                return server
            case "server_only":
                return device
            case name:
                limited = _LIMITED.get(name)
        if limited is None:
            limited = "server" if self._spares_server(device, server) else "device"
        return server if limited == "server" else device

    def plan(
        self,
        features: Features,
        candidates: Sequence[Candidate],
        served: Mapping[str, frozenset[str] | None],
        *,
        budget_class: BudgetClass = "standard",
        resting: Mapping[str, Rest] = _NOBODY,
        probing: Collection[str] = (),
    ) -> Plan:
        """Plan one request.

        The cheapest eligible device and the cheapest eligible server take part; the policy says when each
        starts. With one side only, that one starts at once. All other eligible endpoints are fallbacks,
        cheapest first, those on standby behind them. `moves` says where an answer may go; whether and when it pays
        is the session's.

        An endpoint that rests takes no part as long as somebody else may serve the request: it is the last of the
        fallbacks and nobody's move goes there. One that is being probed takes part as always, but is not relied on:
        where it would start alone, the next in rank joins it once it is slow.

        Args:
            features: of the request.
            candidates: every configured endpoint, with names that differ.
            served: see `eligible`.
            budget_class: "background" starts only the side that is not constrained and moves nothing to the
                other, which still stands by should that one fail; "urgent" starts both at once. Neither is
                counted in the policy's budget.
            resting: by name, endpoints that rest, with the reason.
            probing: names of endpoints that have rested and may be tried again by this request.

        Raises:
            NoEndpointError, ContextLengthError: see `eligible`.
        """
        if self._preset.limits.local_only and not features.local_only:
            features = replace(features, local_only=True)
        able = eligible(features, candidates, served)
        if len(able) > 2 or (len(able) == 2 and able[0].place == able[1].place):
            answer_tokens = _TYPICAL_ANSWER_TOKENS if features.max_tokens is None else features.max_tokens
            able.sort(key=lambda c: _rank(c, features.prompt_tokens, answer_tokens))
        # Whatever rests, the request is tried: nobody is refused because of that.
        rested = [c for c in able if c.name in resting] if resting else []
        if rested and len(rested) < len(able):
            able = [c for c in able if c.name not in resting]
        else:
            rested = []
        device = server = None
        for candidate in able:
            if candidate.place == "device":
                device = device or candidate
            else:
                server = server or candidate
        spared: Candidate | None = None
        if device is None or server is None:
            starts = alone(device, server)
        elif budget_class == "standard":
            starts = self.policy_for(device, server).starts(features, device, server)
        elif budget_class == "urgent":
            starts = _RACE.starts(features, device, server)
        else:
            spared = self.constrained(device, server)
            starts = alone(None, server) if spared is device else alone(device, None)
        if probing and budget_class != "background":
            limited = None
            if (
                device is not None
                and server is not None
                and self._preset.dispatch.policy in (AUTO, *_LIMITED)
            ):
                limited = self.constrained(device, server).place
            starts = _backed(starts, able, probing, limited, features.prompt_tokens)
        starting = [start.endpoint for start in starts]
        migration = self._preset.migration
        moves: dict[str, Move] = {}
        if migration.enabled and features.may_migrate:
            firm = [
                c for c in able if c.name not in resting and c.name not in probing and _takes_part(c, server)
            ]
            moves = _moves(able, spared, firm)
        return Plan(
            starts=starts,
            fallbacks=tuple([c.name for c in (*able, *rested) if c.name not in starting]),
            moves=moves,
            order=migration.order,
            rested=tuple([resting[c.name] for c in rested]),
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
    limited: str | None,
    prompt_tokens: int,
) -> tuple[Start, ...]:
    """`starts`, with the next in rank to join a probe that would start alone.

    Not one of the place `limited`, whose tokens a budget counts.
    """
    if any(start.endpoint not in probing for start in starts):
        return starts
    probed = next(c for c in able if c.name == starts[0].endpoint)
    for c in able:
        if c.name not in probing and (c.place != limited or c.place == probed.place):
            # Slower than this it hardly ever was: whoever goes on waiting waits for nothing.
            return *starts, Start(c.name, probed.time_to_first_token_s(prompt_tokens))
    return starts


def _takes_part(candidate: Candidate, server: Candidate | None) -> bool:
    """Whether answers may be moved there for money: one on standby is there for need only."""
    return not candidate.standby or candidate is server


def _moves(able: list[Candidate], spared: Candidate | None, targets: list[Candidate]) -> dict[str, Move]:
    """Every dearer writer may hand over to the one of `targets` that continues answers most cheaply.

    Not to the place of `spared`, if there is one.
    """
    target: Candidate | None = None
    for c in targets:
        if spared is not None and c.place == spared.place:
            continue
        # Strictly cheaper only: of equals, the first in rank stays.
        if c.continues and (target is None or _out_then_in(c) < _out_then_in(target)):
            target = c
    if target is None:
        return {}
    move = Move(target.name, keep_prefill=target.parks)
    return {c.name: move for c in able if c.rates.cost_out > target.rates.cost_out}


def _out_then_in(candidate: Candidate) -> tuple[float, float]:
    return candidate.rates.cost_out, candidate.rates.cost_in
