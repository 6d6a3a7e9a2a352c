"""The calls of one answer: turns tokens into the deltas that carry calls."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.tool_calls.call_formats import CallFormat
from disco.endpoints.llamacpp.tool_calls.call_parser import CallDelta, CallReader
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools
from disco.events import Delta, DeltaKind, ToolCallDelta

__all__ = ["CallWriter"]


class CallWriter:
    """Separates text from calls in an answer that may hold both.

    Mutable: all private attributes and `over`.

    Attributes:
        opening: the text that begins the calls.

    Args:
        model: spells the tokens.
        form: how the model writes calls.
        tools: the functions that may be called.
        behind_text: the answer already has text, which another endpoint wrote.
    """

    def __init__(self, model: AnswerModel, form: CallFormat, tools: Tools, *, behind_text: bool) -> None:
        self.opening = form.open
        self._model = model
        self._form = form
        self._tools = tools
        self._reader = CallReader(form)
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._has_text = behind_text
        self._blanks: list[Delta] = []
        self._tokens = 0  # of the calls, in no delta yet
        self._logp: list[float] = []  # of those tokens, where asked for
        # Some models have a control token for a marker; it spells no text, except here.
        self._markers: dict[int, bytes] = {}
        for marker in filter(None, (form.open, form.close)):
            ids = model.tokenize(marker, special=True)
            if len(ids) == 1 and not model.piece(ids[0]):
                self._markers[ids[0]] = marker.encode()

    @property
    def only_first(self) -> bool:
        """Whether a call can only come at the beginning of the answer."""
        return self._form.only_first

    @property
    def grammar(self) -> str:
        """The grammar of the text after the opening."""
        return self._form.grammar(self._tools)

    def grammar_beside(self, schema: str) -> str:
        """Return the grammar of a whole answer, calls or structured output; see `CallFormat.grammar_beside`."""
        return self._form.grammar_beside(self._tools, schema)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token spells, markers included."""
        return self._model.piece(token) or self._markers.get(token, b"")

    def text(self, deltas: Sequence[Delta], *, last: bool = False) -> Sequence[Delta]:
        """Return text to pass on. Blanks before a first word are held back: mostly a call follows them.

        Args:
            deltas: text of the answer.
            last: no call will come.
        """
        if self._has_text:
            return deltas
        self._blanks += deltas
        if not last and not any(delta.text.strip() for delta in deltas):
            return ()
        self._has_text = True
        return self._blanks

    def push(self, piece: bytes, tokens: int = 0, logp: float | None = None) -> list[Delta]:
        """Take the text after the opening; return the part of the calls that may be passed on.

        Args:
            piece: bytes.
            tokens: how many counted tokens the bytes are.
            logp: the token's log probability, where disco itself asked for it.
        """
        self._tokens += tokens
        if logp is not None:
            self._logp.append(logp)
        text = self._decoder.decode(piece)
        return [self._delta(part) for part in self._reader.feed(text)] if text else []

    def _delta(self, part: CallDelta) -> Delta:
        tokens, self._tokens = self._tokens, 0
        logp, self._logp = tuple(self._logp), []
        call = ToolCallDelta(part.index, part.arguments, part.id, part.name)
        return Delta("", tokens=tokens, kind=DeltaKind.TOOL, logp=logp or None, tool_calls=(call,))

    @property
    def whole(self) -> bool:
        """Whether there are calls, and all of them are complete."""
        return self._reader.whole

    @property
    def over(self) -> bool:
        """Whether no other call may follow."""
        return self.whole and not (self._tools.several and self._form.again is not None)
