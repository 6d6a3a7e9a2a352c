"""What went wrong with an answer, in one line with a remedy."""

from __future__ import annotations

from typing import Any

import openai

from disco.cli.word_wrap import printable
from disco.errors import BudgetExceededError, DiscoError, cut

__all__ = ["error_line"]

_MOST_CHARS = 400
_LOCAL = "or type /local to go on with this machine alone"


def error_line(error: Exception, *, model: str, local_only: bool) -> str:
    """Return one line that says what failed and what to do about it.

    Args:
        error: what the client raised.
        model: the server's model.
        local_only: whether questions stay on this machine, so that this is no remedy.
    """
    local = "" if local_only else f", {_LOCAL}"
    server = f"The server at {_address(error)}"
    if isinstance(error, BudgetExceededError):
        said = _said(error)
        return f"{said}{'' if local_only else ' Wait, ' + _LOCAL + '.'}"
    if isinstance(error, DiscoError):  # its message names the remedy
        return _said(error)
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return f"{server} refused the key ({error.status_code}). Check OPENAI_API_KEY{local}."
    if isinstance(error, openai.NotFoundError):
        return f"{server} has no model {model!r}, or no such path (404). Name one with --model{local}."
    if isinstance(error, openai.APITimeoutError):
        return f"{server} did not answer in time. /retry asks again{local}."
    if isinstance(error, openai.APIConnectionError):
        return f"{server} cannot be reached. Check that it runs, and its address{local}."
    if isinstance(error, openai.RateLimitError):
        return f"{server} takes no more requests now (429). /retry asks again later{local}."
    if isinstance(error, openai.InternalServerError):
        return f"{server} failed ({error.status_code}). /retry asks again{local}."
    return f"{_said(error)} /retry asks again."


def _address(error: Any) -> str:
    """Return the host and port that an error came from; the rest of an address may hold a key."""
    try:
        url = error.request.url
        return f"{url.host}:{url.port}" if url.port else str(url.host)
    except (AttributeError, RuntimeError):  # the SDK's error has no request
        return "an unknown address"


def _said(error: Exception) -> str:
    """Return the error's own words on one line; they may be a server's, and of any length."""
    text = cut(" ".join(printable(str(error)).split()), _MOST_CHARS) or type(error).__name__
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
