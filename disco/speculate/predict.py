"""How many tokens a round gives and how long it takes: the arithmetic that windows are chosen by.

A drafted token is taken to be right with the same probability `a`, whatever was right before. Symbols: `n` drafted
tokens of a window, `d` time per drafted token, `V` the time from the end of a window's draft to its verdict: network
round trip, wait at the target, and one batch of the target.

In turn (one window in flight): a round takes `T(n) = n d + V` and gives `E(n) = (1 - a^(n+1)) / (1 - a)` tokens, that
of the target included. Time per token: `T / E`.

In parallel (`P` windows in flight, P > 1): while a window is verified, the drafter goes on from its own last token.
So the next window begins with the drafter's own guess of the token that the target adds to the window before it, and a
window behind another one gives `n` new tokens, not `n + 1`. Call what is drafted between two corrections a streak. Of
its drafted tokens `f` are right before the first wrong one: `P(f) = a^f (1 - a)`. The streak gives `f + 1` tokens, on
average `1 / (1 - a)`. Window 0 reveals `f <= n`, its bonus included; window `j >= 1` reveals `j n < f <= (j + 1) n`.
So the streak lasts until at least the verdict of window `j >= 1` with probability `a^(j n + 1)`. That verdict comes
`gap_j` after the one before it. In a pipeline with constant times and `P` windows, `gap_j` is that of its slowest
stage, `b = max(n d, batch)`, except where the drafter had to wait for a place: for `j` a multiple of `P` it is
`g = max(b, n d + V - (P - 1) b)`. Summed over `j`, the expected time of a streak is

    n d + V  +  b a^(n+1) / (1 - a^n)  +  (g - b) a^(P n + 1) / (1 - a^(P n))

and, times `(1 - a)`, it is the time per token. What is drafted and sent behind a wrong token costs no time: the draft
is broken off at the verdict, and the server computes nothing for a window whose beginning is refuted.

Two assumptions matter for windows of one token only, where the formula is off by up to a quarter. The guess of the
bonus is drafted before the verdict comes (`d < V`); if not, it is drafted in vain. And a window behind one whose *last*
token was wrong gives nothing; in truth the server cannot know that it was drafted in vain, and answers one token.
"""

from __future__ import annotations

from math import expm1, log

from disco.speculate.seen import Seen

__all__ = ["best_window", "equation1", "equation2", "round_s", "token_s", "tokens_per_round"]


def tokens_per_round(acceptance: float, window: int) -> float:
    """Return the expected tokens of a round drafted in turn, that of the target included.

    Args:
        acceptance: probability that a drafted token is right, 0 to 1.
        window: drafted tokens.
    """
    return _powers(acceptance, window + 1)


def round_s(window: int, seen: Seen) -> float:
    """Return the seconds of a round drafted in turn; for window 0, of a token in the stream of the target alone."""
    if window <= 0:
        return seen.queue_s + seen.verify.s(1)
    return window * seen.draft_s + seen.round_trip_s + seen.queue_s + seen.verify.s(window + 1)


def token_s(window: int, seen: Seen, parallel: int = 1) -> float:
    """Return the expected seconds per token.

    Args:
        window: drafted tokens of a round. 0 is the target alone, which streams its tokens: no round trip between them.
        seen: the measurements.
        parallel: number of windows in flight; 1 is strictly in turn. See the module for the formula.
    """
    if window <= 0:
        return round_s(0, seen)
    a = seen.acceptance
    if parallel <= 1:
        return round_s(window, seen) / tokens_per_round(a, window)
    draft = window * seen.draft_s
    batch = seen.verify.s(window)  # behind another window: one row less, its first token is settled by then
    slowest = max(draft, batch)
    wait = draft + seen.round_trip_s + seen.queue_s + batch
    gap = max(slowest, wait - (parallel - 1) * slowest)
    alone = max(0.0, 1 - a) * round_s(window, seen)
    behind = slowest * a ** (window + 1) / _powers(a, window)
    many = parallel * window
    return alone + behind + (gap - slowest) * a ** (many + 1) / _powers(a, many)


def best_window(seen: Seen, highest: int, parallel: int = 1) -> tuple[int, float]:
    """Return the window from 0 to `highest` with the lowest time per token, and that time in s.

    Of equal ones the smaller is returned: it costs less.
    """
    best, best_s = 0, token_s(0, seen)
    for window in range(1, highest + 1):
        seconds = token_s(window, seen, parallel)
        if seconds < best_s:
            best, best_s = window, seconds
    return best, best_s


def equation1(acceptance: float, window: int) -> float:
    """Return equation (1) of the DSD paper.

    What is wrong about it: the paper calls it the accepted draft tokens of a round, but it counts the target's own
    token too; the accepted ones are one less.
    """
    return tokens_per_round(acceptance, window)


def equation2(acceptance: float, window: int, cost_ratio: float) -> float:
    """Return equation (2) of the DSD paper: the speed-up over the target alone.

    What is wrong about it: it knows neither the network's round trip nor the target's queue, and takes a batch of
    `window + 1` rows to cost what one row costs; `token_s` has all three.

    Args:
        acceptance: probability that a drafted token is right.
        window: drafted tokens of a round.
        cost_ratio: time of a drafted token over that of a token of the target.
    """
    return tokens_per_round(acceptance, window) / (cost_ratio * window + 1)


def _powers(base: float, count: int) -> float:
    """Return 1 + base + base^2 + ..., `count` terms."""
    if base <= 0:
        return 1.0
    if base >= 1:
        return float(count)
    return expm1(count * log(base)) / (base - 1)
