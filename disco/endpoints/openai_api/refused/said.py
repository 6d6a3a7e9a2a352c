"""What a server's error says: its codes, its status and its words, wherever they stand in its body.

Servers answer with an object, a list, a text, FastAPI's `detail`, an error inside another one's, or JSON as a text.
Only fields that are known to hold a server's own words are read: others, such as FastAPI's `input`, quote the request.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
import openai

__all__ = ["Said", "said_by"]

# Compared without case and "_". The fields of the first two groups are read as codes, too, where they hold a text.
_CODES: Final = frozenset(
    {"code", "type", "status", "errorcode", "errortype", "reason"}  # most; Google's `details` have a `reason`
)
_STATUSES: Final = frozenset(
    {
        "code",
        "status",
        "errorcode",
        "statuscode",
        "httpstatuscode",
        "httpstatus",
    }  # Hugging Face, NestJS, proxies
)
_WORDS: Final = frozenset(
    {
        *(
            "message",
            "msg",
            "detail",
            "details",
            "error",
            "errors",
            "errormessage",
            "errormsg",
            "description",
        ),
        *("metadata", "raw"),  # OpenRouter: what the provider behind it said, as a text
        *("innererror", "baseresp", "statusmsg"),  # Azure; MiniMax
    }
)
_MOST_NODES: Final = 64  # parts of a body that are looked at
_MOST_ITEMS: Final = 8  # of a list
_MOST_TEXTS: Final = 6
_MOST_CHARS: Final = 600  # of one text; what follows is mostly a quotation of the request
_MOST_JSON: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Said:
    """See the module.

    Attributes:
        status: the response's; for an error in a stream, and where the response's status is the general one for a
            refusal, the one that the body gives as a number.
        codes: the body's codes and types, lower case.
        param: the parameter that is at fault; "" where none is named.
        words: the body's texts, the outermost first, each cut to what may matter.
    """

    status: int | None
    codes: frozenset[str]
    param: str
    words: tuple[str, ...]


def said_by(error: openai.APIError) -> Said:
    """Return what an error of the SDK's says."""
    codes: list[str] = []
    words: list[str] = []
    inner: int | None = None
    param = ""
    for name, value in _fields(error):
        if name == "param" and not param and isinstance(value, str) and _names(value):
            param = value
        if name in _STATUSES and inner is None:
            inner = _status(value)
        if name in _CODES and isinstance(value, str):
            codes.append(value[:_MOST_CHARS].lower())
        if name in _WORDS and isinstance(value, str):
            words.append(value[:_MOST_CHARS])
    status = getattr(error, "status_code", None)
    if status in (None, 400, 422) and inner is not None:
        status = inner
    return Said(
        status,
        frozenset(codes),
        param,
        tuple(dict.fromkeys(words))[:_MOST_TEXTS] or (error.message[:_MOST_CHARS],),
    )


def _fields(error: openai.APIError) -> Iterator[tuple[str, Any]]:
    """Yield the fields of an error's body whose values are no containers, the outermost first.

    The SDK keeps what stands under "error", which may be a text, or just true. The rest is beside it in the response.
    """
    left: deque[tuple[str, Any]] = deque([("error", error.body)])
    if isinstance(error, openai.APIStatusError):
        left.append(("error", _document(error.response)))
    for _ in range(_MOST_NODES):
        if not left:
            return
        name, value = left.popleft()
        if isinstance(value, str) and name in _WORDS and value.lstrip()[:1] in ("{", "["):
            value = _parsed(value)
        if isinstance(value, Mapping):
            for key, item in value.items():
                plain = str(key).lower().replace("_", "")
                if plain in _WORDS or plain in _CODES or plain in _STATUSES or plain == "param":
                    left.append((plain, item))
        elif isinstance(value, list):
            left.extend((name, item) for item in value[:_MOST_ITEMS])
        else:
            yield name, value


def _names(param: str) -> bool:
    """Return whether it is the name of a parameter: LiteLLM gives its null as a text, one-api the status behind it."""
    return param != "None" and not param.isdecimal()


def _document(response: httpx2.Response) -> Any:
    try:
        text = response.text
    except httpx2.StreamError:  # it was not read
        return None
    return _parsed(text) if text.lstrip()[:1] == "{" else None


def _parsed(text: str) -> Any:
    """Return JSON that is given as a text; the text where it is none."""
    if len(text) > _MOST_JSON:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _status(value: object) -> int | None:
    """Return the status that a number stands for, which may be given as a text."""
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) == 3 else None
    if isinstance(value, int | float) and 400 <= value <= 599:
        return int(value)
    return None
