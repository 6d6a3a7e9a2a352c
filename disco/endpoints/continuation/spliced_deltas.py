"""The deltas of an attempt that continues an answer: what of them is passed on behind the seam, within the limit."""

from __future__ import annotations

from dataclasses import replace

from disco.endpoints.continuation.instruction import RepeatedSeam
from disco.endpoints.continuation.methods import Call
from disco.endpoints.continuation.seam import Seam
from disco.events import Delta, DeltaKind, SeamReport
from disco.request import Prefix

__all__ = ["SplicedDeltas"]


class SplicedDeltas:
    """Passes an attempt's deltas through its seam.

    Args:
        prefix: the text that the attempt continues.
        call: how it was asked to.

    Attributes:
        is_cut: the server wrote more than the answer's limit allows; nothing of the rest is passed on.
    """

    # Mutable: is_cut; _held_tokens, of text that the seam holds back; _new_tokens, passed on; _cut_chars, not passed on
    # because of the limit.
    __slots__ = ("_call", "_cut_chars", "_held_tokens", "_new_tokens", "_seam", "is_cut")

    def __init__(self, prefix: Prefix, call: Call) -> None:
        self._call = call
        start = call.repeats_from
        self._seam = Seam(prefix, echoes=call.echoes) if start is None else RepeatedSeam(prefix, start)
        self._held_tokens = self._new_tokens = self._cut_chars = 0
        self.is_cut = False

    @property
    def report(self) -> SeamReport:
        """Return the verdict on the text written so far."""
        report = self._seam.report
        written = report.written_chars - self._cut_chars
        return replace(report, method=self._call.method, written_chars=written)

    def pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """Return what of these deltas, and of text held back before them, belongs to the answer.

        Raises:
            SeamMismatchError: the text does not continue the answer.
        """
        passed: list[Delta] = []
        for delta in deltas:
            if delta.kind is not DeltaKind.TEXT:
                # What a model thinks about the instruction is no part of the answer.
                is_answer = self._call.repeats_from is None or delta.kind is not DeltaKind.REASONING
                passed.append(delta if is_answer else Delta("", kind=DeltaKind.ROLE))
                continue
            text = self._seam.feed(delta.text)
            self._held_tokens += delta.tokens
            if text == delta.text:
                passed.append(delta)
            elif text:
                # More than this delta's own text: pieces that were held back before come with it.
                tokens = self._held_tokens if len(text) > len(delta.text) else delta.tokens
                passed.append(Delta(text, tokens))
            if text:
                self._held_tokens = 0
        return passed if self._call.new_tokens is None else self._limited(passed, self._call.new_tokens)

    def end(self) -> list[Delta]:
        """Return the text that the seam held back until the end of the attempt's answer.

        Raises:
            SeamMismatchError: the answer ended before it continued.
        """
        text = self._seam.end()
        return [Delta(text, self._held_tokens)] if text else []

    def _limited(self, deltas: list[Delta], most: int) -> list[Delta]:
        for number, delta in enumerate(deltas):
            if delta.kind is DeltaKind.TEXT:
                self._new_tokens += delta.tokens
            if self._new_tokens > most:
                self.is_cut = True
                self._cut_chars = sum(len(beyond.text) for beyond in deltas[number:])
                return deltas[:number]
        return deltas
