"""A model cut in two in a replay: what its parts and the link between them take, as a small table of measured times.

The chunks of a prompt, the windows of drafts and what is drafted ahead follow the rules that run live
(`disco.speculate`). A pass of the answer is: first layers here, states up, middle layers there, states down, head here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.replay.pairs.simulated_pair import Ahead, Pair
from disco.speculate.chunks import Chunks, Curve, Reply, SplitPath, chunk_of, prompt_s
from disco.speculate.seen import VerifyCurve

__all__ = ["Split"]

_FREE = Rates()
_UNDRAFTED_ROWS = 1


@dataclass(frozen=True, slots=True)
class Split:
    """A model whose first layers and head are on this machine, and whose middle layers are elsewhere.

    Attributes:
        device_s: of the first layers, by rows (`chunks.PassTimes`), s.
        server_s: of the middle layers, by rows, s.
        up_bps, down_bps: of the link, bytes/s.
        rtt_s: there and back, without payload, s.
        state_bytes: of one token's hidden state; twice the model's width in float16.
        head_s: of the head, for the few rows of a round, s.
        load: rows of other devices in a pass there.
        chunks, reply: how a prompt is cut, and which of its rows come down; as the live endpoint takes them.
        batch_tokens: most tokens of a chunk.
        draft_s: time per drafted token, s; None: the device's file has no adapter, and every token is a pass.
        acceptance: see `Pair`.
        window, max_window, min_gain: see `Pair`; `min_gain` None: draft always.
        branches, steps: what is drafted ahead while a draft is verified, as the live endpoint takes them; 0 branches:
            nothing.
        branch_hits: how often the correction of a wrong last token is among those branches.
        draft_rates: what a drafted token costs.
    """

    device_s: Curve
    server_s: Curve
    up_bps: float
    down_bps: float
    rtt_s: float
    state_bytes: int
    head_s: float = 0.0
    load: float = 0.0
    chunks: Chunks = "makespan"
    reply: Reply = "last"
    batch_tokens: int = 512
    draft_s: float | None = None
    acceptance: float = 0.0
    window: str | int = "optimal"
    max_window: int = 8
    min_gain: float | None = 0.05
    branches: int = 2
    steps: int = 8
    branch_hits: float = 0.5
    draft_rates: Rates = _FREE

    def __post_init__(self) -> None:
        try:
            self.path  # noqa: B018 - checks the numbers
        except ValueError as error:
            raise ConfigurationError(f"the link or the times of a split model are wrong: {error}") from None
        if not (self.head_s >= 0 and isfinite(self.head_s)):
            raise ConfigurationError(
                f"head_s of a split model must be a time of 0 s or more, not {self.head_s}"
            )
        if self.draft_s is not None and not (self.draft_s > 0 and isfinite(self.draft_s)):
            raise ConfigurationError(f"draft_s of a split model must be a time above 0 s, not {self.draft_s}")
        if self.batch_tokens < 1 or (isinstance(self.chunks, int) and self.chunks < 1):
            raise ConfigurationError("a chunk of a split model's prompt has at least 1 token")
        if self.branches < 0 or self.steps < 1 or not 0 <= self.branch_hits <= 1:
            raise ConfigurationError(
                "branches is at least 0, steps at least 1, branch_hits a share from 0 to 1"
            )

    @property
    def path(self) -> SplitPath:
        """What the device knows of its way to the middle layers."""
        return SplitPath(
            self.up_bps,
            self.down_bps,
            self.rtt_s,
            self.state_bytes,
            self.device_s,
            self.server_s,
            self.load,
        )

    def chunk(self, prompt_tokens: int) -> int:
        """Return the tokens of a chunk of a prompt."""
        return chunk_of(self.path, prompt_tokens, self.chunks, reply=self.reply, most=self.batch_tokens)

    def ttft_s(self, prompt_tokens: int) -> float:
        """Return the time to the first token of a prompt, s; of which so many tokens are not in the caches."""
        tokens = max(1, prompt_tokens)
        return prompt_s(self.path, tokens, self.chunk(tokens), reply=self.reply) + self.head_s

    def round_s(self, rows: int) -> float:
        """Return the time from a draft to its verdict, s: the newest token and the drafted ones are `rows`.

        The drafter has computed the first layers of all rows but one.
        """
        moving_s = rows * self.state_bytes * (1.0 / self.up_bps + 1.0 / self.down_bps)
        there_s = self.server_s.s(rows + round(self.load))
        return self.device_s.s(1) + moving_s + self.rtt_s + there_s + self.head_s

    def pair(self, name: str) -> Pair:
        """Return the rounds of the endpoint `name`: the device drafts, and a pass through all parts verifies."""
        drafts = self.draft_s is not None
        most = self.max_window if isinstance(self.window, str) else max(self.window, 1)
        rows = range(1, (most if drafts else _UNDRAFTED_ROWS) + 2)
        ahead = None
        if drafts and self.branches:
            ahead = Ahead(self.path, self.branches, self.steps, self.branch_hits)
        return Pair(
            draft_s=self.draft_s or 0.0,
            verify=VerifyCurve((each, self.round_s(each)) for each in rows),
            acceptance=self.acceptance if drafts else 0.0,
            drafter=f"{name}-drafts",
            rates=self.draft_rates,
            window=self.window if drafts else "optimal",
            max_window=self.max_window,
            parallel=1,
            min_gain=self.min_gain,
            reads_prompt=False,
            ahead=ahead,
        )
