"""Why a round is refused, besides what is wrong with a request or a model: the client's next step depends on it."""

from __future__ import annotations

from typing import Final

__all__ = ["REFUSALS", "AnswerLost", "ModelChanged", "RoundRefused", "Superseded"]


class RoundRefused(Exception):
    """A round is not answered here and now.

    Attributes:
        code: the error code on the wire.
    """

    code: str
    message: str

    def __init__(self) -> None:
        super().__init__(self.message)


class AnswerLost(RoundRefused):
    """The server has no such answer: the client must send the round again, with an opening."""

    code = "answer_lost"
    message = "The server does not have this answer (any more). Send the round again with an opening."


class ModelChanged(RoundRefused):
    """The answer was begun with another model than this server has."""

    code = "model_changed"
    message = "The server has another model than the answer was begun with. Ask it what it has."


class Superseded(RoundRefused):
    """The same round came again, on another connection, which gets the verdict."""

    code = "superseded"
    message = "This round came again on another connection, and is answered there."


REFUSALS: Final = {kind.code: kind for kind in (AnswerLost, ModelChanged, Superseded)}
"""Each of them by its code."""
