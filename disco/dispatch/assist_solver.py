"""How many tokens the server writes while the device reads the prompt (P/D-Device): numbers only, in closed form.

The server is capped at L tokens and shows its first one at C. The device reads the prompt from the time of the request,
then the server's tokens as they come, and goes on. The cut falls on a word boundary, so the last `lost_at_cut` of the L
tokens are dropped and L' = L − lost_at_cut are shown. The display shows one token every τ seconds at the slowest.

With k the device's seconds per token read, p the server's per token written, R the time at which the device has read
the prompt, o the device's overhead and A = C + (L−1)·p the arrival of the server's last token, the device's first token
comes at `max(max(R, C) + k·L', A + b·k) + o`, because it reads the server's tokens while they arrive, in batches: at
most b of them are unread at A. It is due at `C + τ·L'`. So no token is late when

    L' >= (max(R − C, 0) + o)/(τ − k)    and    L' >= ((lost_at_cut − 1)·p + b·k + o)/(τ − p),

and neither side writes slower than τ. Eqs. 4 and 6 of the paper have the device write the server's tokens again, and
let it read from 0 and from C at once; `examples/papers/pd_device/paper_forms.py` has them as printed.

A larger C moves the due time at least as far as the device's first token. So an L that is enough for a fast server is
enough for a slow one: give a low quantile of the server's time to first token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from disco.rates import Rates

__all__ = [
    "AnswerSurvival",
    "AssistCase",
    "NoShare",
    "Refining",
    "Share",
    "best_share",
    "least_tokens",
    "shares",
]

_ROUNDING_S: Final = 1e-9
_FREE: Final = Rates()


class AnswerSurvival(Protocol):
    """The distribution of answer lengths N; `session.switching.answer_lengths.AnswerLengths` is one."""

    def survival(self, n: int, /) -> float:
        """Return `P(N > n)`, n in tokens."""
        ...

    def expected_remaining(self, n: int, /) -> float:
        """Return `E[N − n | N > n]`, tokens."""
        ...


class NoShare(StrEnum):
    """Why the server writes no capped beginning."""

    SERVER_PACE = "server_pace"  # the server writes slower than the slowest pace, or too close to it
    DEVICE_PACE = "device_pace"  # the device writes slower than the slowest pace
    READING_PACE = "reading_pace"  # the device reads the server's tokens no faster than they are shown
    TOO_MANY = "too_many"  # the device needs more time than the largest share allows
    NOT_CHEAPER = "not_cheaper"  # a share is possible, but the server alone is expected to cost less


@dataclass(frozen=True, slots=True)
class Refining:
    """A way to shorten the prompt that the device reads.

    Attributes:
        name: the selector's name, for records and tables.
        kept: r, the share of the tokens that remains, in (0, 1].
        ready_s: when the mask is there, s: after the request, or after the server's first token.
        by_server: whether the server makes the mask, so that `ready_s` counts from its first token.
    """

    name: str
    kept: float
    ready_s: float = 0.0
    by_server: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.kept <= 1 and 0 <= self.ready_s < math.inf):
            raise ValueError(
                f"kept must lie in (0, 1], and ready_s must be finite and not negative: {self!r}"
            )


@dataclass(frozen=True, slots=True)
class AssistCase:
    """What the solver knows of one request. All times are seconds; all paces are seconds per token.

    Attributes:
        prompt_tokens: l.
        server_ttft_s: C; a low quantile, see the module.
        server_tpot_s: p.
        device_read_s: k.
        device_tpot_s: the device's pace of writing.
        slowest_tpot_s: τ.
        lengths: distribution of answer lengths, capped at the request's limit.
        server_rates: unified cost per token at the server.
        device_rates: unified cost per token at the device.
        device_overhead_s: o, from the last token read to the device's first token.
        cached_tokens: the tokens of the prompt that the device need not read again.
        refinings: the refiners that are on.
        lost_at_cut: tokens that are dropped because the cut goes back to a word boundary.
        batch_tokens: b, the most of the server's tokens that are unread when the last of them comes, at least 1.
        most_tokens: the largest L allowed; None for no limit.
    """

    prompt_tokens: int
    server_ttft_s: float
    server_tpot_s: float
    device_read_s: float
    device_tpot_s: float
    slowest_tpot_s: float
    lengths: AnswerSurvival
    server_rates: Rates = _FREE
    device_rates: Rates = _FREE
    device_overhead_s: float = 0.0
    cached_tokens: int = 0
    refinings: tuple[Refining, ...] = ()
    lost_at_cut: int = 2
    batch_tokens: int = 1
    most_tokens: int | None = None

    def __post_init__(self) -> None:
        times = (self.server_ttft_s, self.server_tpot_s, self.device_read_s, self.device_tpot_s)
        if not all(0 <= time < math.inf for time in (*times, self.device_overhead_s)):
            raise ValueError(f"the times of server and device must be finite and not negative: {self!r}")
        if not 0 < self.slowest_tpot_s < math.inf:
            raise ValueError(f"slowest_tpot_s must be finite and positive, not {self.slowest_tpot_s}")
        if not 0 <= self.cached_tokens <= self.prompt_tokens:
            raise ValueError(f"cached_tokens must lie between 0 and prompt_tokens: {self!r}")
        if self.lost_at_cut < 0:
            raise ValueError(f"lost_at_cut must not be negative, but is {self.lost_at_cut}")

    def read_tokens(self, refining: Refining | None = None) -> float:
        """Return how many prompt tokens the device reads: all until the mask is there, of the rest the kept ones.

        Args:
            refining: the refiner that makes the mask; None: there is no mask.
        """
        unread = self.prompt_tokens - self.cached_tokens
        if refining is None or self.device_read_s == 0:
            return unread
        mask_s = refining.ready_s + (self.server_ttft_s if refining.by_server else 0.0)
        before_mask = min(unread, mask_s / self.device_read_s)
        return before_mask + refining.kept * (unread - before_mask)

    def read_s(self, refining: Refining | None = None) -> float:
        """Return R, the time after the request at which the device has read the prompt (with `refining`, if any), s."""
        return self.read_tokens(refining) * self.device_read_s

    def ready_s(self, read_s: float, tokens: int) -> float:
        """Return when the device's first token comes, s after the request.

        Args:
            read_s: R, when the device has read the prompt, s after the request.
            tokens: L, the tokens that the server writes.
        """
        arrived_s = self.server_ttft_s + (tokens - 1) * self.server_tpot_s
        along_s = max(read_s, self.server_ttft_s) + (tokens - self.lost_at_cut) * self.device_read_s
        return max(along_s, arrived_s + self.batch_tokens * self.device_read_s) + self.device_overhead_s

    def due_s(self, tokens: int) -> float:
        """Return when the reader needs the device's first token, s after the request; the server writes `tokens`."""
        return self.server_ttft_s + (tokens - self.lost_at_cut) * self.slowest_tpot_s


@dataclass(frozen=True, slots=True)
class Share:
    """A division of one answer between server and device, or the reason why there is none.

    Attributes:
        tokens: L, the server's cap; None where the server writes the whole answer.
        cost: expected unified cost of the request, money.
        first_token_s: expected time to first token for the reader, s.
        read_s: when the device has read the prompt, s after the request; 0 without a device.
        ready_s: when the device's first token comes, s after the request; 0 without a device.
        refining: the refiner; None: the device reads the whole prompt.
        reason: why `tokens` is None; None where it is not, and for the plain candidate "server alone" of `shares`.
    """

    tokens: int | None
    cost: float
    first_token_s: float
    read_s: float = 0.0
    ready_s: float = 0.0
    refining: Refining | None = None
    reason: NoShare | None = None

    @property
    def kept(self) -> float:
        """r, the share of the unread prompt that remains once the mask is there."""
        return 1.0 if self.refining is None else self.refining.kept


def least_tokens(case: AssistCase, read_s: float) -> int | NoShare:
    """Return the smallest L with which no token is late, or why there is none.

    At least one token of the server is shown, so that the reader need not wait for the device.

    Args:
        case: the request.
        read_s: R, when the device has read the prompt, s after the request.
    """
    slowest_s, written_s, k = case.slowest_tpot_s, case.server_tpot_s, case.device_read_s
    if written_s > slowest_s:
        return NoShare.SERVER_PACE
    if case.device_tpot_s > slowest_s:
        return NoShare.DEVICE_PACE
    overhead_s = case.device_overhead_s
    for_prompt = _least(max(read_s - case.server_ttft_s, 0.0) + overhead_s, slowest_s - k)
    if for_prompt is None:
        return NoShare.READING_PACE
    unread_s = case.batch_tokens * k
    for_last_token = _least((case.lost_at_cut - 1) * written_s + unread_s + overhead_s, slowest_s - written_s)
    if for_last_token is None:
        return NoShare.SERVER_PACE
    tokens = max(for_prompt, for_last_token) + case.lost_at_cut
    if case.most_tokens is not None and tokens > case.most_tokens:
        return NoShare.TOO_MANY
    return tokens


def shares(case: AssistCase) -> Iterator[Share]:
    """Yield every candidate for the `case`: the server alone, the whole prompt on the device, and each refiner.

    An infeasible candidate has a reason.
    """
    answer_tokens = case.lengths.survival(0) * case.lengths.expected_remaining(0)
    alone = case.server_rates.cost(case.prompt_tokens, 0) + case.server_rates.cost_out * answer_tokens
    yield Share(None, alone, case.server_ttft_s)
    for refining in (None, *case.refinings):
        read_tokens = case.read_tokens(refining)
        read_s = read_tokens * case.device_read_s
        tokens = least_tokens(case, read_s)
        if isinstance(tokens, NoShare):
            yield Share(None, alone, case.server_ttft_s, refining=refining, reason=tokens)
            continue
        ready_s = case.ready_s(read_s, tokens)
        first_s = min(case.server_ttft_s, read_s + case.device_overhead_s)
        cost = _cost(case, read_tokens, tokens, answer_tokens)
        yield Share(tokens, cost, first_s, read_s, ready_s, refining)


def best_share(case: AssistCase) -> Share:
    """Return the cheapest division of the `case`; of equally cheap ones the first of `shares`.

    Where no division is feasible, or the server alone is cheapest, `tokens` is None and `reason` says why. Where all
    candidates are infeasible, it is the reason of the last one.
    """
    alone, *divided = shares(case)
    feasible = [share for share in divided if share.reason is None]
    if not feasible:
        return divided[-1]
    best = min(feasible, key=lambda share: share.cost)
    if alone.cost <= best.cost:
        return Share(None, alone.cost, alone.first_token_s, reason=NoShare.NOT_CHEAPER)
    return best


def _least(needed_s: float, gained_s: float) -> int | None:
    """Return the smallest n >= 1 with `n·gained_s >= needed_s`; None where there is none."""
    if needed_s <= gained_s + _ROUNDING_S:
        return 1
    return math.ceil((needed_s - _ROUNDING_S) / gained_s) if gained_s > 0 else None


def _cost(case: AssistCase, read_tokens: float, tokens: int, answer_tokens: float) -> float:
    """Return the expected cost of a division.

    The device is charged for the whole prompt even where the answer ends before it has read it: the cost is an upper
    bound there. Where the answer is longer than L, the device also writes the tokens that were lost at the cut.
    """
    goes_on = case.lengths.survival(tokens)
    left = goes_on * case.lengths.expected_remaining(tokens)
    written_by_server = answer_tokens - left
    device = case.device_rates
    return (
        case.server_rates.cost(case.prompt_tokens, 0)
        + case.server_rates.cost_out * written_by_server
        + device.cost_in * (read_tokens + device.cached_share * case.cached_tokens + written_by_server)
        + device.cost_out * (left + goes_on * case.lost_at_cut)
    )
