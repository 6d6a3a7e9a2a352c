"""What a replay knows of a drafter and a verify server: times, acceptance, and how windows are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np

from disco.candidate import Payer
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.replay.pairs.draft_trace import DraftedRequest
from disco.speculate import Window
from disco.speculate.chunks import SplitPath, branch_depth
from disco.speculate.predict import best_window, token_s
from disco.speculate.seen import Seen, VerifyCurve
from disco.speculate.windows.answer_windows import window_for

__all__ = ["Pair", "Sequences"]

_FREE: Final = Rates()
_DRAFT_STREAM: Final = 31  # different from those of stations and scenarios


@dataclass(frozen=True, slots=True)
class Sequences:
    """What the drafter would guess in one answer, given the true tokens before each.

    Attributes:
        accepts: for each token of the answer 1 where the drafter agrees, else 0.
        confidence: the drafter's top probability for each token, repeated where it is shorter; empty: not known.
    """

    accepts: bytes
    confidence: tuple[float, ...] = ()

    def behind(self, tokens: int) -> Sequences:
        """Return the same for the rest of the answer, behind so many tokens."""
        if not tokens:
            return self
        turn = tokens % len(self.confidence) if self.confidence else 0
        return Sequences(self.accepts[tokens:], self.confidence[turn:] + self.confidence[:turn])


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a split model drafts while a draft is verified: behind its last token, and behind others in that place.

    Attributes:
        path: where the draft goes.
        branches: how many tokens are tried in the place of the last drafted one.
        steps: most tokens drafted behind each of them.
        hits: how often the correction of a wrong last token is one of them.
    """

    path: SplitPath
    branches: int
    steps: int
    hits: float

    def depth(self, drafted: int, draft_s: float) -> int:
        """Return how deep each branch goes behind a draft of so many tokens, as live."""
        return branch_depth(self.path, drafted, draft_s, branches=self.branches, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Pair:
    """A drafter for a station that verifies.

    The station's own numbers are those of the server alone: time to first token (the network and the prompt included),
    and time per token.

    Attributes:
        draft_s: time per drafted token, s; None: `Scenario` fills in its device's time per token.
        verify: how long a pass of the server takes by its rows. A request whose time per token differs from that of one
            row has all its passes longer or shorter by the same factor.
        acceptance: probability that a drafted token is right when all before it are; or recorded sequences
            (`python -m papers.fleet record`), of which request i has number i, from the first one again after the last.
        round_trip_s: of the network between drafter and server, s.
        jitter_s: standard deviation of the delay one way, s; messages do not overtake each other.
        queue_s: mean of the wait for each pass, s, exponentially distributed. It is part of the time per token of the
            server alone.
        read_tps: prompt tokens that the drafter reads in a second; None: no time passes.
        drafter: name of who is charged for drafting; the name of a station, or another one.
        rates: what a token costs there.
        window: a fixed number of drafted tokens, or the name of a rule (`disco.speculate.WINDOWS`).
        max_window: most drafted tokens that a rule may choose.
        parallel: windows in flight; 1 drafts and verifies in turn.
        min_gain: the share of the time per token that drafting has to save; None: draft always.
        reads_prompt: the drafter reads the prompt itself; False: it has what the server computed (a split model).
        ahead: what it drafts while a draft is verified, in turn; None: it waits.
    """

    draft_s: float | None
    verify: VerifyCurve
    acceptance: float | tuple[DraftedRequest, ...]
    round_trip_s: float = 0.0
    jitter_s: float = 0.0
    queue_s: float = 0.0
    read_tps: float | None = None
    drafter: str = "device"
    rates: Rates = _FREE
    window: str | int = "optimal"
    max_window: int = 8
    parallel: int = 2
    min_gain: float | None = 0.1
    reads_prompt: bool = True
    ahead: Ahead | None = None

    def __post_init__(self) -> None:
        for name in ("draft_s", "round_trip_s", "jitter_s", "queue_s"):
            value = getattr(self, name)
            if value is not None and not (value >= 0 and isfinite(value)):
                raise ConfigurationError(f"{name} of a pair must be a time of 0 s or more, not {value}")
        if self.read_tps is not None and not self.read_tps > 0:
            raise ConfigurationError(f"a drafter must read more than 0 tokens/s, not {self.read_tps}")
        if not self.verify.s(1) > 0:
            raise ConfigurationError("a pass of the verify server must take longer than 0 s")
        if isinstance(self.acceptance, tuple):
            if not self.acceptance:
                raise ConfigurationError("a pair needs at least one acceptance sequence")
        elif not 0 <= self.acceptance <= 1:
            raise ConfigurationError(f"acceptance is a probability from 0 to 1, not {self.acceptance}")
        window = self.windows()()
        if window.stop_below and not self._has_confidence:
            raise ConfigurationError(
                f"the window {self.window!r} needs the drafter's probabilities: a trace with confidence_seq, as "
                "`python -m papers.fleet record` writes it"
            )

    @property
    def _has_confidence(self) -> bool:
        return isinstance(self.acceptance, tuple) and all(one.confidence for one in self.acceptance)

    def drafts_s(self, tokens: int) -> float:
        """Return how long the drafter needs to draft so many tokens, s."""
        assert self.draft_s is not None
        return tokens * self.draft_s

    def reads_s(self, tokens: int) -> float:
        """Return how long the drafter needs to read so many tokens, s."""
        return 0.0 if self.read_tps is None else tokens / self.read_tps

    def windows(self) -> Callable[[], Window]:
        """Return the function that makes the window of an answer, as a live client does."""
        return window_for(self.window, most=self.max_window, parallel=self.parallel, min_gain=self.min_gain)

    def payers(self, server: Payer) -> tuple[Payer, ...]:
        """Return the parties that an answer of the pair is charged to."""
        return server, Payer(self.drafter, "device", self.rates, drafts=True)

    def sequences(self, row: int, tokens: int, streams: Sequence[int]) -> Sequences:
        """Return what the drafter would guess in a request's answer.

        Args:
            row: number of the request.
            tokens: length of the answer.
            streams: seeds of the draws; the draws depend on these and on the row only.
        """
        if isinstance(self.acceptance, tuple):
            recorded = self.acceptance[row % len(self.acceptance)]
            times = -(-tokens // len(recorded.accepts))
            return Sequences((recorded.accepts * times)[:tokens], recorded.confidence)
        drawn = np.random.default_rng([*streams, row, _DRAFT_STREAM]).random(tokens)
        return Sequences((drawn < self.acceptance).tobytes())

    @property
    def mean_acceptance(self) -> float:
        """The probability that a drafted token is right."""
        if not isinstance(self.acceptance, tuple):
            return self.acceptance
        return sum(sum(one.accepts) for one in self.acceptance) / sum(
            len(one.accepts) for one in self.acceptance
        )

    @property
    def alone_s(self) -> float:
        """Time per token of the server alone, as the curve has it, s."""
        return self.verify.s(1) + self.queue_s

    def predicted_token_s(self, alone_s: float) -> float:
        """Return the predicted time per token, s, where the server alone takes `alone_s`; never more than that.

        `draft_s` must be known.
        """
        ratio = max(0.0, alone_s - self.queue_s) / self.verify.s(1)
        seen = Seen(
            acceptance=self.mean_acceptance,
            draft_s=self.drafts_s(1),
            round_trip_s=self.round_trip_s,
            queue_s=min(self.queue_s, alone_s),
            verify=VerifyCurve((rows, ratio * seconds) for rows, seconds in self.verify.points),
        )
        if isinstance(self.window, int):
            return min(alone_s, token_s(self.window, seen, self.parallel))
        return best_window(seen, self.max_window, self.parallel)[1]
