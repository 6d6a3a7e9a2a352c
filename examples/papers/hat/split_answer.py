"""An answer of a split model on its way."""

from __future__ import annotations

from disco.speculate import SplitPath
from papers.hat.split_requests import Placed

__all__ = ["SplitAnswer"]


class SplitAnswer:
    """A request and its answer. Mutable.

    Attributes:
        number: in the order of arrival.
        arrived_s, began_s, sent_s: when it came, when its device took it up, when its last rows were ready to go up.
        device: number of its device.
        request: what is asked.
        up_bps, down_bps, slowness: see `Placed`.
        path: what the device knows of its way to the cloud; set when it begins.
        chunk: tokens of a chunk of the prompt.
        down_free_s: when the link has brought down what it has.
        token_s: when each token reached the reader.
        in_flight: drafted tokens that are being verified.
        drafted, accepted, rounds: sums over all rounds.
        hits: rounds whose draft was ready when the verdict came.
    """

    __slots__ = (
        *("accepted", "arrived_s", "began_s", "chunk", "device", "down_bps", "down_free_s", "drafted"),
        *("hits", "in_flight", "number", "path", "request", "rounds", "sent_s", "slowness", "token_s"),
        "up_bps",
    )

    def __init__(self, number: int, placed: Placed) -> None:
        self.number = number
        self.arrived_s, self.device, self.request, self.up_bps, self.down_bps, self.slowness = placed
        self.path: SplitPath = None  # type: ignore[assignment]  # set when it begins
        self.began_s = self.sent_s = -1.0
        self.down_free_s = 0.0
        self.chunk = self.in_flight = self.drafted = self.accepted = self.rounds = self.hits = 0
        self.token_s: list[float] = []

    @property
    def ttft_s(self) -> float:
        """Time from arrival to the first token."""
        return self.token_s[0] - self.arrived_s

    @property
    def tbt_s(self) -> float:
        """Mean time between tokens; of an answer with at least two."""
        return (self.token_s[-1] - self.token_s[0]) / (len(self.token_s) - 1)

    def is_done(self) -> bool:
        """Return whether the answer has its length."""
        return len(self.token_s) >= self.request.output_tokens

    def write(self, at_s: float, tokens: int) -> None:
        """Add tokens that came at one time, up to the answer's length."""
        left = self.request.output_tokens - len(self.token_s)
        self.token_s += [at_s] * min(tokens, left)
