"""The figures of a run of a split fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from disco.errors import ConfigurationError
from papers.hat.split_answer import SplitAnswer
from papers.hat.split_simulator import SplitRun

__all__ = ["SplitFigures", "split_figures"]


@dataclass(frozen=True, slots=True)
class SplitFigures:
    """Means over the counted answers, ms.

    Attributes:
        ttft_ms: from arrival to the first token.
        tbt_ms: between tokens of an answer, mean of its gaps.
        accept_length: tokens of a round, the model's own included; 1 without drafts.
        drafted: tokens of a draft.
        hits: share of rounds whose next draft was ready when the verdict came.
        chunk: tokens, mean over answers.
        gpu_ms, gpu_sd_ms: time of a batch on one GPU, while the counted requests came; and its standard deviation.
        batch_rows: of these batches, mean.
        prefill_ms: TTFT per 128 tokens of the prompt begun, one value for each answer, rising.
        ten_ms: each ten tokens after the first, of all answers, rising.
    """

    ttft_ms: float
    tbt_ms: float
    accept_length: float
    drafted: float
    hits: float
    chunk: float
    gpu_ms: float
    gpu_sd_ms: float
    batch_rows: float
    prefill_ms: tuple[float, ...]
    ten_ms: tuple[float, ...]

    def share_within(self, most_ms: float) -> float:
        """Return the share of answers with at most so many ms of TTFT per 128 tokens of the prompt."""
        return sum(value <= most_ms for value in self.prefill_ms) / len(self.prefill_ms)

    def ten_met_by(self, share: float) -> float:
        """Return how many ms per ten tokens that share of all tens meets."""
        return self.ten_ms[min(len(self.ten_ms) - 1, int(share * len(self.ten_ms)))]


def split_figures(run: SplitRun, first: int = 0, count: int | None = None) -> SplitFigures:
    """Return the figures over `count` answers from number `first` on: before them the load grows, after them it ends.

    Raises:
        ConfigurationError: no answer with at least two tokens is left.
    """
    answers = run.answers[first : None if count is None else first + count]
    long = [one for one in answers if len(one.token_s) > 1]
    if not long:
        raise ConfigurationError("there is no answer with at least two tokens to take figures from")
    begins_s, ends_s = answers[0].arrived_s, answers[-1].arrived_s
    passes = [one for one in run.passes if begins_s <= one[0] <= ends_s] or run.passes
    rounds = sum(one.rounds for one in long)
    gpu = [1e3 * seconds for _, seconds, _ in passes]
    return SplitFigures(
        ttft_ms=1e3 * fmean(one.ttft_s for one in answers),
        tbt_ms=1e3 * fmean(one.tbt_s for one in long),
        accept_length=sum(len(one.token_s) - 1 for one in long) / rounds,
        drafted=sum(one.drafted for one in long) / rounds,
        hits=sum(one.hits for one in long) / rounds,
        chunk=fmean(one.chunk for one in answers),
        gpu_ms=fmean(gpu),
        gpu_sd_ms=pstdev(gpu),
        batch_rows=fmean(rows for _, _, rows in passes),
        prefill_ms=tuple(sorted(1e3 * one.ttft_s / -(-one.request.prompt_tokens // 128) for one in answers)),
        ten_ms=tuple(sorted(_tens(long))),
    )


def _tens(answers: Sequence[SplitAnswer]) -> list[float]:
    return [
        1e3 * (one.token_s[place + 10] - one.token_s[place])
        for one in answers
        for place in range(0, len(one.token_s) - 10, 10)
    ]
