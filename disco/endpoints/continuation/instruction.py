"""The last rung, for servers that cannot continue: the model is told to repeat the last words and to go on from there.

The repetition is the proof. The quoted words occur only once in the answer so far. So a reply that begins with
exactly these words goes on from their end, and they are removed from it. A reply that repeats the whole answer so far
and goes on is as good. Every other reply is refused: one in other words, with quotation marks or a remark before it,
or with another capital letter. Only white space may come before the words.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

from disco.endpoints.continuation.methods import Call, chat_body
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.endpoints.continuation.seam import Seam, SeamMismatchError
from disco.events import SeamReport
from disco.request import Prefix, Request

__all__ = ["RepeatedSeam", "instructed_call", "quoted_from"]

FEWEST_WORDS, FEWEST_CHARS = 6, 24
MORE_WHEN_ASKED_AGAIN = 2  # times as many words: another place to begin from, and easier to find
MOST_CHARS = 200
INSTRUCTION = (
    "Your answer above was cut off before its end. Write the rest of it. Begin with its last words, which are quoted "
    "here, copy them letter for letter, and go on from there without a break, as if nothing had happened. Write no "
    "remark and no quotation mark before them, and do not begin the answer anew.\n\n"
    "<last_words>{}</last_words>"
)
# Where a quotation may begin: at a word, and at any character of a script without spaces (Han, kana).
_BEGINNING = re.compile(r"(?<!\S)\S|[\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# Below this code point (Thai) scripts have spaces between words.
_UNSPACED_FROM = "\u0e00"
_LONG_RUN_CHARS = 64  # a longer run without spaces may have been cut inside; see `playback.text_boundaries`


def instructed_call(request: Request, prefix: Prefix) -> Call:
    """Return the chat request that asks for the rest of the answer after `prefix` (its `sent` is not empty).

    The answer so far goes out as the assistant's message, and the instruction as the user's after it. So the roles
    take turns, which some servers demand.

    Raises:
        CannotContinueError: the conversation or the end of the answer does not allow it.
    """
    messages = list(request.messages)
    if messages and messages[-1].get("role") == "assistant":
        raise CannotContinueError("the conversation ends with a message of the assistant")
    sent = prefix.sent.rstrip()
    if not sent:
        raise CannotContinueError("there are no words to repeat")
    start = quoted_from(sent, again=prefix.asked_again)
    quoted = sent[start:]
    if any(stop in prefix.text[start:] for stop in request.stops):
        raise CannotContinueError("a stop sequence occurs in the words that would be repeated")
    messages += [
        {"role": "assistant", "content": sent},
        {"role": "user", "content": INSTRUCTION.format(quoted)},
    ]
    # The limit leaves room for a reply that repeats the whole answer so far; the attempt counts what is new itself.
    again = prefix.tokens + math.ceil(len(quoted) * max(0.25, prefix.tokens / len(prefix.text)))
    body = chat_body(request, prefix, messages, again_tokens=again)
    limit = request.max_tokens
    left = None if limit is None else max(1, limit - prefix.tokens)
    return Call("/chat/completions", body, False, "instructed", repeats_from=start, new_tokens=left)


def quoted_from(text: str, *, again: bool) -> int:
    """Return the position from which the end of `text` is quoted: a few words that occur nowhere else in it.

    Args:
        text: the answer so far, without white space at its end.
        again: quote more words.

    Raises:
        CannotContinueError: the end of the text is not unique within `MOST_CHARS` characters.
    """
    times = MORE_WHEN_ASKED_AGAIN if again else 1
    first = max(0, len(text) - MOST_CHARS)
    beginnings = [found.start() for found in _BEGINNING.finditer(text, first)]
    for words, start in enumerate(reversed(beginnings), 1):
        is_enough = words >= times * FEWEST_WORDS and len(text) - start >= times * FEWEST_CHARS
        if is_enough and text.find(text[start:]) == start:
            return start
    if first > 0:
        raise CannotContinueError("the last words of the answer occur in it more than once")
    return len(text) - len(text.lstrip())


class RepeatedSeam:
    """Passes on the text of an instructed target from the end of the repeated words. See `Seam`.

    Args:
        prefix: the text that the target continues.
        start: the position in `prefix.text` from which the target repeats it; not white space.
    """

    # Mutable: _begun, whether something else than white space has come; _checked, whether the first new character was.
    __slots__ = ("_begun", "_checked", "_lead_chars", "_prefix", "_seam", "_start")

    def __init__(self, prefix: Prefix, start: int) -> None:
        self._prefix, self._start = prefix, start
        text = prefix.text
        self._lead_chars = len(text) - len(text.lstrip())
        # To the seam, the repeated words are withheld text: the target must write them first. Without white space at
        # its beginning, the whole text is what a target writes that begins anew with the same words.
        self._seam = Seam(Prefix(text[self._lead_chars :], withheld=text[start:]), echoes=False)
        self._begun = False
        self._checked = bool(prefix.withheld) or prefix.ends_in_word or _may_end_in_word(text)

    def feed(self, text: str) -> str:
        """Return the part of `text` that is new to the reader.

        Raises:
            SeamMismatchError: the target did not begin with the words that it was told to repeat.
        """
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return self._whole_words(self._seam.feed(text)) if text else ""

    def end(self) -> str:
        """Return the text held back until the end of the target's answer.

        Raises:
            SeamMismatchError: the answer ended before the words that the target was told to repeat.
        """
        return self._whole_words(self._seam.end())

    @property
    def report(self) -> SeamReport:
        """Return the verdict on the text written so far; white space before the repeated words does not count."""
        seam, repeated_chars = self._seam.report, len(self._prefix.text) - self._start
        if seam.swallowed_chars <= repeated_chars:
            return replace(seam, verdict="continued", sent_chars=self._start)
        lead = self._lead_chars
        return SeamReport("echo", self._start, seam.written_chars + lead, seam.swallowed_chars + lead)

    def _whole_words(self, new: str) -> str:
        """Check that the last repeated word does not go on as another word ("cat" as "category")."""
        if new and not self._checked:
            self._checked = True
            if _is_of_a_word(self._prefix.text[-1]) and _is_of_a_word(new[0]):
                raise SeamMismatchError("the target made another word of the last one")
        return new


def _may_end_in_word(text: str) -> bool:
    return len(text) >= _LONG_RUN_CHARS and not any(map(str.isspace, text[-_LONG_RUN_CHARS:]))


def _is_of_a_word(char: str) -> bool:
    return char.isalnum() and char < _UNSPACED_FROM
