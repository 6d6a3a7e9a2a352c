"""How large the pieces of a prompt are that a split model sends, and how long its drafter may run ahead.

A prompt goes through a row of stations: the shallow layers on the device, the uplink, the cloud's GPUs, the downlink.
Cut into chunks, its first rows are computed in the cloud while its last ones are still on their way.

Source: HAT (Xie et al., 2025), whose formulas (1), (2), (3) and (6) are here; `makespan_chunk` is ours. Where the paper
contradicts itself, a sentence says how that is settled. All functions are pure. Times are in seconds, sizes in bytes,
rates in bytes/s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite
from typing import Final, Literal, Protocol, get_args

from disco.speculate.seen import VerifyCurve

__all__ = [
    "Chunks",
    "CloudMonitor",
    "Curve",
    "PassTimes",
    "Reply",
    "SplitPath",
    "ahead_steps",
    "branch_depth",
    "chunk_of",
    "equation3",
    "even_pass",
    "makespan_chunk",
    "prompt_s",
]

Reply = Literal["last", "all"]
"""Which rows of a prompt come down. "last": that of its last position, all that the head needs. "all": every row, as in
the paper, whose baseline is slow for that reason above all."""

Chunks = Literal["makespan", "equation3", "all"] | int
"""How a prompt is cut: "makespan" minimises the exact recursion, "equation3" is the paper's, "all" sends it in one."""

_SLACK: Final = 0.05  # a larger chunk may take so much longer than the best one: no estimate is more exact
_EVERY: Final = 128  # chunk sizes up to here are all tried, beyond that in steps of a 32nd
_STEP: Final = 32
_FINE: Final = 16  # batches up to so many rows are remembered each by itself, larger ones in classes


class Curve(Protocol):
    """Seconds by rows, linear between known points; `VerifyCurve` is one."""

    def s(self, rows: int, /) -> float:
        """Return the seconds for so many rows."""


class PassTimes:
    """Seconds of a pass by its rows, as measured: linear between points, and in proportion to the rows beyond the last.

    Unlike those of a `VerifyCurve` the times may fall: from 64 rows on llama.cpp takes other kernels, so that a pass of
    64 rows behind a long text takes a quarter of the time of one of 63.

    Attributes:
        points: (rows, seconds), rising in rows.
        pass_rows: as given.

    Args:
        points: the same in any order, at least one.
        scale: all times are multiplied by it.
        pass_rows: of one pass, at most: more rows are computed in several passes (`even_pass`); None: in one.

    Raises:
        ValueError: there is no point, or one has rows below 1 or a time that no pass can have; or a pass has no rows.
    """

    __slots__ = ("_rows", "_seconds", "pass_rows", "points")

    def __init__(
        self, points: Iterable[Sequence[float]], scale: float = 1.0, *, pass_rows: int | None = None
    ) -> None:
        given = sorted({int(rows): scale * float(seconds) for rows, seconds in points}.items())
        if not given or any(rows < 1 or not 0 <= seconds < inf for rows, seconds in given):
            raise ValueError("times of passes need points with at least one row and a finite time each")
        if pass_rows is not None and pass_rows < 1:
            raise ValueError(f"a pass has at least 1 row, not {pass_rows}")
        self.points = tuple(given)
        self.pass_rows = pass_rows
        self._rows = [rows for rows, _ in given]
        self._seconds = [seconds for _, seconds in given]

    def s(self, rows: int) -> float:
        """Return the seconds of so many rows."""
        if self.pass_rows is None or rows <= self.pass_rows:
            return self._pass_s(rows)
        each = even_pass(rows, self.pass_rows)
        return ceil(rows / each) * self._pass_s(each)

    def _pass_s(self, rows: int) -> float:
        known, seconds = self._rows, self._seconds
        if rows <= known[0]:
            return seconds[0]
        if rows >= known[-1]:
            return seconds[-1] * rows / known[-1]
        right = bisect_right(known, rows)
        slope = (seconds[right] - seconds[right - 1]) / (known[right] - known[right - 1])
        return seconds[right - 1] + slope * (rows - known[right - 1])


def even_pass(rows: int, most: int) -> int:
    """Return how many of `rows` the next pass computes, where a pass computes at most `most`: all passes are alike.

    A short rest would be dear: 256 rows and then 12 take an eighth longer than twice 134 (see `PassTimes`).
    """
    return ceil(rows / ceil(rows / most))


@dataclass(frozen=True, slots=True)
class SplitPath:
    """What is known about one device, its link, and its cloud.

    Attributes:
        up_bps, down_bps: bytes/s; above 0, may be infinite.
        rtt_s: there and back, without payload.
        state_bytes: of one token's hidden state; `A` in the paper, 2 x hidden in fp16 (the paper names no format).
        device_s: of the shallow layers on the device, by rows.
        cloud_s: of a batch on all GPUs of the cloud, by all its rows; `g`.
        load: rows of other devices in a cloud batch; `mu`. 0: the cloud is idle.
        pipeline: GPUs in the cloud's pipeline, each of which takes its share of `cloud_s`; `P`.
    """

    up_bps: float
    down_bps: float
    rtt_s: float
    state_bytes: int
    device_s: Curve
    cloud_s: Curve
    load: float = 0.0
    pipeline: int = 1

    def __post_init__(self) -> None:
        if not (self.up_bps > 0 and self.down_bps > 0):
            raise ValueError(f"a path needs rates above 0, not {self.up_bps} up and {self.down_bps} down")
        if not (
            0 <= self.rtt_s < inf and 0 <= self.load < inf and self.state_bytes > 0 and self.pipeline > 0
        ):
            raise ValueError(
                "a path needs a finite rtt_s and load from 0 on, and state_bytes and pipeline above 0, not "
                f"{self.rtt_s}, {self.load}, {self.state_bytes}, {self.pipeline}"
            )


def equation3(path: SplitPath, prompt_tokens: int) -> int:
    """Return the chunk of the paper's (3): `X A / up = (g(load) + g(load + X)) / P`, in tokens.

    Sending a chunk takes as long as waiting for the running batch and computing. With `g = a + b x` that is
    `X = 2 (a + b load) / (P A / up - b)`, rounded up here: the least chunk that the cloud has done before the next one
    has come. Where the uplink is faster than the cloud there is no positive solution, of which the paper says
    nothing. Then chunks would only wait in the cloud, so the prompt is one chunk. (2) knows `g` at one point only;
    `Curve` interpolates.

    Args:
        path: where the prompt goes.
        prompt_tokens: of the prompt; at least 1.

    Raises:
        ValueError: no tokens.
    """
    _check(prompt_tokens)
    token_s = path.pipeline * path.state_bytes / path.up_bps
    running_s = _cloud_s(path, 0)
    for chunk in range(1, prompt_tokens):
        if chunk * token_s >= running_s + _cloud_s(path, chunk):
            return chunk
    return prompt_tokens


def makespan_chunk(
    path: SplitPath,
    prompt_tokens: int,
    *,
    sizes: Iterable[int] | None = None,
    reply: Reply = "last",
    slack: float = 0.0,
) -> int:
    """Return the chunk, in tokens, with which a prompt is through first, by `prompt_s`; of equals the largest.

    It is never slower than the paper's chunk, nor than the whole prompt: both are among what is tried.

    Args:
        path: where the prompt goes.
        prompt_tokens: of the prompt; at least 1.
        sizes: chunks to choose from, such as those that a server takes; None: any.
        reply: see `Reply`.
        slack: a larger chunk is taken where it takes by at most this share longer, and no longer than the paper's:
            times are measured, and many small chunks suffer more from what was not.

    Raises:
        ValueError: no tokens, or no sizes, or one below 1.
    """
    _check(prompt_tokens)
    if sizes is None:
        tried: set[int] = {
            equation3(path, prompt_tokens),
            prompt_tokens,
            *range(1, min(prompt_tokens, _EVERY) + 1),
        }
        size = _EVERY
        while (size := size + size // _STEP) < prompt_tokens:
            tried.add(size)
    else:
        tried = {min(size, prompt_tokens) for size in sizes}
    if not tried or min(tried) < 1:
        raise ValueError("chunks are chosen from at least one size, each of at least 1 token")
    times = {chunk: prompt_s(path, prompt_tokens, chunk, reply=reply) for chunk in tried}
    best_s = min(times.values())
    bound_s = max(best_s, min((1 + slack) * best_s, times.get(equation3(path, prompt_tokens), inf)))
    return max(chunk for chunk, seconds in times.items() if seconds <= bound_s)


def chunk_of(path: SplitPath, prompt_tokens: int, chunks: Chunks, *, reply: Reply, most: int) -> int:
    """Return the chunk in which a split endpoint sends a prompt, tokens.

    Args:
        path: where the prompt goes, as far as is known.
        prompt_tokens: of the prompt; at least 1.
        chunks: how prompts are cut.
        reply: see `Reply`.
        most: tokens that a chunk can have.
    """
    if chunks == "all":
        chunk = prompt_tokens
    elif isinstance(chunks, int):
        chunk = chunks
    elif chunks == "equation3":
        chunk = equation3(path, prompt_tokens)
    else:
        chunk = makespan_chunk(path, prompt_tokens, reply=reply, slack=_SLACK)
    return max(1, min(chunk, most))


def prompt_s(path: SplitPath, prompt_tokens: int, chunk: int, *, reply: Reply = "last") -> float:
    """Return the time from a prompt to its deep states on the device: TTFT without head and sampling.

    With `X_k` tokens in chunk `k`, `w` half a batch of others, `l` half a round trip, and P stations in the cloud:

        S_k = S_{k-1} + device(X_k)
        U_k = max(U_{k-1}, S_k) + X_k A / up
        C_{k,1} = max(C_{k-1,1}, U_k + l + w) + g(load + X_k) / P
        C_{k,p} = max(C_{k-1,p}, C_{k,p-1}) + g(load + X_k) / P
        D_k = max(D_{k-1}, C_{k,P}) + X_k A / down         ("all"; with "last" one row, after the last chunk)

    and the end is `D + l`. All chunks but the last are equal, so that their part of the recursion is solved: `k` of
    them have left a station after the sum of the times up to it, and `k - 1` times the longest of these.

    Args:
        path: where the prompt goes.
        prompt_tokens: of the prompt; at least 1.
        chunk: tokens of a chunk; from `prompt_tokens` on the prompt is one chunk. The last one has the rest.
        reply: see `Reply`.

    Raises:
        ValueError: no tokens, or an unknown reply.
    """
    _check(prompt_tokens, chunk)
    if reply not in get_args(Reply):
        raise ValueError(f"a reply has the rows {' or '.join(get_args(Reply))}, not {reply!r}")
    chunk = min(chunk, prompt_tokens)
    full, rest = divmod(prompt_tokens, chunk)
    if not rest:
        full, rest = full - 1, chunk
    # The wait for the running batch is a whole one in (3): the worst case. It is half of one on average, and below one
    # row of load the cloud is idle for a part of the time.
    wait_s = min(1.0, path.load) * _cloud_s(path, 0) / (2 * path.pipeline) if path.load else 0.0
    delays = (0.0, 0.0, path.rtt_s / 2 + wait_s)
    ready_s = done_s = longest_s = 0.0
    first, last = _stations(path, chunk, reply), _stations(path, rest, reply)
    for place, (each_s, last_s) in enumerate(zip(first, last, strict=True)):
        delay_s = delays[place] if place < len(delays) else 0.0
        ready_s += delay_s  # of the last chunk, at this station
        if full:
            done_s += delay_s + each_s  # the first one's end, and with it that of all full ones
            longest_s = max(longest_s, each_s)
            ready_s = max(ready_s, done_s + (full - 1) * longest_s)
        ready_s += last_s
    if reply == "last":
        ready_s += path.state_bytes / path.down_bps
    return ready_s + path.rtt_s / 2


def _stations(path: SplitPath, rows: int, reply: Reply) -> list[float]:
    """Return how long a chunk is at each station, in order: device, uplink, the cloud's GPUs, downlink."""
    size = rows * path.state_bytes
    stages = [_cloud_s(path, rows) / path.pipeline] * path.pipeline
    times = [path.device_s.s(rows), size / path.up_bps, *stages]
    return [*times, size / path.down_bps] if reply == "all" else times


def ahead_steps(path: SplitPath, drafted: int, step_s: float, *, rtt: bool = True) -> int:
    """Return how many tokens can be drafted while a draft is verified: the paper's (6), lambda.

    As printed, (6) has no round trip, takes `g(load)` though the draft's rows are in the batch too, and forgets the
    row of the model's own token before the draft. With short drafts the round trip is most of it, so by default all
    three are counted.

    Args:
        path: where the draft goes.
        drafted: tokens of the draft that is verified; at least 0.
        step_s: of one draft step; above 0.
        rtt: whether to count what is missing; False: the formula as it is printed.

    Raises:
        ValueError: a number out of range.
    """
    if drafted < 0 or not step_s > 0:
        raise ValueError(f"a draft has at least 0 tokens, and steps above 0 s; not {drafted} and {step_s}")
    rows = drafted + 1 if rtt else drafted
    moving_s = rows * path.state_bytes * (1 / path.up_bps + 1 / path.down_bps)
    away_s = moving_s + (path.rtt_s + _cloud_s(path, rows) if rtt else _cloud_s(path, 0))
    # The quotient of two times may be just below a whole number that it stands for.
    return floor(away_s / step_s * (1 + 1e-12))


def branch_depth(path: SplitPath, drafted: int, step_s: float, *, branches: int, steps: int) -> int:
    """Return how many tokens are drafted behind each branch: (6), shared by the branches, which are drafted in turn.

    Args:
        path: where the draft goes.
        drafted: tokens of the draft that is verified; at least 0.
        step_s: of one draft step; 0: not measured yet.
        branches: how many; at least 1.
        steps: most tokens behind each.
    """
    if step_s <= 0:
        return 1
    return max(1, min(steps, ahead_steps(path, drafted, step_s) // branches))


def _cloud_s(path: SplitPath, rows: int) -> float:
    """Return g(load + rows). The load is an average, so it may lie between two whole numbers of rows."""
    whole = floor(path.load)
    part = path.load - whole
    below_s = path.cloud_s.s(whole + rows)
    return below_s + part * (path.cloud_s.s(whole + rows + 1) - below_s) if part else below_s


def _check(prompt_tokens: int, chunk: int = 1) -> None:
    if prompt_tokens < 1 or chunk < 1:
        raise ValueError(f"a prompt and a chunk have at least 1 token, not {prompt_tokens} and {chunk}")


class CloudMonitor:
    """Moving averages of a cloud's batches: the paper's (1) and (2). Mutable: `_load`, `_seen`.

    As printed, (2) credits a batch's time to the averaged load, whatever the batch had in it. Here it is credited to
    the rows that it had, and `curve` interpolates between the rows that were seen.

    Attributes:
        batches: how many were seen.

    Args:
        old_share: weight of the old average, alpha in the paper.
    """

    __slots__ = ("_load", "_old", "_seen", "batches")

    def __init__(self, *, old_share: float = 0.8) -> None:
        if not 0 <= old_share < 1:
            raise ValueError(f"the weight of the old average is at least 0 and below 1, not {old_share}")
        self._old = old_share
        self._load = 0.0
        self._seen: dict[int, tuple[float, float]] = {}  # by class: mean rows, mean seconds
        self.batches = 0

    def batch(self, rows: int, seconds: float, *, load: int | None = None) -> None:
        """Learn a batch.

        Args:
            rows: all of it; at least 1.
            seconds: its computing time, s.
            load: of its rows those that count as load, as without the rows of the device that asks; None: all.

        Raises:
            ValueError: a number out of range.
        """
        if rows < 1 or not (seconds >= 0 and isfinite(seconds)):
            raise ValueError(f"a batch has at least 1 row and a finite time, not {rows} and {seconds}")
        counted = float(rows if load is None else load)
        self._load = self._mean(self._load, counted) if self.batches else counted
        self.batches += 1
        # Classes of an eighth of an octave, so that a day's batches remain a few dozen points.
        place = rows if rows <= _FINE else _FINE + 1 + 8 * (rows.bit_length() - 5) + _eighth(rows)
        old = self._seen.get(place)
        self._seen[place] = (
            (float(rows), seconds) if old is None else (self._mean(old[0], rows), self._mean(old[1], seconds))
        )

    @property
    def load(self) -> float:
        """The averaged rows of a batch: `mu`; 0 before the first batch."""
        return self._load

    def curve(self) -> VerifyCurve | None:
        """Return `g` through all that was seen, or None before the first batch."""
        if not self._seen:
            return None
        return VerifyCurve((round(rows), seconds) for rows, seconds in self._seen.values())

    def _mean(self, old: float, new: float) -> float:
        return self._old * old + (1 - self._old) * new


def _eighth(rows: int) -> int:
    """Return in which eighth of its octave a number lies, 0 to 7."""
    return (rows >> (rows.bit_length() - 4)) & 7
