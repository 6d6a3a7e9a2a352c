"""What a client learns about its endpoints: from profiles at first, then from its own measurements.

The observations are not biased (design rule 8). A cancelled loser's first token is censored ("took longer than").
A failure is not a latency. Waiting in a queue is not prefill. A start that had to load the model is not a warm
start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from disco.candidate import READING_SPARE, TTFT_QUANTILES, Candidate, Reach
from disco.client.endpoint_catalog.observed import silences
from disco.client.endpoint_catalog.observed.silences import Silences, observations
from disco.endpoints.contract import Capabilities
from disco.plan import Plan
from disco.profiles import Empirical, Lengths, LengthsProfile, Rolling, RollingLine
from disco.rates import Rates
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.machine import Session
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["KINDS", "EndpointStatistics", "Keep", "PlannedStarts", "Statistics", "make_room"]

NEW_WEIGHT = 0.3  # weight of the newest answer in the running means below
FEWEST_STARTS = 5  # of a device that no profile describes, before its line counts as measured
SLOWEST_READ = 0.98  # quantile of the device's time to read a long prompt that a plan allows for
_LAST_PART = (
    0.1  # of the time that loading takes, or has taken by now: expected where that is longer than usual
)
_TURN_TOKENS = 100  # of an answer, until one was seen: how long it occupies a device is assumed from it
FEWEST_TOKENS = 8  # shorter answers give no good estimate of a rate
REFIT_EVERY = 16  # answers between two fits of the policies
MOST_ANSWERS = 1000  # answers whose lengths are kept
MOST_REPLAYED = 200  # own TTFTs that are added again when a server tells of its own
OWN_PROMPTS = 24  # after so many, only the client's own prompt lengths count, and not those assumed before
MOST_MODELS = 256  # models whose statistics are kept
# Finish reasons of an answer that ended by itself; any other reason means that it was cut short.
_WHOLE = frozenset({"stop", "tool_calls", "function_call"})

Keep = Callable[[str, float, float], None]
"""Takes one observation: its kind, its value and its second value. The state file's side of what is learnt."""


def make_room(known: dict[Any, Any]) -> None:
    """Forget the oldest entry if there are too many: callers of `disco serve` may make up any model's name."""
    if len(known) >= MOST_MODELS:
        del known[next(iter(known))]


@dataclass(slots=True)
class EndpointStatistics:
    """Running estimates of one endpoint under one model; all fields are mutable.

    Attributes:
        ttft: its TTFT if that does not depend on the prompt's length (a server's); else None.
        line: its TTFT as a line in the prompt's length (a device's); else None.
        decode_tps: generated tokens/s.
        load_s: time to load a model that is not ready, in seconds; from its profile at first, then as it was here.
        turn_s: how long an answer occupies the endpoint, in seconds, if answers wait in a queue; 0 before the first.
        planned: how many attempts were planned to start there at once and have not reached it yet.
        is_measured: whether its times at first are from a profile of this endpoint, and not assumed.
        starts: how many starts the line was learnt from here.
        loads: how many loads `load_s` was learnt from here.
        keep: takes each new observation, for the state file; None: there is none.
        silences: how long it is silent.
        told: how many answers the server itself knows the TTFT of, as far as they still count; see `told_ttft`.
    """

    ttft: Rolling | None = None
    line: RollingLine | None = None
    decode_tps: float = 30.0
    load_s: float = 0.0
    turn_s: float = 0.0
    planned: int = 0
    is_measured: bool = True
    starts: int = 0
    loads: int = 0
    keep: Keep | None = field(default=None, repr=False)
    silences: Silences = field(default_factory=Silences)
    _seen_load_s: float | None = None  # of the model that is loaded
    told: float = 0.0
    _seen: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MOST_REPLAYED))
    _spaced: tuple[float, ...] = ()
    _spaced_at: int = 0  # how many observations `_spaced` was computed from

    def candidate(
        self,
        name: str,
        reach: Reach,
        rates: Rates,
        able: Capabilities,
        *,
        standby: bool = False,
        rank: int = 0,
    ) -> Candidate:
        """Return the endpoint as dispatch and session see it for the next request."""
        prefill_tps, overhead_s, spare = float("inf"), 0.0, 1.0
        ttft_quantiles: tuple[float, ...] = ()
        if self.line is not None:
            prefill_tps, overhead_s = 1.0 / self.line.k_s_per_token, self.line.c_s
            spare = self.line.ratio_quantile(SLOWEST_READ, at_least=READING_SPARE)
        elif self.ttft is not None:
            # A migration that is late is abandoned, so its time is planned from a high quantile.
            known = self.ttft.snapshot()
            overhead_s, ttft_quantiles = known.quantile(0.9), self._quantiles(known)
        return Candidate(
            name=name,
            reach=reach,
            rates=rates,
            prefill_tps=prefill_tps,
            reading_spare=spare,
            overhead_s=overhead_s,
            ttft_quantiles=ttft_quantiles,
            load_s=0.0 if able.ready else self._load_left_s(able.loading_s or 0.0),
            loads=able.loads,
            silence_s=self.silences.silence_s(),
            slow_start=self._slow_start(overhead_s),
            may_be_doubted=self.silences.may_be_doubted,
            queue_s=((able.waiting or 0) + self.planned) * self._turn_s(),
            decode_tps=self.decode_tps,
            continues=able.continues,
            continues_if_proved=able.continues_if_proved,
            parks=able.parks,
            pauses=able.pauses,
            is_measured=self.line is None or self.is_measured or self.starts >= FEWEST_STARTS,
            follows=able.follows,
            limits=able.limits,
            announces=able.announces,
            context_tokens=able.context_tokens,
            vocabulary=able.vocabulary,
            label_scores=able.label_scores,
            standby=standby,
            rank=rank,
            times_from=self._times_from(),
            times_seen=self._seen_starts(),
        )

    def _turn_s(self) -> float:
        """Return how long an answer occupies the endpoint: as observed, else of a short one at its assumed speed."""
        if self.turn_s or self.line is None:
            return self.turn_s
        return self.line.c_s + _TURN_TOKENS / self.decode_tps

    def _seen_starts(self) -> int:
        return self.starts if self.ttft is None else self.ttft.count + self.ttft.censored_count

    def _times_from(self) -> Literal["prior", "profile", "told", "own"]:
        if self._seen_starts() >= FEWEST_STARTS:
            return "own"
        if self.told:
            return "told"
        return "profile" if self.is_measured else "prior"

    def _load_left_s(self, loading_s: float) -> float:
        """Return how long loading will still take; above 0, for the model is not loaded."""
        return max(self.load_s - loading_s, _LAST_PART * max(self.load_s, loading_s))

    def saw(self, able: Capabilities) -> None:
        """Learn from what the endpoint says of itself: how long its model took to load, once for each time."""
        if able.load_s is not None and able.load_s != self._seen_load_s:
            self._seen_load_s = able.load_s
            self.observe("load_s", able.load_s)

    def _slow_start(self, overhead_s: float) -> float | None:
        """Return `Candidate.slow_start`. Of a server the times are known, not multiples of the time in a plan."""
        slow = self.silences.slow_start()
        return slow if slow is None or self.line is not None else slow / max(overhead_s, 1e-3)

    def _quantiles(self, known: Empirical) -> tuple[float, ...]:
        """Return the quantiles of the TTFT; computed after each of the first observations, then at every refit."""
        assert self.ttft is not None
        seen = self.ttft.count + self.ttft.censored_count
        due_after = 1 if seen < REFIT_EVERY or self.ttft.is_unsettled else REFIT_EVERY
        if not self._spaced or seen - self._spaced_at >= due_after:
            self._spaced, self._spaced_at = known.spaced(TTFT_QUANTILES), seen
        return self._spaced

    def observe(self, kind: str, value: float, extra: float = 0.0) -> None:
        """Learn one observation of a kind in `KINDS`, and have it kept."""
        self.recall(kind, value, extra)
        if self.keep is not None:
            self.keep(kind, value, extra)

    def recall(self, kind: str, value: float, extra: float = 0.0) -> None:
        """Learn an observation that is kept already; one of an unknown kind says nothing."""
        learn = KINDS.get(kind)
        if learn is not None:
            learn(self, value, extra)

    def saw_ttft(self, first_s: float, *, censored: bool = False) -> None:
        """Learn from one TTFT; `censored`: it is only known to be longer."""
        if self.ttft is None:
            return
        (self.ttft.observe_censored if censored else self.ttft.observe)(first_s)
        self._seen.append((first_s, censored))

    def start_from(self, prior: Empirical, weight: float, told: float) -> bool:
        """Start the TTFT from another prior, of this weight in observations; what was seen here is added again.

        Return False, and change nothing, where more was seen than is kept: then a prior says little.
        """
        if self.ttft is None or self.ttft.count + self.ttft.censored_count > len(self._seen):
            return False
        ttft = type(self.ttft)(prior=prior, prior_weight=weight)
        for first_s, censored in self._seen:
            (ttft.observe_censored if censored else ttft.observe)(first_s)
        self.ttft, self.told, self._spaced = ttft, told, ()
        return True

    def learn(self, state: AttemptState) -> None:
        """Learn from one attempt of a finished answer."""
        seen = observations(state, by_line=self.line is not None)
        for kind, value in (*self.silences.doubts(state), *seen):
            self.observe(kind, value)
        over_at = (
            state.ended_at if state.prompt_read is None else state.prompt_read[0]
        )  # a follower only waits then
        if state.began_at is not None and over_at is not None:
            self.observe("turn_s", max(0.0, over_at - state.began_at))
        if state.failure is not None or state.outcome is AttemptOutcome.CANCELLED or state.fell_silent:
            return
        if state.seam is not None and state.seam.method == "instructed":
            return  # it had to repeat some words before its first content
        if self.line is not None and state.prompt_read is not None and state.candidate.load_s == 0.0:
            read_at, read = state.prompt_read
            self.observe("start_s", read_at - state.works_from_at, read)
        if state.first_content_at is None:
            if (
                self.ttft is not None
                and state.ended_at is not None
                and state.outcome is not AttemptOutcome.FINISHED
            ):
                self.observe("ttft_above_s", max(0.0, state.ended_at - state.works_from_at))
            return
        first_s = max(0.0, state.first_content_at - state.works_from_at)
        if self.ttft is not None:
            self.observe("ttft_s", first_s)
        elif self.line is not None and state.usage is not None:
            read = state.usage.prompt_tokens - state.usage.cached_tokens - state.usage.probed[0]
            if state.candidate.load_s == 0.0:
                self.observe("start_s", first_s, read)
            elif state.began_at is None:  # what the line does not account for was spent on loading the model
                self.observe("load_s", max(0.0, first_s - self.line.k_s_per_token * read - self.line.c_s))
        writing_s = state.last_at - state.first_content_at - state.paused_s
        if state.tokens > FEWEST_TOKENS and writing_s > 0:
            self.observe("decode_tps", (state.tokens - 1) / writing_s)


def _learn_ttft(known: EndpointStatistics, value: float, _: float) -> None:
    known.saw_ttft(value)


def _learn_ttft_above(known: EndpointStatistics, value: float, _: float) -> None:
    known.saw_ttft(value, censored=True)


def _learn_start(known: EndpointStatistics, took_s: float, read_tokens: float) -> None:
    if known.line is not None:
        known.line.observe(round(read_tokens), took_s)
        known.starts += 1


def _learn_decode(known: EndpointStatistics, tps: float, _: float) -> None:
    known.decode_tps += NEW_WEIGHT * (tps - known.decode_tps)


def _learn_turn(known: EndpointStatistics, busy_s: float, _: float) -> None:
    known.turn_s += (NEW_WEIGHT if known.turn_s else 1.0) * (busy_s - known.turn_s)


def _learn_load(known: EndpointStatistics, load_s: float, _: float) -> None:
    known.load_s += (NEW_WEIGHT if known.loads else 1.0) * (load_s - known.load_s)
    known.loads += 1


def _learn_silence(kind: str) -> Callable[[EndpointStatistics, float, float], None]:
    return lambda known, value, _: known.silences.observe(kind, value)


KINDS: Final[Mapping[str, Callable[[EndpointStatistics, float, float], None]]] = {
    "ttft_s": _learn_ttft,
    "ttft_above_s": _learn_ttft_above,
    "start_s": _learn_start,
    "decode_tps": _learn_decode,
    "turn_s": _learn_turn,
    "load_s": _learn_load,
    **{kind: _learn_silence(kind) for kind in silences.KINDS},
}
"""What is observed of an endpoint, and what each observation changes. Live answers and the state file's observations
of earlier ones go through these alike, so a new kind needs a line here, and an `observe` where it is measured."""


class PlannedStarts:
    """The starts of one plan that have not reached their devices yet: requests planned meanwhile come behind them.

    Mutable: the starts that are left.
    """

    __slots__ = ("_left",)

    def __init__(self, plan: Plan, known: Mapping[str, EndpointStatistics]) -> None:
        """Count the plan's immediate starts on devices; `known`: what is known of each endpoint, by name."""
        starting = [start.endpoint for start in plan.starts if start.after_s == 0.0]
        self._left = {name: known[name] for name in starting if known[name].line is not None}
        for statistics in self._left.values():
            statistics.planned += 1

    def reached(self, endpoint: str) -> None:
        """Count a start no longer: its device counts the request itself now. Others are not counted here."""
        statistics = self._left.pop(endpoint, None)
        if statistics is not None:
            statistics.planned -= 1

    def close(self) -> None:
        """Count none any more, at the end of the answer. Idempotent."""
        for name in list(self._left):
            self.reached(name)


@dataclass(slots=True)
class Statistics:
    """All statistics of one client, shared with its copies (`with_options`). All fields are mutable.

    Attributes:
        prompts: prompt lengths, for the budget: assumed ones with those seen; after `OWN_PROMPTS`, only those.
        prior: the lengths profile that answer lengths start from.
        endpoints: statistics by a key that identifies an endpoint and its model.
        answers: lengths of the answers seen, in tokens, and whether each ended by itself.
        seen: number of answers so far.
        keep: as of `EndpointStatistics`; the kinds are "answer_tokens" (its second value: whether the answer ended by
            itself) and "prompt_tokens".
    """

    prompts: Lengths
    prior: LengthsProfile
    endpoints: dict[Hashable, EndpointStatistics] = field(default_factory=dict)
    answers: deque[tuple[int, bool]] = field(default_factory=lambda: deque(maxlen=MOST_ANSWERS))
    seen: int = 0
    keep: Keep | None = field(default=None, repr=False)
    _lengths: AnswerLengths | None = None
    _first: list[int] | None = field(default_factory=list)  # prompt lengths, until they are `OWN_PROMPTS`

    def learn(self, session: Session, endpoints: Mapping[str, EndpointStatistics]) -> bool:
        """Learn from a finished session. Return True if there is enough new data to plan a preset again.

        After a change of an endpoint's TTFT, that is so with each answer for a while.

        `endpoints` holds, by endpoint name, the statistics that its candidates were made from.
        """
        for state in session.attempts:
            endpoints[state.candidate.name].learn(state)
        self.seen += 1
        is_due = self.seen % REFIT_EVERY == 0
        if session.finish_reason is not None and session.transcript.tokens > 0:
            is_whole = session.finish_reason in _WHOLE
            self._observe("answer_tokens", session.transcript.tokens, is_whole)
        if is_due:
            self._lengths = None
        self._observe("prompt_tokens", session.config.prompt_tokens)
        times = [endpoints[state.candidate.name].ttft for state in session.attempts]
        return is_due or any(ttft is not None and ttft.is_unsettled for ttft in times)

    def _observe(self, kind: str, tokens: int, extra: float = 0.0) -> None:
        self.recall(kind, tokens, extra)
        if self.keep is not None:
            self.keep(kind, tokens, extra)

    def recall(self, kind: str, tokens: float, extra: float = 0.0) -> None:
        """Learn the length of an answer or of a prompt that is kept already; another kind says nothing."""
        if kind == "answer_tokens":
            self.answers.append((round(tokens), bool(extra)))
        elif kind == "prompt_tokens":
            self._recall_prompt(round(tokens))

    def _recall_prompt(self, tokens: int) -> None:
        self.prompts.observe(tokens)
        if self._first is not None:
            self._first.append(tokens)
            if len(self._first) >= OWN_PROMPTS:
                self.prompts, self._first = Lengths.from_samples(self._first), None

    def fit_again(self) -> None:
        """Make the survival function of answer lengths anew when it is needed next."""
        self._lengths = None

    def answer_lengths(self) -> AnswerLengths:
        """Return the survival function of answer lengths; the prior's until the client has seen enough answers."""
        if self._lengths is None:
            if len(self.answers) >= 2 * REFIT_EVERY and any(whole for _, whole in self.answers):
                self._lengths = AnswerLengths.from_samples(
                    [tokens for tokens, whole in self.answers if whole],
                    censored=[tokens for tokens, whole in self.answers if not whole],
                )
            else:
                table = self.prior.output_tokens
                self._lengths = AnswerLengths.from_quantiles(zip(table.levels, table.values, strict=True))
        return self._lengths

    def lengths_up_to(self, max_tokens: int | None) -> AnswerLengths:
        """Return the survival function of the lengths of answers with this limit."""
        return self.answer_lengths().capped(max_tokens)
