"""What the plots of docs/concepts/policies.md show, computed by disco's own policies on the profiles that it ships.

`python docs/pictures/plots.py` draws them. A test computes the series again and compares them with those that were
drawn (`plots.json`), so no plot can show what the code no longer does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch import LengthThreshold, OptimalWait, Race, RandomSplit, WaitTime
from disco.dispatch.assist_solver import AssistCase, least_tokens
from disco.dispatch.policies.baselines import DeviceOnly, ServerOnly
from disco.dispatch.policies.policy import Policy
from disco.judging.score_history import ScoreHistory
from disco.judging.threshold_rules import judge
from disco.profiles import Empirical, Lengths, load_device, load_server
from disco.replay import alpaca_like
from disco.replay.vector.arm_delays import delays
from disco.session.switching.answer_lengths import AnswerLengths
from disco.speculate.chunks import PassTimes, SplitPath, equation3, makespan_chunk, prompt_s
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve

__all__ = ["SERIES", "Figure"]

Line = dict[str, list[float]]
"""The points of one line: {"x": [...], "y": [...]}."""

Figure = dict[str, Line]
"""The lines of one plot, by the name in its legend."""

_REQUESTS: Final = 20_000
_SEED: Final = 17
_TOKENS: Final = np.arange(1, 121, dtype=np.int64)
_SEQUENCES: Final = 20
_BUDGET: Final = 0.3
_TEMPLATE: Final = 30  # tokens; then the device is slower than the server for most prompts


def _device() -> Candidate:
    profile = load_device("pixel7pro-bloom-1.1b")
    return Candidate("device", "device", prefill_tps=profile.prefill_tps, decode_tps=profile.decode_tps)


class _Workload(NamedTuple):
    """20,000 requests; times in s, float64, shape (n,), as if both sides started at 0."""

    lengths: Lengths
    ttft: Empirical
    tokens: NDArray[np.int64]
    device_s: NDArray[np.float64]
    server_s: NDArray[np.float64]


def _workload(template_tokens: int = 0) -> _Workload:
    """Return prompts as long as Alpaca's, with a chat template of so many tokens before them."""
    tokens = alpaca_like(_REQUESTS, _SEED).prompt_tokens + template_tokens
    lengths = Lengths.from_samples(tokens)
    ttft = load_server("deepseek-v3-2025").ttft_s.empirical()
    rng = np.random.default_rng(_SEED)
    return _Workload(lengths, ttft, tokens, tokens / _device().prefill_tps, ttft.sample(rng, _REQUESTS))


def _ttft_s(policy: Policy, template_tokens: int = 0) -> NDArray[np.float64]:
    _, _, tokens, device_s, server_s = _workload(template_tokens)
    starts = delays(policy, tokens)
    assert starts is not None
    return np.minimum(starts.device_s + device_s, starts.server_s + server_s)


def _line(x: object, y: object) -> Line:
    return {"x": [round(float(v), 6) for v in x], "y": [round(float(v), 6) for v in y]}  # type: ignore[attr-defined]


def baselines() -> Figure:
    """The time to first token, s, by the share of requests answered by then."""
    levels = np.linspace(0, 0.995, 200)
    arms: dict[str, Policy] = {"device_only": DeviceOnly(), "server_only": ServerOnly(), "race": Race()}
    return {name: _line(np.quantile(_ttft_s(arm), levels), levels) for name, arm in arms.items()}


def length_threshold() -> Figure:
    """The share of all tokens in prompts up to a length, and the lengths from which prompts race, by budget."""
    lengths, *_ = _workload()
    shares = np.cumsum(lengths.lengths * lengths.p) / lengths.mean()
    figure = {"share of all prompt tokens": _line(lengths.lengths, shares)}
    for budget in (0.2, 0.5, 0.8):
        plan = LengthThreshold.fitted(lengths, budget=budget, rng=np.random.default_rng(0)).plan
        figure[f"b = {budget}: longer prompts race"] = _line([plan.boundary_tokens] * 2, [0.0, 1.0 - budget])
    return figure


def waits() -> Figure:
    """How long the device waits for the server, s, by the length of the prompt."""
    lengths, ttft, *_ = _workload()
    figure = {}
    for form in ("boundary", "slope"):
        shares, seconds = WaitTime.fitted(
            lengths, ttft, budget=_BUDGET, tail=0.05, rng=np.random.default_rng(0), form=form
        ).plan.waits(_TOKENS)
        figure[f"wait_time, form {form}"] = _line(_TOKENS, (shares * np.where(shares > 0, seconds, 0)).sum(0))
    optimal = OptimalWait(lengths, ttft, _device(), budget=_BUDGET, rng=np.random.default_rng(0))
    seconds = optimal.waits_s(_TOKENS)
    starts = np.isfinite(seconds)
    figure["optimal_wait"] = _line(_TOKENS[starts], seconds[starts])
    return figure


def _by_budget(make: dict[str, Callable[[float], Policy]], template_tokens: int = 0) -> Figure:
    budgets = np.linspace(0.0, 1.0, 21)
    return {
        name: _line(budgets, [_ttft_s(arm(b), template_tokens).mean() for b in budgets])
        for name, arm in make.items()
    }


def server_budget() -> Figure:
    """The mean time to first token, s, by the share of prompt tokens that the server may read."""
    lengths, *_ = _workload(_TEMPLATE)
    rng = np.random.default_rng
    return _by_budget(
        {
            "random": lambda b: RandomSplit(budget=b, constrained="server", rng=rng(0)),
            "length_threshold": lambda b: LengthThreshold.fitted(lengths, budget=b, rng=rng(0)),
        },
        _TEMPLATE,
    )


def device_budget() -> Figure:
    """The mean time to first token, s, by the share of prompt tokens that the device may read."""
    lengths, ttft, *_ = _workload()
    rng = np.random.default_rng
    return _by_budget(
        {
            "random": lambda b: RandomSplit(budget=b, constrained="device", rng=rng(0)),
            "wait_time": lambda b: WaitTime.fitted(lengths, ttft, budget=b, tail=0.05, rng=rng(0)),
            "optimal_wait": lambda b: OptimalWait(lengths, ttft, _device(), budget=b, rng=rng(0)),
        }
    )


def assist() -> Figure:
    """The answer's tokens by time, s: written by the server, shown to the reader, written by the device."""
    case = AssistCase(
        prompt_tokens=400,
        server_ttft_s=0.6,
        server_tpot_s=0.02,
        device_read_s=1 / 80,
        device_tpot_s=0.1,
        slowest_tpot_s=0.2,
        lengths=AnswerLengths.geometric(200),
    )
    share = least_tokens(case, case.read_s())
    assert isinstance(share, int)
    first_s, kept = case.server_ttft_s, share - case.lost_at_cut
    ready_s, end = case.ready_s(case.read_s(), share), 60
    return {
        f"the server writes its share, {share} tokens": _line(
            [first_s, first_s + (share - 1) * case.server_tpot_s], [1, share]
        ),
        "the reader sees": _line([first_s, first_s + (end - 1) * case.slowest_tpot_s], [1, end]),
        "the device reads, then writes the rest": _line(
            [case.read_s(), ready_s, ready_s + (end - kept - 1) * case.device_tpot_s], [0, kept, end]
        ),
    }


def cascade() -> Figure:
    """The share of answers handed up so far, by the number of answers, under the exact rule and the paper's.

    It is the mean of some sequences: that of a single one is off by several hundredths even after 400 answers.
    """
    figure = {}
    scores = np.round(np.random.default_rng(_SEED).beta(8, 2, (_SEQUENCES, 400)), 2)  # so some are equal
    for beta in (0.2, 0.5):
        for rule in ("exact", "paper"):
            rises = np.zeros(scores.shape)
            for number, sequence in enumerate(scores):
                history = ScoreHistory(capacity=1000)
                rises[number] = [
                    judge(float(score), history, beta, rule=rule, seed=number).rises for score in sequence
                ]
            counts = np.arange(1, scores.shape[1] + 1)
            shares = np.cumsum(rises.mean(axis=0)) / counts
            figure[f"β = {beta}, rule {rule}"] = _line(counts[4::5], shares[4::5])
    return figure


def drafting() -> Figure:
    """Seconds per token by the window, for three shares of accepted tokens, in turn and in parallel."""
    curve = VerifyCurve([(1, 0.060), (9, 0.075), (17, 0.110)])
    windows = range(17)
    figure = {}
    for acceptance in (0.6, 0.8, 0.9):
        seen = Seen(acceptance=acceptance, draft_s=0.008, round_trip_s=0.030, verify=curve)
        for parallel, how in ((1, "in turn"), (2, "two in flight")):
            seconds = [1000 * token_s(window, seen, parallel) for window in windows]
            figure[f"{acceptance:.0%} accepted, {how}"] = _line(windows, seconds)
    return figure


def split() -> Figure:
    """Seconds until a split prompt of 512 tokens is read, by the size of its chunks, and the chosen sizes."""
    path = SplitPath(
        up_bps=1e6,
        down_bps=2e6,
        rtt_s=0.02,
        state_bytes=1152,  # SmolLM2-135M: 576 values of 2 bytes
        device_s=PassTimes([(1, 0.004), (512, 0.35)]),
        cloud_s=PassTimes([(1, 0.03), (64, 0.06), (512, 0.30)]),
    )
    chosen = {"equation (3) of HAT": equation3(path, 512), "least makespan": makespan_chunk(path, 512)}
    sizes = sorted({8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, *chosen.values()})
    return {
        "time until the prompt is read": _line(sizes, [prompt_s(path, 512, size) for size in sizes]),
        **{f"{name}: {size}": _line([size], [prompt_s(path, 512, size)]) for name, size in chosen.items()},
    }


SERIES: Final[dict[str, Callable[[], Figure]]] = {
    "plot-baselines": baselines,
    "plot-length-threshold": length_threshold,
    "plot-waits": waits,
    "plot-server-budget": server_budget,
    "plot-device-budget": device_budget,
    "plot-assist": assist,
    "plot-cascade": cascade,
    "plot-drafting": drafting,
    "plot-split": split,
}
