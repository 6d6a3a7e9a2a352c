"""The tokens of one answer as the target, the wire and the drafter have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["DraftLine", "Judged", "Line", "Shadow"]


@dataclass(slots=True)
class Judged:
    """What settled tokens say about drafted ones.

    Attributes:
        places: (place in its window, whether it was right) of each drafted token that was compared.
        wrong_at: position of the drafted token that was wrong; None where none was.
    """

    places: list[tuple[int, bool]] = field(default_factory=list)
    wrong_at: int | None = None

    @property
    def accepted(self) -> int:
        """How many were right."""
        return sum(right for _, right in self.places)


class Line:
    """The answer's settled tokens, and behind them the drafted ones whose verdict is under way.

    Attributes:
        settled: the target's own tokens; they never change.
        tail: drafted tokens that nothing contradicts yet, with their places in their windows.
    """

    __slots__ = ("settled", "tail")

    def __init__(self, settled: Iterable[int] = ()) -> None:
        self.settled: list[int] = list(settled)
        self.tail: deque[tuple[int, int]] = deque()

    @property
    def end(self) -> int:
        """Position behind the tail: where the next window begins."""
        return len(self.settled) + len(self.tail)

    def settle(self, ids: Sequence[int]) -> Judged:
        """Add the target's next tokens. A drafted token that differs takes the rest of the tail with it."""
        judged = Judged()
        for token in ids:
            if self.tail:
                guess, place = self.tail.popleft()
                right = guess == token
                judged.places.append((place, right))
                if not right:
                    judged.wrong_at = len(self.settled)
                    self.tail.clear()
            self.settled.append(token)
        return judged

    def extend(self, ids: Sequence[int]) -> None:
        """Add a window to the tail."""
        self.tail.extend((token, place) for place, token in enumerate(ids))

    def cut(self, position: int) -> None:
        """Drop the tail from a position on."""
        while self.tail and self.end > position:
            self.tail.pop()

    def from_(self, position: int) -> list[int]:
        """Return settled and drafted tokens from a position on."""
        count = len(self.settled)
        if position <= count:
            return [*self.settled[position:], *(token for token, _ in self.tail)]
        return [token for token, _ in self.tail][position - count :]


class DraftLine:
    """The answer's tokens in the drafter's sequence: what it must drop and read to follow the line."""

    __slots__ = ("_agreed", "_held")

    def __init__(self) -> None:
        self._held: list[int] = []
        self._agreed = 0  # so many of its tokens are the settled ones; looked at once each

    def order(self, line: Line) -> tuple[int, tuple[int, ...]]:
        """Return how many of its tokens to keep and which to append, so that it ends where the line ends."""
        held, settled = self._held, line.settled
        same = self._agreed
        while same < len(held) and same < len(settled) and held[same] == settled[same]:
            same += 1
        self._agreed = same
        if same == len(settled):
            for token, _ in line.tail:
                if same >= len(held) or held[same] != token:
                    break
                same += 1
        return same, tuple(line.from_(same))

    def followed(self, keep: int, append: Sequence[int], drafted: Sequence[int]) -> None:
        """Note that the drafter did what it was told, and drafted these."""
        del self._held[keep:]
        self._held += append
        self._held += drafted
        self._agreed = min(self._agreed, keep)


class Shadow:
    """A draft that is not sent: the target writes alone, and its tokens show how good the draft would have been."""

    __slots__ = ("_at", "_ids", "_place")

    def __init__(self, at: int, ids: Sequence[int]) -> None:
        self._at, self._ids, self._place = at, tuple(ids), 0

    def compare(self, settled: Sequence[int]) -> list[tuple[int, bool]]:
        """Return place and rightness of each token that can be compared now and was not before."""
        places: list[tuple[int, bool]] = []
        while not self.is_done and self._at + self._place < len(settled):
            right = self._ids[self._place] == settled[self._at + self._place]
            places.append((self._place, right))
            self._place = self._place + 1 if right else len(self._ids)
        return places

    @property
    def is_done(self) -> bool:
        """Whether all that can be compared was."""
        return self._place >= len(self._ids)

    @property
    def rest(self) -> tuple[int, ...]:
        """The tokens that were not compared yet."""
        return self._ids[self._place :]
