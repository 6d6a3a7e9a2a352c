"""What an answer's rounds came to: counts and seconds for its route record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts over one answer.

    Attributes:
        rounds: that were sent, each once; those of the target alone included.
        drafted: tokens that the drafter returned.
        sent: of these, tokens that were sent.
        judged: of these, tokens that were compared with the target's: the right ones, and each first wrong one.
        accepted: of these, the right ones.
        compared, agreed: as `judged` and `accepted`, of tokens drafted while the target wrote alone and never sent.
        windows: how many rounds had so many drafted tokens.
        tokens: of the answer, by mode.
        late: drafts that the target did not wait for.
        switches: changes of the mode.
        retries: rounds that were sent again.
        draft_s, wire_s, queue_s, verify_s: seconds of drafting, on the network, of waiting at the target and of its
            batches. Where windows overlap, so do these.
        timed_windows: of each window, when it was sent and when it was known how many of its tokens were right, s on
            the driver's clock; its drafted tokens; how many of them were right. Of none where a wrong token before them
            had refuted it.
    """

    rounds: int = 0
    drafted: int = 0
    sent: int = 0
    judged: int = 0
    accepted: int = 0
    compared: int = 0
    agreed: int = 0
    windows: Counter[int] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    late: int = 0
    switches: int = 0
    retries: int = 0
    draft_s: float = 0.0
    wire_s: float = 0.0
    queue_s: float = 0.0
    verify_s: float = 0.0
    timed_windows: list[tuple[float, float, int, int]] = field(default_factory=list)

    @property
    def rejected(self) -> int:
        """First wrong tokens of the windows."""
        return self.judged - self.accepted
