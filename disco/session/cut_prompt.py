"""Whether a server has cut the prompt and said nothing: its usage counts far fewer tokens than were sent.

Local servers do so where a prompt does not fit into the context (Ollama, KoboldCpp), and some routers. The answer is to
a part of the question. Where another endpoint can still begin again, unseen, it does. Otherwise the answer of a hosted
server stands: the SDK gives it, too, and its user cannot change the server's context. One on the user's own machines
has failed (`context_length`): its context is the user's to raise. In all cases a person is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from disco.events import Ended
from disco.request import Request

__all__ = ["least_tokens", "tokens_read"]

# Each word is at least one token; so no tokeniser counts fewer, but for one that merges a few words.
_FAR_BELOW: Final = 0.6
_SUSPICIOUS: Final = 0.8  # of the estimate at four characters each; only then are the words counted
_FEWEST: Final = 256  # below, a server counts only what its cache did not have
_MOST_CHARS: Final = 400_000  # that are looked at: a few milliseconds
_LATIN: Final = 0x2000  # scripts from here on write without spaces
_PER_TOKEN: Final = 3  # characters of such scripts, at most
_MAY_CUT: Final = ("transforms", "truncate", "truncation", "plugins", "context_management")


def tokens_read(ended: Ended, estimate: int, least: int | None) -> int | None:
    """Return how many tokens of the prompt a server has read, if it has cut it; else None.

    Args:
        ended: how the answer ended.
        estimate: of the prompt's tokens.
        least: the least that the prompt can have; None: not counted yet, so the answer is only whether to count.
    """
    if ended.usage is None:
        return None
    read = ended.usage.prompt_tokens - ended.usage.probed[0] + ended.usage.cached_tokens
    below = _SUSPICIOUS * estimate if least is None else _FAR_BELOW * least
    return read if _FEWEST <= read < below and not _tells_of_cache(ended.raw) else None


def least_tokens(request: Request) -> int:
    """Return the least tokens that a prompt can have; 0 where the request lets the server cut it.

    Answers in the history do not count: templates leave out the thoughts in them.
    """
    if any(name in body for body in (request.params, request.responses or {}) for name in _MAY_CUT):
        return 0
    left, tokens = _MOST_CHARS, 0
    for text in _texts(request):
        text = text[:left]  # noqa: PLW2901
        left -= len(text)
        words = len(text.split())
        others = 0 if text.isascii() else sum(map(_LATIN.__le__, map(ord, text)))
        tokens += max(words, others // _PER_TOKEN)
        if left <= 0:
            break
    return tokens


def _texts(request: Request) -> Iterator[str]:
    for message in request.messages:
        if message.get("role") == "assistant":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for part in content:
                text = part.get("text") if isinstance(part, Mapping) else None
                if isinstance(text, str):
                    yield text


def _tells_of_cache(raw: Any) -> bool:
    """Return whether a server counts what its cache had beside the other tokens: under its own name, or as too many."""
    usage = getattr(raw, "usage", None)
    more = getattr(usage, "model_extra", None) or {}
    if any("cache" in name and value for name, value in islice(more.items(), 50)):
        return True
    cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
    return isinstance(cached, int) and cached > (getattr(usage, "prompt_tokens", None) or 0)
