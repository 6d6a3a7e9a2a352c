"""The text of a streamed answer as it stands, where a chunk may take text back (`judge="revise"`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

__all__ = ["RevisedText", "retracts_to"]


def retracts_to(chunk: ChatCompletionChunk) -> int | None:
    """Return how many characters of the answer so far remain; None where the chunk takes nothing back.

    Such a chunk has no choices. Its field `disco` is `{"retract_to": 0}`: the text that follows replaces the answer.
    """
    note = getattr(chunk, "disco", None)
    return note.get("retract_to") if isinstance(note, dict) else None


class RevisedText:
    """Puts the text of one streamed chat answer together, and takes back what is retracted. Mutable: all.

    Attributes:
        text: the answer as it stands.
        revisions: how often text was taken back.
    """

    __slots__ = ("_pieces", "revisions")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.revisions = 0

    @property
    def text(self) -> str:
        """The answer as it stands."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return "".join(self._pieces)

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Apply a chunk of the stream.

        Returns:
            The text that the chunk adds; empty where it adds none. Where it takes text back, `revisions` has grown and
            `text` is shorter.
        """
        left = retracts_to(chunk)
        if left is not None:
            self._pieces = [self.text[:left]]
            self.revisions += 1
            return ""
        added = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        self._pieces.append(added)
        return added
