"""What the reader, the server and the device get on drawn requests: each with the solver's own choice of L.

The arms compute closed forms. `run_situation` takes other arms, such as sessions in virtual time: an arm returns the
time to first token of every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.assist_solver import AssistCase, NoShare, Refining, Share, best_share
from disco.profiles import Empirical, Price, load_lengths, load_paper_prices, load_server
from disco.rates import Rates
from disco.session.switching.answer_lengths import AnswerLengths
from papers.pd_device.assist_play import LEXICAL, assist_case
from papers.pd_device.assumptions import CLOUD, KEPT, LONGEST_ANSWER, DeviceSpeed
from papers.pd_device.request_mix import Requests

__all__ = [
    "ASSIST",
    "DEVICE",
    "LEVELS",
    "LOW_QUANTILE",
    "PAPER_DEVICE",
    "SERVER",
    "Situation",
    "SituationResult",
    "TtftArms",
    "cases_of",
    "closed_forms",
    "run_situation",
    "servers",
]

SERVER: Final = "server only"
DEVICE: Final = "device only"
ASSIST: Final = "assist"
PAPER_DEVICE: Final = "paper's TTFT_d"

LOW_QUANTILE: Final = 0.01
"""The quantile of the server's TTFT that L is computed for."""
LEVELS: Final = (*(round(0.025 * i, 3) for i in range(40)), 0.99)
"""Levels of the distributions that are kept."""

_DEFAULT_TPOT_S: Final = 0.02
_LENGTHS: Final = "lengths-azure-conv-2023"
_PRICE: Final = "gpt-4o-mini"
_EPS_S: Final = 1e-9

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """A server.

    Attributes:
        name: in tables.
        ttft: distribution of its time to first token; None: the paper's cloud, by prompt length.
        tpot_s: mean pace of its tokens, s.
        rates: prices of its tokens.
    """

    name: str
    ttft: Empirical | None
    tpot_s: float
    rates: Rates

    def low_s(self, prompt_tokens: int, level: float) -> float:
        """Return that quantile of the time to first token, s."""
        return CLOUD.token_s(prompt_tokens) if self.ttft is None else self.ttft.quantile(level)

    def draw(self, requests: Requests, seed: int) -> Floats:
        """Return a time to first token for each request, s, shape (n,)."""
        if self.ttft is None:
            return np.array([CLOUD.token_s(tokens) for tokens in requests.prompt_tokens.tolist()])
        return self.ttft.sample(np.random.default_rng(seed), len(requests))


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """Requests on one server and one device.

    Attributes:
        server, device: both sides.
        requests: what is asked.
        ttft_s: the server's time to first token of each request, s, shape (n,).
        kept: r of the lexical refiner; None: no refiner.
        low_quantile: the quantile of the server's TTFT that L is computed for.
    """

    server: Server
    device: DeviceSpeed
    requests: Requests
    ttft_s: Floats
    kept: float | None
    low_quantile: float


TtftArms = Callable[[Situation, tuple[Share, ...]], Mapping[str, Floats]]
"""From a situation and the share of each request to the times to first token by arm, s, each of shape (n,)."""


@dataclass(frozen=True, slots=True)
class SituationResult:
    """The figures of one situation.

    Attributes:
        server, device: their names.
        kept: r of the lexical refiner; None: no refiner.
        low_quantile: the quantile of the server's TTFT that L is computed for.
        requests: number of requests.
        ttft_s: by arm, quantiles at `LEVELS`, s.
        mean_s: by arm, the mean, s.
        device_gain: by how much the mean of the paper's TTFT_d is below that of the device alone, share.
        feasible: share of requests with an L.
        reasons: number of requests without one, by reason.
        tokens: median and 90th percentile of L where there is one; None where there is none.
        handed_over: share of all requests whose answer was longer than L.
        late: share of the handed-over answers whose device came after its time.
        late_though_slow: the same among those whose server was no faster than the quantile that L is computed for.
        late_p99_s: 99th percentile over the handed-over answers of how late the device came, s; 0 where none was.
        server_tokens: tokens that the server wrote, relative to writing all answers.
        money: the server's bill, relative to writing all answers.
    """

    server: str
    device: str
    kept: float | None
    low_quantile: float
    requests: int
    ttft_s: Mapping[str, tuple[float, ...]]
    mean_s: Mapping[str, float]
    device_gain: float
    feasible: float
    reasons: Mapping[NoShare, int]
    tokens: tuple[float, float] | None
    handed_over: float
    late: float
    late_though_slow: float
    late_p99_s: float
    server_tokens: float
    money: float


def servers() -> tuple[Server, ...]:
    """Return the paper's cloud and three real ones from shipped profiles."""
    prices = load_paper_prices()
    found = [Server("paper's cloud", None, CLOUD.tpot_s, _rates(prices.price(_PRICE)))]
    for name in ("gpt-4.1-nano-2026", "llama-2-70b-together-2023", "deepseek-v3-2025"):
        profile = load_server(name)
        tpot = profile.tpot()
        price = prices.price(profile.price or _PRICE)
        found.append(
            Server(name, profile.ttft(), _DEFAULT_TPOT_S if tpot is None else tpot.mean(), _rates(price))
        )
    return tuple(found)


def closed_forms(situation: Situation, chosen: tuple[Share, ...]) -> Mapping[str, Floats]:
    """Return the times to first token that follow from the speeds alone."""
    device, prompts = situation.device, situation.requests.prompt_tokens
    alone_s = device.read_s * prompts + device.overhead_s
    refined_s = CLOUD.refine_s * prompts if situation.server.ttft is None else 0.0
    reading_s = np.array([np.inf if one.tokens is None else one.read_s + device.overhead_s for one in chosen])
    return {
        SERVER: situation.ttft_s,
        DEVICE: alone_s,
        ASSIST: np.minimum(situation.ttft_s, reading_s),
        PAPER_DEVICE: situation.ttft_s + refined_s + CLOUD.decompress_s + device.read_s * KEPT[0] * prompts,
    }


def run_situation(
    server: Server,
    device: DeviceSpeed,
    requests: Requests,
    *,
    kept: float | None = None,
    low_quantile: float = LOW_QUANTILE,
    seed: int = 0,
    arms: TtftArms = closed_forms,
) -> SituationResult:
    """Choose L for every request, and hand every answer over that is longer.

    Args:
        server: writes the beginning.
        device: reads, and goes on.
        requests: what is asked.
        kept: r of the lexical refiner; None: no refiner.
        low_quantile: the quantile of the server's TTFT that L is computed for.
        seed: of the server's times.
        arms: computes the times to first token.
    """
    situation = Situation(server, device, requests, server.draw(requests, seed), kept, low_quantile)
    cases = tuple(cases_of(situation))
    chosen = tuple(best_share(case) for case in cases)
    times = arms(situation, chosen)
    means = {name: float(values.mean()) for name, values in times.items()}
    played = _Handovers.of(situation, cases, chosen)
    answers = requests.answer_tokens
    by_server = np.array(
        [
            _by_server(n, s, t)
            for n, s, t in zip(answers.tolist(), chosen, situation.ttft_s.tolist(), strict=True)
        ]
    )
    bill, whole_bill = (
        server.rates.cost(int(requests.prompt_tokens.sum()), int(written.sum()))
        for written in (by_server, answers)
    )
    tokens = [one.tokens for one in chosen if one.tokens is not None]
    return SituationResult(
        server=server.name,
        device=device.name,
        kept=kept,
        low_quantile=low_quantile,
        requests=len(requests),
        ttft_s={name: tuple(np.quantile(values, LEVELS).tolist()) for name, values in times.items()},
        mean_s=means,
        device_gain=1 - means[PAPER_DEVICE] / means[DEVICE],
        feasible=len(tokens) / len(requests),
        reasons=dict(Counter(one.reason for one in chosen if one.reason is not None)),
        tokens=(float(np.median(tokens)), float(np.quantile(tokens, 0.9))) if tokens else None,
        handed_over=played.late_s.size / len(requests),
        late=_mean(played.late_s > _EPS_S),
        late_though_slow=_mean(played.late_s[played.slow] > _EPS_S),
        late_p99_s=float(np.quantile(played.late_s, 0.99)) if played.late_s.size else 0.0,
        server_tokens=float(by_server.sum() / answers.sum()),
        money=bill / whole_bill,
    )


def _by_server(answer_tokens: int, share: Share, ttft_s: float) -> int:
    """Return how many tokens of an answer the server writes."""
    if share.tokens is None:
        return answer_tokens
    return 0 if _device_first(share, ttft_s) else min(answer_tokens, share.tokens)


def _device_first(share: Share, ttft_s: float) -> bool:
    """Whether the device is ready before the server's first token, and so writes the whole answer."""
    return share.read_s <= ttft_s and share.ready_s <= ttft_s


def cases_of(situation: Situation, *, batch_tokens: int = 1) -> list[AssistCase]:
    """Return the solver's input for each request.

    Args:
        situation: requests, server and device.
        batch_tokens: see `AssistCase`.
    """
    lengths = AnswerLengths.from_quantiles(_answer_quantiles()).capped(LONGEST_ANSWER)
    refinings = () if situation.kept is None else (Refining(LEXICAL, situation.kept),)
    server = situation.server
    return [
        assist_case(
            prompt,
            situation.device,
            server.low_s(prompt, situation.low_quantile),
            server.tpot_s,
            refinings=refinings,
            lengths=lengths,
            server_rates=server.rates,
            batch_tokens=batch_tokens,
        )
        for prompt in situation.requests.prompt_tokens.tolist()
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Handovers:
    """Answers longer than their L: how late the device came, s, and whether the server was slow. Shape (m,)."""

    late_s: Floats
    slow: NDArray[np.bool_]

    @classmethod
    def of(cls, situation: Situation, cases: tuple[AssistCase, ...], chosen: tuple[Share, ...]) -> _Handovers:
        late, slow = [], []
        rows = zip(
            cases, chosen, situation.ttft_s.tolist(), situation.requests.answer_tokens.tolist(), strict=True
        )
        for case, share, ttft_s, answer in rows:
            if share.tokens is None or answer <= share.tokens or _device_first(share, ttft_s):
                continue
            real = replace(case, server_ttft_s=ttft_s)
            ready_s = real.ready_s(real.read_s(share.refining), share.tokens)
            late.append(max(ready_s - real.due_s(share.tokens), 0.0))
            slow.append(ttft_s >= case.server_ttft_s)
        return cls(np.asarray(late), np.asarray(slow, dtype=bool))


def _answer_quantiles() -> list[tuple[float, float]]:
    table = load_lengths(_LENGTHS).output_tokens
    return [] if table is None else list(zip(table.levels, table.values, strict=True))


def _rates(price: Price) -> Rates:
    return Rates(price.usd_per_mtok_in / 1e6, price.usd_per_mtok_out / 1e6)


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if values.size else 0.0
