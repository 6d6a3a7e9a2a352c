"""Applies the policies of one device and one server to any number of endpoints.

Of the endpoints that may serve a request, the first device and the first server in order of preference take part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from disco.candidate import Candidate, Place
from disco.dispatch.arranging import Arrangement, BudgetClass
from disco.dispatch.policies.budget_governor import BudgetGovernor, Room, level_at
from disco.dispatch.policies.policy import FittedPolicy, Policy, expected
from disco.dispatch.policies.policy_registry import AUTO, build_policy
from disco.dispatch.presets import DispatchSection
from disco.dispatch.regime import regime
from disco.dispatch.request_features import LEAST_PROMPT_TOKENS, Features
from disco.plan import Spend, Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical
from disco.rates import Rates

__all__ = ["TwoSided", "sides"]

# The side that a fitted policy's budget limits. Other policies have no budget, or prices decide which side it limits.
_LIMITED: Mapping[str, Place] = {
    "length_threshold": "server",
    "optimal_wait": "device",
    "wait_time": "device",
}
_BUDGETED = frozenset((AUTO, *_LIMITED))
# With at least so much room left, a budget has more than its policy uses on average (see `budget_governor.level_at`).
_AMPLE_ROOM = 0.65


class TwoSided:
    """Lets the policy of a preset decide between the cheapest device and the cheapest server.

    `rng` is used only to break ties in the budget's rounding, and by the policy "random".
    """

    # Mutable: _lengths, _ttft (through refit), _policies and _governors (filled on first use), _reserved,
    # _prices, _server_constrained.
    __slots__ = (
        "_given",
        "_governors",
        "_holds_budget",
        "_lengths",
        "_policies",
        "_prices",
        "_reserved",
        "_rng",
        "_section",
        "_server_constrained",
        "_ttft",
    )

    def __init__(
        self,
        section: DispatchSection,
        *,
        lengths: Lengths,
        ttft: Empirical,
        rng: np.random.Generator,
        policy: Policy | None = None,
        holds_budget: bool = False,
    ) -> None:
        """Store the section and the distributions; each policy is fitted when it is first needed.

        Args:
            section: the policy, with its numbers.
            lengths: prompt lengths, tokens, counted or estimated in the same way as by `features_of`.
            ttft: the server's time to first token as the user sees it, s.
            rng: the only source of randomness.
            policy: decides in place of the section's policy, for every pair, and is never refitted.
            holds_budget: keep the budget in every window of requests (`budget_governor`), not only on average. Then the
                outcome of each request is to be told to `settle`. Replays of the paper's policies go without it.
        """
        self._section = section
        self._lengths = lengths
        self._ttft = ttft
        self._rng = rng
        self._given = policy
        self._holds_budget = holds_budget
        self._governors: dict[Place, BudgetGovernor] = {}
        # By side, the ticket of the open request that counts as used only because a silence may start that side.
        self._reserved: dict[Place, int] = {}
        self._policies: dict[tuple[str, bool, float], Policy] = {}
        # The regime of the latest pair, kept because the next pair nearly always has the same prices.
        self._prices: tuple[Rates, Rates] | None = None
        self._server_constrained = True

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Use these distributions from now on; every policy in use is planned again, in tens of microseconds.

        Only "optimal_wait" takes longer, one or a few milliseconds, and is planned when the next request comes.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
        """
        self._lengths = lengths
        self._ttft = ttft
        for policy in self._policies.values():
            if isinstance(policy, FittedPolicy):
                policy.refit(lengths, ttft)

    def arrange(
        self, features: Features, able: Sequence[Candidate], budget_class: BudgetClass
    ) -> Arrangement:
        """Let the policy decide when the device and the server start; where one is missing, the other starts at once.

        "background" starts only the side that is not constrained and spares the other side; "urgent" starts both.

        Args:
            features: what the request needs.
            able: the endpoints that may serve it.
            budget_class: "background", "standard" or "urgent".
        """
        device, server = sides(able)
        if device is None or server is None:
            only = able[0]
            code = "alone" if len(able) == 1 else "server_first"  # others stand by, of the same place
            starts = (Start(only.name, 0.0, expected(code, only, features.prompt_tokens)),)
            return Arrangement(starts, (only.name,))
        chosen = device.name, server.name
        if budget_class == "standard":
            return self._within_budget(features, able, device, server)
        if budget_class == "urgent":
            tokens = features.prompt_tokens
            return Arrangement(
                tuple(Start(c.name, 0.0, expected("urgent", c, tokens)) for c in (device, server)), chosen
            )
        spared = self.constrained(device, server)
        free = server if spared is device else device
        starts = (Start(free.name, 0.0, expected("background", free, features.prompt_tokens)),)
        return Arrangement(starts, chosen, _names_at(spared.place, able))

    def settle(self, spend: Spend, *, used: bool) -> None:
        """Say whether the side that the budget limits worked on a request whose arrangement has this `spend`.

        Args:
            spend: what the arrangement said.
            used: whether that side worked on the request.
        """
        if (governor := self._governors.get(spend.place)) is not None:
            governor.settle(spend.ticket, used=used)
        if self._reserved.get(spend.place) == spend.ticket:
            del self._reserved[spend.place]

    def _within_budget(
        self, features: Features, able: Sequence[Candidate], device: Candidate, server: Candidate
    ) -> Arrangement:
        """Let the policy decide; leave out the start of the limited side where the budget does not admit it."""
        chosen = device.name, server.name
        if not self._holds_budget or self._section.policy not in _BUDGETED:
            return Arrangement(self.policy_for(device, server).starts(features, device, server), chosen)
        limited = self.constrained(device, server)
        governor = self._governors.get(limited.place)
        if governor is None:
            governor = self._governors[limited.place] = BudgetGovernor(
                self._section.budget, least_tokens=LEAST_PROMPT_TOKENS
            )
        tokens = max(features.prompt_tokens, LEAST_PROMPT_TOKENS)
        room = governor.room_for(tokens)
        # Where the server is limited, the longest prompts gain most from it: planning with less room would spare those.
        level = level_at(room.share) if limited is device else 1.0
        starts = self.policy_for(device, server, level).starts(features, device, server)
        uses = any(start.endpoint == limited.name for start in starts)
        if uses and not room.admits:
            uses = False
            free = server if limited is device else device
            why = Why("budget_used", room.share, self._section.budget)
            starts = (Start(free.name, 0.0, why),)
        joins = None if uses or limited is device else self._joins(tokens, device, server, room)
        if joins is not None:
            uses = True
            starts = (*starts, Start(server.name, 0.0, joins))
        # A silence may start the limited side, too: until the answer is over, the request counts as used for that. One
        # request at a time may do so: silences are rare, and many such requests would leave no room to the policy.
        reserved = self._reserved.get(limited.place)
        is_free = reserved is None or not governor.counts(reserved)
        reserves = is_free and room.admits and not uses
        ticket = governor.add(tokens, used=uses or reserves)
        if reserves:
            self._reserved[limited.place] = ticket
        used_up = frozenset[str]() if uses or reserves else _names_at(limited.place, able)
        return Arrangement(starts, chosen, spend=Spend(limited.place, ticket), used_up=used_up)

    def _joins(self, tokens: int, device: Candidate, server: Candidate, room: Room) -> Why | None:
        """Return why the server starts, too, where the policy left a prompt to the device; None: it does not.

        A device that has other answers to write first is like one that fails: the server takes over, which is counted
        and never refused, unless the preset says "wait". A device that only reads slowly is what the budget is for: the
        server joins it where the budget has more room than the policy uses.
        """
        server_s = (
            server.time_to_first_token_s(tokens) - server.overhead_s + server.first_token_quantile_s(0.5)
        )
        reads_s = device.usual_first_token_s(tokens)
        if device.queue_s > 0 and device.queue_s + reads_s > server_s:
            if self._section.when_busy == "server" or room.admits:
                return Why(
                    "busy",
                    device.queue_s + reads_s,
                    server_s,
                    server.times_from,
                    server.times_seen,
                    device.name,
                )
        elif reads_s > server_s and room.admits and room.share >= _AMPLE_ROOM:
            return Why("slow_reader", reads_s, server_s, device.times_from, device.times_seen, device.name)
        return None

    def limited(self, able: Sequence[Candidate]) -> frozenset[str]:
        """Return the names of the side that the policy's budget limits; empty without a budget or a second side.

        Args:
            able: the endpoints that may serve the request.
        """
        device, server = sides(able)
        if device is None or server is None or self._section.policy not in _BUDGETED:
            return frozenset()
        return _names_at(self.constrained(device, server).place, able)

    def policy_for(self, device: Candidate, server: Candidate, level: float = 1.0) -> Policy:
        """Return the policy that decides between these two: the preset's, or for "auto" the regime's.

        Args:
            device: the device.
            server: the server.
            level: multiplies the budget that the policy plans with, except what is kept for slow servers.
        """
        if self._given is not None:
            return self._given
        section = self._section
        name = section.policy
        server_constrained = True
        if name in (AUTO, "random"):
            server_constrained = self._spares_server(device, server)
            if name == AUTO:
                name = "length_threshold" if server_constrained else "wait_time"
        key = name, server_constrained, level
        policy = self._policies.get(key)
        if policy is None:
            budget = section.budget
            if level != 1.0:
                kept = min(section.tail, budget)
                budget = min(kept + level * (budget - kept), 1.0)
            policy = self._policies[key] = build_policy(
                name,
                lengths=self._lengths,
                ttft=self._ttft,
                device=device,
                budget=budget,
                tail=section.tail,
                rng=self._rng,
                server_constrained=server_constrained,
                options=section.options,
            )
        return policy

    def constrained(self, device: Candidate, server: Candidate) -> Candidate:
        """Return the side that a background request does not use: the one the preset limits, else the expensive one.

        Args:
            device: the device.
            server: the server.
        """
        match self._section.policy:
            case "device_only":
                return server
            case "server_only":
                return device
            case name:
                limited = _LIMITED.get(name)
        if limited is None:
            limited = "server" if self._spares_server(device, server) else "device"
        return server if limited == "server" else device

    def _spares_server(self, device: Candidate, server: Candidate) -> bool:
        """Whether the server is the constrained side at these prices."""
        prices = device.rates, server.rates
        if prices != self._prices:
            self._prices = prices
            self._server_constrained = regime(*prices) == "server-constrained"
        return self._server_constrained


def sides(able: Sequence[Candidate]) -> tuple[Candidate | None, Candidate | None]:
    """Return the first device and the first server; None where there is none."""
    device = server = None
    for candidate in able:
        if candidate.place == "device":
            device = device or candidate
        else:
            server = server or candidate
    return device, server


def _names_at(place: Place, able: Sequence[Candidate]) -> frozenset[str]:
    return frozenset(c.name for c in able if c.place == place)
