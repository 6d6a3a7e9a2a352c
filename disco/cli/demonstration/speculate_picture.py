"""What `disco demo --speculate` shows of an answer: drafted, accepted and rejected text, the window and the mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from disco.speculate.effects import Effect, Send, Write

__all__ = ["DRAFTED", "SERVERS", "DraftPicture"]

DRAFTED: Final = "green"
SERVERS: Final = "yellow"
_PENDING: Final = "bright_black"
_REJECTED: Final = "red strike"

Piece = tuple[str, str]
"""A text and its style."""


@dataclass(slots=True)
class DraftPicture:
    """The answer as it stands, made from the effects of its rounds (`RoundsRun.watch`). Mutable.

    Attributes:
        text_of: what tokens spell.
        settled: the answer's text: (text, whether the drafter had guessed it).
        rejected: what the last verdict refuted, as text; empty where it refuted nothing.
        window: drafted tokens of the last round; 0 for the server alone.
        rounds, accepted, judged: rounds that were sent; drafted tokens that were right; and with the first wrong ones.
    """

    text_of: Callable[[Sequence[int]], str]
    settled: list[tuple[str, bool]] = field(default_factory=list)
    rejected: str = ""
    window: int = 0
    rounds: int = 0
    accepted: int = 0
    judged: int = 0
    _pending: dict[int, int] = field(default_factory=dict)  # drafted tokens in flight, by position
    _guessed: list[bool] = field(default_factory=list)  # of each token of the answer
    _shown: int = 0  # tokens whose text is in `settled`

    def see(self, effect: Effect) -> None:
        """Take an effect."""
        if isinstance(effect, Send):
            self.rounds += 1
            self.window = len(effect.draft)
            if not effect.draft:
                self._pending.clear()  # what is drafted while the server writes alone is not sent
            self._pending.update(enumerate(effect.draft, effect.at))
        elif isinstance(effect, Write):
            self._settle(effect)

    def _settle(self, write: Write) -> None:
        if write.ids:
            self.rejected = ""
        for at, token in enumerate(write.ids, write.at):
            guess = self._pending.pop(at, None)
            self._guessed.append(guess == token)
            if guess is None:
                continue
            self.judged += 1
            self.accepted += guess == token
            if guess != token:
                # All that was drafted behind a wrong token is wrong with it.
                self.rejected = self.text_of([guess, *self._in_flight(behind=at)])
                self._pending.clear()
        for delta in write.deltas:
            # Text that was held back comes with several tokens; it is drafted only if all of them were.
            begin, self._shown = self._shown, self._shown + int(delta.get("tokens", 1))
            guessed = all(self._guessed[begin : self._shown]) and begin < self._shown <= len(self._guessed)
            text = str(delta.get("text", ""))
            if self.settled and self.settled[-1][1] == guessed:
                text = self.settled.pop()[0] + text
            if text:
                self.settled.append((text, guessed))

    def _in_flight(self, behind: int = -1) -> list[int]:
        return [token for at, token in sorted(self._pending.items()) if at > behind]

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(text for text, _ in self.settled)

    def status(self, seconds: float) -> str:
        """Return the window, the mode and the counts as one line; `seconds` since the request was sent."""
        mode = f"window {self.window}" if self.window else "the server alone"
        right = (
            f"{self.accepted} of {self.judged} drafted tokens right" if self.judged else "no draft judged yet"
        )
        return f"{seconds:5.1f} s  {mode}; {self.rounds} rounds; {right}"

    def lines(self, seconds: float) -> list[list[Piece]]:
        """Return the lines to draw, as `Screen.board` takes them."""
        text = [(text, DRAFTED if guessed else SERVERS) for text, guessed in self.settled]
        if self.rejected:
            text.append((self.rejected, _REJECTED))
        text.append((self.text_of(self._in_flight()), _PENDING))
        return [[(self.status(seconds), "bold")], [("", "")], text]

    def marked(self) -> str:
        """Return the text with what the server had to add or correct in ⟨ ⟩, for where there are no colours."""
        return "".join(text if guessed else f"⟨{text}⟩" for text, guessed in self.settled)
