"""What dispatch decides for one request: plain data for every package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from disco.candidate import Candidate, Place

__all__ = [
    "FOLLOW_TOKENS",
    "OVER_CAP_TOKENS",
    "Assist",
    "BudgetCut",
    "Cascade",
    "CoolDown",
    "Display",
    "LeftOut",
    "Migration",
    "Order",
    "Plan",
    "Power",
    "ReleaseUnit",
    "Source",
    "Spend",
    "Start",
    "Tempo",
    "Why",
]

FOLLOW_TOKENS = 8
"""A parked attempt that reads along is given so many new tokens at once. It reads them as one batch, which takes little
longer than reading a single one."""

OVER_CAP_TOKENS = 4
"""An endpoint that has written so many tokens more than its cap is known to ignore it. A chunk may hold several tokens,
and some servers write one too many."""

_SPARED = frozenset({"low", "throttled", "loaded", "metered", "short_context"})
_OF_AN_HEIR = frozenset(
    {"logp", "progress"}
)  # how far its model agrees with the writer, and how far it has read


Source = Literal["request", "preset", "prior", "profile", "told", "own"]
"""Where a number of a plan is from: the request, the preset (or an option in its place), what is assumed before
anything is known, a profile of this endpoint, what a server published of itself, or what this client observed."""


class Why(NamedTuple):
    """What a choice of a plan was made by, as numbers; `disco.reasons` has the words.

    Attributes:
        code: which rule chose; `disco.reasons` lists the codes.
        value: the number that decided, in the unit of the code (s, tokens, or a share); None: there was none.
        limit: what it was compared with, in the same unit.
        source: where `limit` is from, or `value` where there is no limit.
        seen: how many observations that source has; 0 where it is none of observations.
        what: a name or a word that the sentence needs: another endpoint, what a request needs, a policy.
    """

    code: str
    value: float | None = None
    limit: float | None = None
    source: Source = "preset"
    seen: int = 0
    what: str = ""


class LeftOut(NamedTuple):
    """An endpoint that takes no part in a request at all, and why."""

    endpoint: str
    why: Why


_UNSAID = Why("")


@dataclass(frozen=True, slots=True)
class Start:
    """Start `endpoint` `after_s` seconds after the request came, unless another endpoint has written by then.

    `doubts`: it is made because those that run then are late, as after a silence. `why`: what chose this start; no part
    of what a start is.
    """

    endpoint: str
    after_s: float = 0.0
    why: Why = field(default=_UNSAID, compare=False, repr=False)
    doubts: bool = False


@dataclass(frozen=True, slots=True)
class Migration:
    """Move the answer to the endpoint `target` in mid-sentence once that pays.

    `session/switching/migration_rule.py` has the rule.

    `keep_prefill`: when the target has lost the race, let it finish and keep its prefill instead of cancelling it,
    because this migration is likely.
    """

    target: str
    keep_prefill: bool = True


Order = Literal["auto", "make_before_break", "break_before_make"]
"""When the source of a migration stops; `session/switching/migration_rule.py` has the rule for "auto"."""

Display = Literal["whole", "guard", "revise"]
"""What the reader of a judged answer sees before the verdict: nothing, whole sentences behind the judge, or everything,
which a retraction then takes back where the answer rises."""


@dataclass(frozen=True, slots=True)
class Cascade:
    """Through which tiers an answer may rise when its writer was unsure of it.

    Attributes:
        tiers: from the lowest to the highest; each is the names of its endpoints, in order of preference. An answer by
            an endpoint may rise to those of the tiers behind its own. Empty: no answer is judged, and the request's
            classes are chosen all the same.
        display: what the reader sees before the verdict.
    """

    tiers: tuple[tuple[str, ...], ...]
    display: Display = "guard"

    def above(self, endpoint: str) -> tuple[str, ...]:
        """Return the endpoints of the tiers above an endpoint's, the next tier first; none where it is in no tier."""
        for number, tier in enumerate(self.tiers):
            if endpoint in tier:
                return tuple(name for higher in self.tiers[number + 1 :] for name in higher)
        return ()


ReleaseUnit = Literal["word", "sentence"]
"""What text leaves by: whole words, for a reader, or whole sentences, for a voice."""

Tempo = Literal["follow", "once"]
"""How an assist sets the rate at which the writer's text is shown: it follows the heir's prefill, or it is computed
once, when the first token comes (Eq. 4 of P/D-Device)."""


@dataclass(frozen=True, slots=True)
class Assist:
    """One endpoint writes a short beginning while another one, the heir, reads the prompt and then goes on.

    Attributes:
        writer: the endpoint that writes the beginning.
        heir: the endpoint that goes on. It starts with the writer, and writes from the beginning if it is ready first.
        tokens: the most tokens that the writer may write, at least 1; it is sent this limit.
        tempo: see `Tempo`.
        heir_tokens: length of the prompt that the heir reads, where it is refined; None: it reads the whole prompt.
    """

    writer: str
    heir: str
    tokens: int
    tempo: Tempo = "follow"
    heir_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CoolDown:
    """Why an endpoint is deprioritised: it serves the request only where no other endpoint may.

    Attributes:
        endpoint: the endpoint's name.
        reason: "failures" (its breaker is open), "rate_limit" (its server sent a rate limit), "probed" (the cool-down
            is over, and another request probes the endpoint), "offline" (this machine has no route to the endpoint);
            of an endpoint that is only spared: "low" (battery), "throttled" (clock), "loaded" (by other programs),
            "metered" (the network), or "short_context" (prompt and answer may not fit).
        failure: class of the last failure that counted; None when offline.
        failures: number of failures that led to this cool-down.
        for_s: how much longer the cool-down takes, seconds; None where that is not known.
    """

    endpoint: str
    reason: Literal[
        "failures",
        "rate_limit",
        "probed",
        "offline",
        "low",
        "throttled",
        "loaded",
        "metered",
        "short_context",
    ]
    failure: str | None = None
    failures: int = 0
    for_s: float | None = None

    @property
    def is_spared(self) -> bool:
        """Whether the endpoint works, and is left alone: for this machine's battery, load, traffic, or its context."""
        return self.reason in _SPARED


@dataclass(frozen=True, slots=True)
class Power:
    """In which state of this machine a request was planned, and what followed from it (`dispatch/power/power_rule.py`).

    Attributes:
        conditions: those that held, sorted: "battery", "loaded", "low", "metered", "offline" (no route to at least one
            endpoint), "throttled".
        energy_factor: by how much this machine's energy was dearer than the preset's exchange rate.
        spared: the condition for which endpoints were deprioritised: those elsewhere if it is "metered", else those on
            this machine; None: none were.
        traffic_usd_per_mb: what plans counted a megabyte (10⁶ bytes) to or from a server as, USD.
        on_battery, battery_share, clock_share, load_share, metered: the readings (`disco.PowerReadings`), rounded to
            two decimals; None: not known.
    """

    conditions: tuple[str, ...] = ()
    energy_factor: float = 1.0
    spared: str | None = None
    traffic_usd_per_mb: float = 0.0
    on_battery: bool | None = None
    battery_share: float | None = None
    clock_share: float | None = None
    load_share: float | None = None
    metered: bool | None = None

    @property
    def spares_device(self) -> bool:
        """Whether the models on this machine are left alone."""
        return self.spared not in (None, "metered")


@dataclass(frozen=True, slots=True)
class BudgetCut:
    """What an absolute budget removed from a plan (`dispatch/within_budget.py`).

    Attributes:
        endpoint: name of the endpoint that the budget limits.
        what: "hedge" (a start in addition to another one), "start" (of an answer), "move" (a migration there).
        why: "low" (what is left is kept for more important uses), "spent" (too little is left), "unknown" (the
            endpoint's time to first token is not known yet).
    """

    endpoint: str
    what: Literal["hedge", "start", "move"]
    why: Literal["low", "spent", "unknown"]


@dataclass(frozen=True, slots=True)
class Spend:
    """A request in the budget of a policy, as `dispatch.policies.budget_governor` counts it.

    Attributes:
        place: the side that the budget limits.
        ticket: the number of the request there.
    """

    place: Place
    ticket: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which endpoints start when, which may take over, and where the answer may move.

    Attributes:
        starts: at least one; the earliest need not come first.
        fallbacks: endpoints that may replace a failed one, in order of preference; never an endpoint that the request
            may not use.
        heirs: endpoints that may start because another one is silent (`session.switching.silence_rule`), in order of
            preference. Never an endpoint that the preset spares.
        migrations: by name of the writing endpoint, the migration that it allows; an endpoint that is missing keeps
            the answer.
        order: "auto" pauses a source that can pause at the cut, lets it go on if the target is late, and stops another
            source at the cut only where the target's time is known well; "make_before_break" keeps the source writing
            until the target's first token arrives; "break_before_make" stops the source at the cut (cheaper, but the
            reader may notice a pause).
        deprioritised: endpoints that are last among the fallbacks only because they cool down or are spared.
        budget_cuts: what a budget removed from the plan.
        wants: what attempts are asked for besides their text: "logp" (log probabilities for disco's own use), or
            "label_scores" (of the request's classes). An heir is also asked for "progress" (of its prefill).
        cascade: the tiers that the answer may rise through; None: no answer is judged.
        assist: how the answer is divided from the beginning between a writer and its heir; None: it is not.
        undivided: why the policy "assist" did not divide it (`dispatch.assist.Undivided`); None under another policy.
        power: the state of the machine that it was made in; None: nothing was asked about it.
        spend: what is to be settled when the answer is over; None: nothing.
        left_out: the endpoints that may not serve the request.
    """

    starts: tuple[Start, ...]
    fallbacks: tuple[str, ...] = ()
    migrations: Mapping[str, Migration] = field(default_factory=dict)
    order: Order = "auto"
    deprioritised: tuple[CoolDown, ...] = ()
    budget_cuts: tuple[BudgetCut, ...] = ()
    wants: frozenset[str] = frozenset()
    cascade: Cascade | None = None
    assist: Assist | None = None
    undivided: str | None = None
    power: Power | None = None
    heirs: tuple[str, ...] = ()
    spend: Spend | None = None
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)

    @property
    def names(self) -> frozenset[str]:
        """The names of all endpoints that may take part."""
        moves = (migration.target for migration in self.migrations.values())
        return frozenset((*(start.endpoint for start in self.starts), *self.fallbacks, *self.heirs, *moves))

    def loading(self, candidates: Mapping[str, Candidate]) -> list[str]:
        """Return the endpoints named here whose models are to be loaded from the request on.

        Not of those that cool down, perhaps because their model cannot be loaded, or are spared, unless they start.

        Args:
            candidates: the endpoints of the request, by name.
        """
        last = {rest.endpoint for rest in self.deprioritised}
        named = [start.endpoint for start in self.starts]
        named += [name for name in self.fallbacks if name not in last]
        named += [migration.target for migration in self.migrations.values()]
        return [
            name for name in dict.fromkeys(named) if candidates[name].loads and candidates[name].load_s > 0
        ]

    def wants_of(self, candidate: Candidate) -> frozenset[str]:
        """Return what an attempt on that endpoint is asked for.

        The highest tier of a cascade is not judged. It only chooses its class by label scores, where it is known to
        give them: a server that is itself a cascade does not judge requests for log probabilities.

        Args:
            candidate: the endpoint.
        """
        if self.assist is not None and candidate.name == self.assist.heir:
            return self.wants | _OF_AN_HEIR
        if self.cascade is None or self.cascade.above(candidate.name):
            return self.wants
        return self.wants & {"label_scores"} if candidate.label_scores else frozenset()
