"""The redaction of one request: the hook reads each text once, and all attempts share the placeholders."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.to_thread

from disco.endpoints.redaction.placeholders import Placeholders, reading_of
from disco.endpoints.redaction.request_texts import with_texts
from disco.errors import RedactionError
from disco.request import Prefix, Request

__all__ = ["Redact", "Redacted", "Redaction"]

Redact = Callable[[str], Mapping[str, str]]
"""The application's hook: given a text, it returns the parts to redact, each with its kind."""

_CHARS_PER_TOKEN = 4  # of text that a target writes again; the same as in `endpoints.continuation`


@dataclass(frozen=True, slots=True)
class Redacted:
    """What an attempt is sent.

    Attributes:
        request, prefix: with placeholders; nothing of the prefix is withheld.
        withheld: the end of the prefix, with originals: the target was not sent it and must write it first.
        originals: by placeholder.
    """

    request: Request
    prefix: Prefix
    withheld: str = field(repr=False)
    originals: Mapping[str, str] = field(repr=False)


class Redaction:
    """Redacts one request for all of its attempts.

    Args:
        hook: the application's. Called in a worker thread, so that a slow one holds up no other answer.
    """

    # Mutable: _placeholders; _read, all texts of the request and its prefixes so far; _failure, the hook's.
    __slots__ = ("_failure", "_hook", "_lock", "_placeholders", "_read")

    def __init__(self, hook: Redact) -> None:
        self._hook = hook
        self._lock = anyio.Lock()
        self._placeholders = Placeholders()
        self._read: dict[str, None] = {}
        self._failure: RedactionError | None = None

    async def redacted(self, request: Request, prefix: Prefix = Prefix()) -> Redacted:  # noqa: B008 - frozen
        """Return what an attempt at the request may be sent.

        Token ids of the prefix are left out, since they spell the originals. Where the part to send ends inside an
        original, that part of the original is withheld, too.

        Raises:
            RedactionError: the hook failed, or the request cannot be redacted. It fails for every attempt.
        """
        texts: list[str] = []
        with_texts(request, lambda text: texts.append(text) or text)  # type: ignore[func-returns-value]
        async with self._lock:
            await self._read_all(texts)
            places, sent = self._placeholders, prefix.sent
            # The hook does not read the beginning of an original, which it would take for another one.
            sent = sent[: places.cut(sent)]
            await self._read_all([sent])
            sent = sent[: places.cut(sent)]
            withheld = prefix.text[len(sent) :]
            spent = max(0, prefix.tokens - math.ceil(len(withheld) / _CHARS_PER_TOKEN))
            return Redacted(
                with_texts(request, places.redacted),
                replace(
                    prefix,
                    text=places.redacted(sent),
                    tokens=prefix.tokens if _is_used_up(request, prefix) else spent,
                    ids=None,
                    vocabulary=None,
                    withheld="",
                    ends_in_word=prefix.ends_in_word and not withheld,
                ),
                withheld,
                dict(places.originals),
            )

    async def _read_all(self, texts: list[str]) -> None:
        if self._failure is not None:
            raise self._failure
        new = [text for text in dict.fromkeys(texts) if text.strip() and text not in self._read]
        if not new:
            return
        find = partial(_found, self._hook, [reading_of(text) for text in new])
        try:
            found = await anyio.to_thread.run_sync(find, abandon_on_cancel=True)
            self._read |= dict.fromkeys(new)
            for reading, parts in found:
                self._placeholders.add(parts, reading, self._read)
        except RedactionError as error:
            self._failure = error
            raise


def _is_used_up(request: Request, prefix: Prefix) -> bool:
    limit = request.max_tokens
    return limit is not None and limit <= prefix.tokens


def _found(hook: Redact, readings: list[str]) -> list[tuple[str, object]]:
    """Return what the hook finds in each text.

    Raises:
        RedactionError: the hook raised. Its exception is not passed on, as it may quote the text.
    """
    found: list[tuple[str, object]] = []
    raised = ""
    for reading in readings:
        try:
            found.append((reading, hook(reading)))
        except Exception as error:  # noqa: BLE001 - the application's code may raise anything
            raised = type(error).__name__
            break
    if raised:
        # Outside the handler, so that the exception is not the context of this one.
        raise RedactionError(
            f"The redact hook raised {raised}, so nothing was sent. The hook must return a dict for every text; call "
            "it with the texts of this request to see what it raises."
        )
    return found
