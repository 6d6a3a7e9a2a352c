"""What is taken out of a server's error, which may quote what the server received: keys, and the prompt."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx2
import openai

from disco.errors import cut

__all__ = ["redact", "sent_secrets", "without_quotations", "without_secrets"]

_SHORTEST_SECRET: Final = 8  # a shorter "key" (local servers accept anything) would remove ordinary words
_SECRET_NAME: Final = re.compile(r"auth|key|token|secret|password|cookie|signature", re.IGNORECASE)

_LONGEST_MESSAGE: Final = 2000  # characters; the body has the rest
_QUOTED: Final = 16  # bytes in common with the prompt; a shorter match may be chance
_MOST_PIECES: Final = 1 << 19  # of the prompt that are looked at: 20 to 30 ms
_MOST_FOUND: Final = 1 << 25  # bytes that are searched for the ends of quotations
_MOST_PARTS: Final = 100_000  # of the prompt's JSON
_LEFT_OUT: Final = (
    "The server's words are left out: they may quote the prompt, which has too many parts to compare."
)
_ESCAPED: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\[\"\\/bfnrt]"
)


def redact(error: Exception, secrets: Iterable[str] = (), prompt: object = None) -> Exception:
    """Remove confidential text from an `openai` exception, in place, and make it short enough to print.

    Secrets are removed from message and body. Quotations of the prompt are removed from the message, which is printed
    and logged. What is no JSON (NaN, infinity) becomes null in the body, so that it can be passed on.

    Args:
        error: any exception; only the SDK's are changed.
        secrets: the API key, and similar strings. Those that the request itself carried (`sent_secrets`) are added.
        prompt: the request's body, or its confidential part: any nesting of dicts and lists.
    """
    if isinstance(error, openai.APIError):
        known = [*secrets, *sent_secrets(error.request)]
        if error.__suppress_context__:
            error.__context__ = None  # contains the whole URL, which may hold a password
        texts = {item for item in (*error.args, error.message) if isinstance(item, str)}
        clean = {
            text: without_quotations(cut(without_secrets(text, known), _LONGEST_MESSAGE), prompt)
            for text in texts
        }
        error.args = tuple(clean[item] if isinstance(item, str) else item for item in error.args)
        error.message = clean.get(error.message, error.message)
        error.body = without_secrets(error.body, known)
    return error


def sent_secrets(request: httpx2.Request) -> Iterator[str]:
    """Return the credentials that a request carried: in its headers, and in its URL."""
    for name, value in request.headers.multi_items():
        if _SECRET_NAME.search(name):
            yield value
            yield value.partition(" ")[2]  # without "Bearer"
    for name, value in request.url.params.multi_items():
        if _SECRET_NAME.search(name):
            yield value
    yield request.url.password


def without_secrets(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of JSON data, nested however deeply, with "[key]" in place of every secret."""
    forms = [
        form
        for secret in sorted(secrets, key=len, reverse=True)  # one secret may contain another
        if len(secret) >= _SHORTEST_SECRET
        for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
    ]
    whole: list[Any] = [value]
    left: list[Any] = [whole]  # copies whose items are still the originals
    while left:
        copy = left.pop()
        for at, item in copy.items() if isinstance(copy, dict) else enumerate(copy):
            if isinstance(item, str):
                for form in forms:
                    item = item.replace(form, "[key]")  # noqa: PLW2901
                copy[at] = item
            elif isinstance(item, float):
                copy[at] = item if math.isfinite(item) else None
            elif isinstance(item, Mapping | list):
                copy[at] = dict(item) if isinstance(item, Mapping) else list(item)
                left.append(copy[at])
    return whole[0]


def without_quotations(message: str, prompt: object) -> str:
    """Return `message` with "[prompt]" in place of its quotations of `prompt`, plain or as in JSON.

    Every quotation of `2 * _QUOTED - 1` bytes is found, and often a shorter one; in a prompt of more than 8 MB, every
    one of as many more bytes as its pieces are apart. The time depends neither on the message nor on what it quotes.
    """
    texts = _texts(prompt)
    if texts is None:
        return _LEFT_OUT
    plain = message.encode("utf-8", "surrogatepass")
    forms: list[tuple[bytes, Sequence[int]]] = [(plain, range(len(plain) + 1))]
    if "\\" in message:
        forms.append(_unescaped(message))
    pieces = {(form[at : at + _QUOTED],) for form, _ in forms for at in range(len(form) - _QUOTED + 1)}
    if not texts or not pieces:
        return message
    sent = "\0".join(texts).encode("utf-8", "surrogatepass")
    apart = max(_QUOTED, -(-len(sent) // _MOST_PIECES))
    every = struct.Struct(f"{_QUOTED}s{apart - _QUOTED}x")
    quoted = {piece for (piece,) in pieces.intersection(every.iter_unpack(sent + bytes(-len(sent) % apart)))}
    spans = [(places[a], places[b]) for form, places in forms for a, b in _spans(form, sent, quoted, apart)]
    clean: list[bytes] = []
    at = 0
    for begin, end in sorted(spans):
        if begin > at or not clean:
            clean += [plain[at:begin], b"[prompt]"]
        at = max(at, end)
    return b"".join([*clean, plain[at:]]).decode("utf-8", "surrogatepass")


def _spans(form: bytes, sent: bytes, quoted: set[bytes], apart: int) -> Iterator[tuple[int, int]]:
    """Yield where a message quotes what was sent: around each of the pieces `quoted`, as far as both agree."""
    at = last = searched = 0
    while quoted and at + _QUOTED <= len(form):
        piece = form[at : at + _QUOTED]
        if piece not in quoted:
            at += 1
            continue
        begin, end = at, at + _QUOTED
        if searched < _MOST_FOUND:
            searched += len(sent)
            found = sent.find(piece)
            stop = found + _QUOTED
            while begin > last and found and form[begin - 1] == sent[found - 1]:
                begin, found = begin - 1, found - 1
            while end < len(form) and stop < len(sent) and form[end] == sent[stop]:
                end, stop = end + 1, stop + 1
        else:  # rather too much
            begin, end = max(last, begin - apart), min(len(form), end + apart)
        begin, end = _whole(form, begin, 1), _whole(form, end, -1)
        yield begin, end
        at = last = max(end, at + 1)


def _whole(form: bytes, at: int, step: int) -> int:
    """Return the next beginning of a character."""
    while 0 < at < len(form) and form[at] & 0xC0 == 0x80:  # within a character
        at += step
    return at


def _unescaped(message: str) -> tuple[bytes, list[int]]:
    """Return a message that quotes JSON without JSON's escapes, and where each byte of it is in the message."""
    form, places, at = bytearray(), [0], 0
    for text in re.split(f"({_ESCAPED.pattern})", message):
        plain = json.loads(f'"{text}"') if _ESCAPED.fullmatch(text) else text
        there = len(text.encode("utf-8", "surrogatepass"))
        here = plain.encode("utf-8", "surrogatepass")
        form += here
        if here:
            places += [*(at + 1 + i if plain is text else at for i in range(len(here) - 1)), at + there]
        at += there
    return bytes(form), places


def _texts(prompt: object) -> list[str] | None:
    """Return the texts in a prompt that are long enough to be quoted; None where it has too many parts."""
    texts, left, parts = [], [prompt], 0
    while left:
        value = left.pop()
        parts += 1
        if parts > _MOST_PARTS:
            return None
        if isinstance(value, str):
            if len(value) >= _QUOTED:
                texts.append(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            left.extend(value)
    return texts
