"""What dispatch decides for one request, and what it knows about each endpoint: plain data for every package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from disco._moved import former_names
from disco.rates import Rates

__all__ = [
    "FOLLOW_TOKENS",
    "LEAST_SLOW_S",
    "OVER_CAP_TOKENS",
    "READING_SPARE",
    "READ_BATCH_TOKENS",
    "TTFT_QUANTILES",
    "Assist",
    "BudgetCut",
    "Candidate",
    "Cascade",
    "CoolDown",
    "Display",
    "Migration",
    "Order",
    "Payer",
    "Place",
    "Plan",
    "Power",
    "PromptSize",
    "Reach",
    "Start",
    "Tempo",
    "place_of",
]

Reach = Literal["device", "own", "any"]
"""How far a prompt travels to an endpoint: not off this machine, to the user's own machines, or anywhere."""

Place = Literal["device", "server"]
"""This machine ("device"), or any other ("server")."""

FOLLOW_TOKENS = 8
"""A parked attempt that reads along is given so many new tokens at once. It reads them as one batch, which takes little
longer than reading a single one."""

READ_BATCH_TOKENS = 64
"""A model on this machine needs about as long for fewer tokens than this as for a whole batch of so many."""

READING_SPARE = 1.4
"""A model on this machine takes up to so many times its usual time to read a long prompt, where its own times are not
known: later tokens take longer, and the machine does other work."""

OVER_CAP_TOKENS = 4
"""An endpoint that has written so many tokens more than its cap is known to ignore it. A chunk may hold several tokens,
and some servers write one too many."""

LEAST_SLOW_S = 0.1
"""No first token is slow before this time, s: below, the times say more about this machine than about an endpoint."""

TTFT_QUANTILES = 32
"""How many `Candidate.ttft_quantiles` a client gives where it knows the distribution."""

_LOADED = 0.9  # of the expected load time, as long as the model is not known to be loaded
_FREE = Rates()
_SPARED = frozenset({"low", "throttled", "loaded", "metered"})
_OF_AN_HEIR = frozenset(
    {"logp", "progress"}
)  # how far its model agrees with the writer, and how far it has read


def place_of(reach: Reach) -> Place:
    """Return the place of an endpoint with that reach."""
    return "device" if reach == "device" else "server"


class PromptSize(NamedTuple):
    """The length of a prompt as an endpoint counts it, tokens, and how many of them it has in its cache."""

    tokens: int
    cached_tokens: int


class Payer(NamedTuple):
    """One party that an endpoint's work is charged to: the endpoint, or one of its parts where it is made of several.

    Attributes:
        name: the name that charges and limits use.
        place: "device" or "server".
        rates: what a token costs there.
        drafts: it only drafts for the others. An answer goes on without drafts, so a limit on its work ends the
            drafting, not the answer.
    """

    name: str
    place: Place
    rates: Rates
    drafts: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint as dispatch and session see it for one request: numbers only.

    Attributes:
        name: the endpoint's name.
        reach: how far the prompt travels to the endpoint.
        rates: unified cost per token (money, after the exchange rate).
        prefill_tps: prompt tokens per second; `inf` where prefill time does not depend on length.
        reading_spare: a long prompt takes up to so many times the time that `prefill_tps` and `overhead_s` give, at
            least 1.
        overhead_s: fixed part of the time to first token (`c` of the paper; for a server a slow TTFT), s.
        ttft_quantiles: evenly spaced quantiles of the time to first token beside prefill, s, not decreasing: of n
            quantiles, the first token takes no longer than number i (from 1) with probability i/n. Empty where only
            `overhead_s` is known.
        silence_s: a healthy answer is hardly ever silent for longer than this in its middle, s; None where too little
            is known.
        slow_start: a first token hardly ever takes longer than so many times `overhead_s` and prefill; None where too
            little is known.
        load_s: time until the model is loaded, before that, s; 0 when it is.
        loads: whether the model, where it is not loaded, is loaded from the request on, also while other endpoints
            write.
        queue_s: expected wait in a queue before that, s; 0 where there is no queue or its length is not known.
        decode_tps: generated tokens per second.
        continues: whether the endpoint is known to continue a half-written answer.
        continues_if_proved: whether an attempt may try to continue one, although that is not known: the attempt then
            proves it, or fails. For failover only, after every endpoint that is known to continue.
        parks: whether the endpoint can finish a prefill and keep it without writing.
        is_measured: whether the endpoint's speeds were measured, and not only assumed.
        follows: whether a parked attempt can be given more text to read, and stays parked.
        limits: whether the endpoint keeps to a limit on the tokens of an answer, also where the application set none.
        pauses: whether the endpoint can stop writing in mid-answer and go on later where it stopped.
        announces: whether the endpoint reports when its work begins (`events.Started`); the wait before that does
            not count as silence.
        context_tokens: tokens of prompt and answer together; None when unknown.
        vocabulary: tokenizer fingerprint, None when unknown.
        label_scores: whether the endpoint is known to score the classes of a request.
        standby: whether the endpoint serves only where no other endpoint of its place may, however cheap it is.
        rank: the endpoint's place in the user's order, from the smallest model (0) to the best.
        parts: the payers, where the endpoint is made of several; empty: the endpoint is its own payer.
    """

    name: str
    reach: Reach
    rates: Rates = _FREE
    prefill_tps: float = float("inf")
    reading_spare: float = READING_SPARE
    overhead_s: float = 0.0
    ttft_quantiles: tuple[float, ...] = ()
    silence_s: float | None = None
    slow_start: float | None = None
    load_s: float = 0.0
    loads: bool = False
    queue_s: float = 0.0
    decode_tps: float = 30.0
    continues: bool = False
    continues_if_proved: bool = False
    parks: bool = False
    is_measured: bool = True
    follows: bool = False
    limits: bool = False
    pauses: bool = False
    announces: bool = False
    context_tokens: int | None = None
    vocabulary: str | None = None
    label_scores: bool = False
    standby: bool = False
    rank: int = 0
    parts: tuple[Payer, ...] = ()

    @property
    def place(self) -> Place:
        """Whether the endpoint is on this machine ("device") or not ("server")."""
        return place_of(self.reach)

    @property
    def payers(self) -> tuple[Payer, ...]:
        """The parties that the endpoint's work is charged to."""
        return self.parts or (Payer(self.name, self.place, self.rates),)

    def first_token_quantile_s(self, q: float) -> float:
        """Return the time to first token beside prefill that a share `q` of attempts stays below, about, s."""
        known = self.ttft_quantiles
        return known[min(int(q * len(known)), len(known) - 1)] if known else self.overhead_s

    def time_to_first_token_s(self, tokens: int) -> float:
        """Return the expected time to first token, s, with `tokens` left to prefill (paper: T_d = k·l + c)."""
        return self.queue_s + self.load_s + self.overhead_s + tokens / self.prefill_tps

    def has_loaded_s(self, for_s: float) -> float:
        """Return which part of `load_s` is over `for_s` seconds later, s; never all of it: the model may be late."""
        return min(for_s, _LOADED * self.load_s) if self.loads else 0.0

    def slow_first_token_s(self, tokens: int) -> float:
        """Return how long a first token takes once it is slow, s, waits in a queue not counted; `inf`: not known."""
        if self.slow_start is None:
            return float("inf")
        usual_s = self.overhead_s + tokens / self.prefill_tps
        return self.load_s + max(self.slow_start * usual_s, LEAST_SLOW_S)

    def answer_s(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the expected time to the end of an answer of that length, s."""
        return self.time_to_first_token_s(prompt_tokens) + answer_tokens / self.decode_tps


@dataclass(frozen=True, slots=True)
class Start:
    """Start `endpoint` `after_s` seconds after the request came, unless another endpoint has written by then."""

    endpoint: str
    after_s: float = 0.0


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
            of an endpoint that is only spared: "low" (battery), "throttled" (clock), "loaded" (by other programs), or
            "metered" (the network).
        failure: class of the last failure that counted; None when offline.
        failures: number of failures that led to this cool-down.
        for_s: how much longer the cool-down takes, seconds; None where that is not known.
    """

    endpoint: str
    reason: Literal["failures", "rate_limit", "probed", "offline", "low", "throttled", "loaded", "metered"]
    failure: str | None = None
    failures: int = 0
    for_s: float | None = None

    @property
    def is_spared(self) -> bool:
        """Whether the endpoint works, and is left alone for the sake of this machine's battery, load or traffic."""
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
        on_battery, battery_share, clock_share, load_share, metered: the readings (`disco.power.Readings`), rounded to
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
        heirs: endpoints that may start because another one is silent for longer than it nearly ever is, in order of
            preference; a silence is a failure only later. Never an endpoint that the preset spares.
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

    def loading(self, candidates: Mapping[str, Candidate]) -> list[str]:
        """Return the endpoints named here whose models are to be loaded from the request on."""
        named = [*(start.endpoint for start in self.starts), *self.fallbacks]
        named += [migration.target for migration in self.migrations.values()]
        return [
            name for name in dict.fromkeys(named) if candidates[name].loads and candidates[name].load_s > 0
        ]

    def wants_of(self, candidate: Candidate) -> frozenset[str]:
        """Return what an attempt on that endpoint is asked for.

        The highest tier of a cascade is not judged. It only chooses its class by label scores, where it is known to
        give them: a server that is itself a cascade does not judge requests for log probabilities.
        """
        if self.assist is not None and candidate.name == self.assist.heir:
            return self.wants | _OF_AN_HEIR
        if self.cascade is None or self.cascade.above(candidate.name):
            return self.wants
        return self.wants & {"label_scores"} if candidate.label_scores else frozenset()


if not TYPE_CHECKING:  # hidden from type checkers, so that they report the former names
    __getattr__ = former_names("plan")
