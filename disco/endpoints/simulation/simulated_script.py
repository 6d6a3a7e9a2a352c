"""What a simulated endpoint does for one request, as a script of timed events: no clock, no I/O, no waiting.

`SimulatedEndpoint` plays a script in real time (or in an event loop's virtual time). An event heap plays the same
script by jumping from one time to the next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal, Protocol

import httpx2
import numpy as np
import openai
from numpy.typing import NDArray

from disco.endpoints.simulation.simulated_text import (
    canonical,
    fingerprint,
    foreign,
    prompt_pieces,
    shared_prose,
    tokenise,
)
from disco.errors import (
    ContextLengthError,
    EndpointFailure,
    FailureKind,
    IncompleteAnswerError,
    LocalModelError,
)
from disco.events import Delta, DeltaKind, Ended, Progress, SeamReport, Usage
from disco.request import Prefix, Request

__all__ = [
    "DelaySampler",
    "Fault",
    "Scripted",
    "SimulatedProfile",
    "log_probabilities",
    "play",
    "prose",
    "reading",
    "script",
    "seam_report",
    "simulated_failure",
    "swallowed_tokens",
]


class DelaySampler(Protocol):
    """A source of random numbers: an empirical distribution, or a fit."""

    def sample(self, rng: np.random.Generator, n: int, /) -> NDArray[Any]:
        """Draw `n` values, shape (n,)."""
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure or a stall at one place of an answer.

    Attributes:
        after_tokens: how many tokens are delivered before the fault; 0: before the first token; None: after the last
            one, so that the whole answer was written, but its end was not reported.
        silence_s: how long the endpoint is then silent; `inf` hangs for ever.
        kind: how the attempt fails after that silence; None: the attempt does not fail but continues to write (a
            stall).
        probability: share of attempts that have the fault.
        retry_after_s: the wait that a rate limit asks for.
        at_once: the fault comes when the attempt begins (a refused connection), not when its first token is due;
            only with `after_tokens` 0.
        gap_s: seconds between packets after the fault, if the attempt continues to write (a line that became slow);
            None: as before.
    """

    after_tokens: int | None = 0
    silence_s: float = 0.0
    kind: FailureKind | None = FailureKind.CONNECTION
    probability: float = 1.0
    retry_after_s: float | None = None
    at_once: bool = False
    gap_s: float | None = None

    def __post_init__(self) -> None:
        if self.at_once and self.after_tokens != 0:
            raise ValueError(
                "A fault with at_once comes before the first token. Leave after_tokens at 0, or leave out at_once."
            )


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """The numbers that define a simulated endpoint.

    Time to first token is `overhead_s + ttft_s + tokens to prefill / prefill_tps` (a server: give `ttft_s`;
    a device: give `prefill_tps` and `overhead_s`; paper: T_d = k·l + c). Packets then follow `gap_s` apart.

    Attributes:
        ttft_s: seconds, or a sampler of seconds, drawn per attempt.
        prefill_tps: prompt tokens per second that are not already cached.
        overhead_s: fixed part of the time to first token.
        decode_tps: generated tokens per second; not used when `gap_s` is given.
        gap_s: seconds between two packets, or a sampler of them.
        packet_tokens: how many tokens arrive together.
        answer_tokens: length of an answer, or a sampler of lengths; for one request it is the same at every
            endpoint with the same `seed`. Not used when `answer` is given.
        answer: the answer's text, or a function that makes it from the request; None: made-up prose.
        seed: endpoints with the same seed write the same text.
        continues: the endpoint can continue a half-written answer.
        context_tokens: prompt and answer together; None: no limit.
        features: see `Capabilities`.
        vocabulary: see `Capabilities`.
        role_at_s: when an empty role chunk arrives, before the first token; None: never.
        seam: what the endpoint does with a prefix. "exact": continues it. "echoes": writes the prefix again first,
            which is removed and charged. "restarts": starts a new answer, which fails as SEAM. "doubts": echoes
            without knowing it, passes the echo on and reports the seam as unproved. "leaks": does the same, but
            reports that it continued, against the contract, to test the code that must detect it.
        fault: the endpoint's fault; see `Fault`.
        mean_logp: mean log probability of the tokens, below 0, for attempts opened with "logp"; the same for one
            request at every endpoint with the same `seed`. None: the endpoint gives no log probabilities.
    """

    ttft_s: DelaySampler | float = 0.0
    prefill_tps: float = math.inf
    overhead_s: float = 0.0
    decode_tps: float = 30.0
    gap_s: DelaySampler | float | None = None
    packet_tokens: int = 1
    answer_tokens: DelaySampler | int = 64
    answer: str | Callable[[Request], str] | None = None
    seed: int = 0
    continues: bool = True
    context_tokens: int | None = None
    features: frozenset[str] | None = frozenset()
    vocabulary: str | None = None
    role_at_s: float | None = None
    seam: Literal["exact", "echoes", "restarts", "doubts", "leaks"] = "exact"
    fault: Fault | None = None
    mean_logp: float | None = None


Scripted = tuple[float, list[Delta] | Progress | Ended | EndpointFailure]

_BATCH_TOKENS = 64  # of a prefill, between two reports of its progress


def simulated_failure(
    kind: FailureKind, endpoint: str = "simulated", *, retry_after_s: float | None = None
) -> EndpointFailure:
    """Return the failure of `kind`, with the exception type that a real endpoint's caller would see."""
    message = f"Endpoint {endpoint!r} failed as its simulated profile's fault specifies ({kind.value})."
    request = httpx2.Request("POST", "disco://simulated/chat/completions")

    def status(error: type[openai.APIStatusError], code: int) -> Exception:
        headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        response = httpx2.Response(code, request=request, headers=headers)
        return error(message, response=response, body={"message": message, "code": kind.value})

    error: Exception
    match kind:
        case FailureKind.TIMEOUT | FailureKind.STALLED:
            error = openai.APITimeoutError(request=request)
        case FailureKind.RATE_LIMIT | FailureKind.BUDGET:
            error = status(openai.RateLimitError, 429)
        case FailureKind.SERVER:
            error = status(openai.InternalServerError, 503)
        case FailureKind.ACCOUNT:
            error = status(openai.AuthenticationError, 401)
        case FailureKind.BAD_REQUEST | FailureKind.CONTENT_FILTER | FailureKind.UNSERVED | FailureKind.MODEL:
            error = status(openai.BadRequestError, 400)
        case FailureKind.CONTEXT_LENGTH:
            error = ContextLengthError(f"The prompt is longer than the context of endpoint {endpoint!r}.")
        case FailureKind.CRASHED:
            error = LocalModelError(message)
        case FailureKind.INCOMPLETE:
            error = IncompleteAnswerError(message)
        case FailureKind.CONNECTION | FailureKind.GARBAGE | FailureKind.SEAM:
            error = openai.APIConnectionError(message=message, request=request)
    return EndpointFailure(kind, error, retry_after_s=retry_after_s)


def _draw(value: DelaySampler | float, rng: np.random.Generator) -> float:
    return float(value) if isinstance(value, int | float) else float(value.sample(rng, 1)[0])


def _gaps(profile: SimulatedProfile, rng: np.random.Generator) -> Iterator[float]:
    gap = profile.packet_tokens / profile.decode_tps if profile.gap_s is None else profile.gap_s
    while True:
        if isinstance(gap, int | float):
            yield float(gap)
        else:
            yield from gap.sample(rng, 32).tolist()  # in blocks: one draw costs as much as a block


def _continuation(
    profile: SimulatedProfile, request: Request, prefix: Prefix, answer_tokens: int | None
) -> list[str]:
    """Return the tokens that come after `prefix.text`."""
    if profile.answer is not None:
        whole = profile.answer if isinstance(profile.answer, str) else profile.answer(request)
        length = len(tokenise(whole))
    else:
        length = answer_tokens if answer_tokens is not None else _answer_length(profile, request)
        whole = canonical(request, profile.seed, length)
    if whole.startswith(prefix.text):
        return tokenise(whole[len(prefix.text) :])
    written = prefix.tokens or len(tokenise(prefix.text))
    return tokenise(foreign(request, profile.seed, prefix, max(0, length - written)))


def _answer_length(profile: SimulatedProfile, request: Request) -> int:
    # Drawn from the request, not from the attempt's rng: source and target must agree on the length.
    key = fingerprint([dict(m) for m in request.messages], request.params.get("seed"), profile.seed, "length")
    return max(0, round(_draw(profile.answer_tokens, np.random.default_rng(key))))


@lru_cache(maxsize=8)
def prose(tokens: int) -> tuple[list[Delta], ...]:
    """Return at least `tokens` packets of one token each, of a text that many simulated answers may share.

    An attempt that continues after n tokens begins with packet n. Callers must not change the packets.
    """
    size = 1 << max(tokens - 1, 0).bit_length()
    return tuple([Delta(piece)] for piece in shared_prose(size)) if size == tokens else prose(size)


def play(
    packets: Sequence[list[Delta]],
    at: float,
    gaps: Iterator[float],
    *,
    size: int = 1,
    fault: Fault | None = None,
    endpoint: str = "simulated",
) -> Generator[Scripted, None, float]:
    """Yield packets in time, and the fault among them.

    Args:
        packets: of `size` tokens each; the last may have fewer.
        at: when the first packet arrives, s.
        gaps: seconds between each packet and the next; as many are taken as are needed.
        size: see `packets`.
        fault: the fault that happens for certain; None: no fault.
        endpoint: name for error messages.

    Returns:
        The time of the last packet, s; NaN when the answer ended in a failure.
    """
    tokens = (len(packets) - 1) * size + len(packets[-1]) if packets else 0
    if fault is None:
        return (yield from _spaced(packets, at, gaps))
    after_tokens = tokens if fault.after_tokens is None else fault.after_tokens
    if after_tokens <= tokens:
        whole, part = divmod(after_tokens, size)
        before, after = list(packets[:whole]), list(packets[whole:])
        if part:
            before.append(after[0][:part])
            after[0] = after[0][part:]
        at = yield from _spaced(before, at, gaps)
        if fault.at_once and fault.kind is not None:
            at = 0.0
        at += fault.silence_s
        if fault.kind is not None:
            yield at, simulated_failure(fault.kind, endpoint, retry_after_s=fault.retry_after_s)
            return math.nan
        if fault.gap_s is not None:
            gaps = itertools.repeat(fault.gap_s)
        packets = [packet for packet in after if packet]
        if whole and not part and packets:
            at += next(gaps)
    return (yield from _spaced(packets, at, gaps))


def _spaced(
    packets: Sequence[list[Delta]], at: float, gaps: Iterator[float]
) -> Generator[Scripted, None, float]:
    coming = iter(packets)
    for packet in coming:
        yield at, packet
        break
    for packet, gap_s in zip(coming, gaps, strict=False):  # in this order, no unused gap is drawn
        at += gap_s
        yield at, packet
    return at


def log_probabilities(
    profile: SimulatedProfile, request: Request, begin: int, count: int
) -> tuple[float, ...]:
    """Return made-up log probabilities of an answer's tokens `begin` to `begin + count`: exponentially distributed."""
    key = fingerprint([dict(m) for m in request.messages], request.params.get("seed"), profile.seed, "logp")
    drawn = np.random.default_rng(key).exponential(-(profile.mean_logp or 0.0), begin + count)
    return tuple((-drawn[begin:]).tolist())


def reading(until: float, cached_tokens: int, tokens: int, tps: float) -> Iterator[Scripted]:
    """Yield the progress of a prefill that ends at time `until`, s, in batches that end at multiples of their size."""
    yield until - (tokens - cached_tokens) / tps, Progress(cached_tokens, tokens, 0.0)
    first = (cached_tokens // _BATCH_TOKENS + 1) * _BATCH_TOKENS
    for done in (*range(first, tokens, _BATCH_TOKENS), tokens):
        yield until - (tokens - done) / tps, Progress(done, tokens, tps)


def swallowed_tokens(profile: SimulatedProfile, prefix: Prefix) -> int:
    """Return how many tokens are generated, and charged, before the first one that is delivered."""
    echo = len(tokenise(prefix.sent)) if profile.seam == "echoes" else 0
    return echo + len(tokenise(prefix.withheld))


def seam_report(profile: SimulatedProfile, prefix: Prefix, passed_chars: int) -> SeamReport | None:
    """Return the attempt's report on its seam after `passed_chars` characters of text; None without a prefix."""
    if not prefix:
        return None
    sent_chars, withheld_chars = len(prefix.sent), len(prefix.withheld)
    verdict: Literal["continued", "echo", "unproved"] = "continued"
    swallowed_chars = withheld_chars if passed_chars else 0
    if passed_chars and sent_chars and profile.seam == "echoes":
        verdict = "echo"
        swallowed_chars += sent_chars
    elif passed_chars and profile.seam == "doubts":
        verdict = "unproved"
    return SeamReport(verdict, sent_chars, passed_chars + swallowed_chars, swallowed_chars)


def script(
    profile: SimulatedProfile,
    request: Request,
    prefix: Prefix,
    rng: np.random.Generator,
    *,
    endpoint: str = "simulated",
    prompt_tokens: int | None = None,
    cached_tokens: int = 0,
    answer_tokens: int | None = None,
    progress: bool = False,
) -> Iterator[Scripted]:
    """Yield the events of an attempt and their times, in order; the last is one `Ended` or `EndpointFailure`.

    Args:
        profile: the endpoint's numbers.
        request: the request to answer; `max_tokens` is respected.
        prefix: the answer so far.
        rng: source of all randomness in time; draws in a fixed order, so equal generators give equal scripts.
        endpoint: name for error messages.
        prompt_tokens: prompt and prefix length if a trace gives it; None: counted from the text.
        cached_tokens: how many of them need no prefill.
        answer_tokens: answer length if a trace gives it; None: from the profile.
        progress: report the prefill, every 64 tokens.

    Yields:
        `(at_s, event)`: seconds since the endpoint began to work on the attempt, never decreasing; `inf` means never.
    """
    if prompt_tokens is None:
        prompt_tokens = len(prompt_pieces(request.messages, prefix))
    room = math.inf if profile.context_tokens is None else profile.context_tokens - prompt_tokens
    if room <= 0:
        yield profile.overhead_s, simulated_failure(FailureKind.CONTEXT_LENGTH, endpoint)
        return

    prefill_s = (prompt_tokens - cached_tokens) / profile.prefill_tps
    first_at = profile.overhead_s + _draw(profile.ttft_s, rng) + prefill_s
    fault = profile.fault if profile.fault and rng.random() < profile.fault.probability else None
    speaks = fault is None or not fault.at_once
    before: list[Scripted] = []
    if speaks and profile.role_at_s is not None and profile.role_at_s <= first_at:
        before.append((profile.role_at_s, [Delta("", tokens=0, kind=DeltaKind.ROLE)]))
    if speaks and progress:
        before += reading(first_at, cached_tokens, prompt_tokens, profile.prefill_tps)
    yield from sorted(before, key=itemgetter(0))
    if prefix and profile.seam == "restarts":
        yield first_at, simulated_failure(FailureKind.SEAM, endpoint)
        return

    swallowed = swallowed_tokens(profile, prefix)
    pieces = _continuation(profile, request, prefix, answer_tokens)
    if profile.seam in ("doubts", "leaks"):
        pieces = tokenise(prefix.sent) + pieces
    limit = min(
        room - swallowed, math.inf if request.max_tokens is None else request.max_tokens - prefix.tokens
    )
    writes = pieces[: max(0, int(min(limit, len(pieces))))]

    at, gaps = first_at, _gaps(profile, rng)
    # Tokens that are removed take their time, packet by packet, but no event arrives.
    at += sum(itertools.islice(gaps, swallowed // profile.packet_tokens)) if writes else 0.0
    deltas = [Delta(piece) for piece in writes]
    size = profile.packet_tokens
    packets = [deltas[i : i + size] for i in range(0, len(deltas), size)]
    at = yield from play(packets, at, gaps, size=size, fault=fault, endpoint=endpoint)
    if math.isnan(at):
        return
    # A model whose answer is exactly as long as its limit does not write its end token.
    reason = "length" if len(writes) >= limit else "stop"
    generated = len(writes) + (swallowed if writes else 0)
    yield at, Ended(reason, Usage(prompt_tokens, generated, cached_tokens))
