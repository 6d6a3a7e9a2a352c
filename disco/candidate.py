"""What dispatch and session know about each endpoint: plain data for every package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from disco.rates import Rates

__all__ = [
    "LEAST_SLOW_S",
    "PATIENT_S",
    "READING_SPARE",
    "READ_BATCH_TOKENS",
    "TTFT_QUANTILES",
    "Candidate",
    "Payer",
    "Place",
    "PromptSize",
    "Reach",
    "place_of",
]

Reach = Literal["device", "own", "any"]
"""How far a prompt travels to an endpoint: not off this machine, to the user's own machines, or anywhere."""

Place = Literal["device", "server"]
"""This machine ("device"), or any other ("server")."""

READ_BATCH_TOKENS = 64
"""A model on this machine needs about as long for fewer tokens than this as for a whole batch of so many."""

READING_SPARE = 1.4
"""A model on this machine takes up to so many times its usual time to read a long prompt, where its own times are not
known: later tokens take longer, and the machine does other work."""

LEAST_SLOW_S = 0.1
"""No first token is slow before this time, s: below, the times say more about this machine than about an endpoint."""

PATIENT_S = 30.0
"""Who may not be doubted may be silent for so long before its first content, s."""

TTFT_QUANTILES = 32
"""How many `Candidate.ttft_quantiles` a client gives where it knows the distribution."""

_LOADED = 0.9  # of the expected load time, as long as the model is not known to be loaded
_FREE = Rates()


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
        rates: what a token costs, under the exchange rate and in money.
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
        may_be_doubted: False where it was doubted so often lately that only a long silence starts another endpoint, so
            that its end is seen; the two above then count where they are longer.
        load_s: time until the model is loaded, before that, s; 0 when it is.
        loads: whether the model, where it is not loaded, is loaded from the request on, also while other endpoints
            write.
        queue_s: expected wait in a queue before that, s; 0 where there is no queue or its length is not known.
        times_from: where its times are from; see `plan.Source`.
        times_seen: how many first tokens of it this client has observed.
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
    may_be_doubted: bool = True
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
    times_from: Literal["prior", "profile", "told", "own"] = "profile"
    times_seen: int = 0

    @property
    def place(self) -> Place:
        """Whether the endpoint is on this machine ("device") or not ("server")."""
        return place_of(self.reach)

    @property
    def payers(self) -> tuple[Payer, ...]:
        """The parties that the endpoint's work is charged to."""
        return self.parts or (Payer(self.name, self.place, self.rates),)

    @property
    def charged(self) -> Rates:
        """What the endpoint's own work is charged at: `rates` without what plans count for its traffic."""
        return next((payer.rates for payer in self.parts if payer.name == self.name), self.rates)

    def first_token_quantile_s(self, q: float) -> float:
        """Return the time to first token beside prefill that a share `q` of attempts stays below, about, s."""
        known = self.ttft_quantiles
        return known[min(int(q * len(known)), len(known) - 1)] if known else self.overhead_s

    def usual_first_token_s(self, tokens: int) -> float:
        """Return the median time to first token, s, waits for a queue or a model not counted.

        Args:
            tokens: length of the prompt.
        """
        return self.first_token_quantile_s(0.5) + tokens / self.prefill_tps

    def time_to_first_token_s(self, tokens: int) -> float:
        """Return the expected time to first token, s, with `tokens` left to prefill (paper: T_d = k·l + c)."""
        return self.queue_s + self.load_s + self.overhead_s + tokens / self.prefill_tps

    def has_loaded_s(self, for_s: float) -> float:
        """Return which part of `load_s` is over `for_s` seconds later, s; never all of it: the model may be late."""
        return min(for_s, _LOADED * self.load_s) if self.loads else 0.0

    def slow_first_token_s(self, tokens: int) -> float:
        """Return how long a first token takes once it is slow, s, waits in a queue not counted; `inf`: not known.

        Args:
            tokens: length of the prompt.
        """
        if self.slow_start is None:
            return float("inf")
        usual_s = self.overhead_s + tokens / self.prefill_tps
        return self.load_s + max(self.slow_start * usual_s, LEAST_SLOW_S)

    def answer_s(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return the expected time to the end of an answer of that length, s.

        Args:
            prompt_tokens: length of the prompt.
            answer_tokens: length of the answer.
        """
        return self.time_to_first_token_s(prompt_tokens) + answer_tokens / self.decode_tps
