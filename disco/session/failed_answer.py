"""What a caller is told where no endpoint could answer: which were asked, what failed at each, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import openai

from disco.errors import FailureKind
from disco.session.machine import Session

__all__ = ["WORDS", "explained"]

_BEGIN: Final = "No endpoint could "
WORDS: Final = {
    FailureKind.CONNECTION: ("could not be reached", "check base_url, the network and that the server runs"),
    FailureKind.TIMEOUT: ("wrote nothing in time", "raise timeout=... or timeouts=..."),
    FailureKind.STALLED: ("stopped writing", "raise timeouts=..."),
    FailureKind.RATE_LIMIT: ("asks for fewer requests", "ask again later"),
    FailureKind.SERVER: ("has a fault of its own", "ask again later"),
    FailureKind.GARBAGE: ("answered outside the protocol", "check that base_url ends where the API begins"),
    FailureKind.INCOMPLETE: ("ended before the answer was complete", ""),
    FailureKind.SEAM: ("could not continue the text", ""),
    FailureKind.CRASHED: ("crashed", "look at the log `disco`"),
    FailureKind.ACCOUNT: ("refuses its key, or its account has no credit", "check api_key and the account"),
    FailureKind.MODEL: ("does not have the model", "correct model=..."),
    FailureKind.BAD_REQUEST: ("refuses the request", ""),
    FailureKind.CONTEXT_LENGTH: ("has too short a context", "shorten the prompt"),
    FailureKind.CONTENT_FILTER: ("refuses the content", ""),
    FailureKind.BUDGET: ("is beyond the budget", "raise the budget"),
    FailureKind.UNSERVED: ("does not serve such a request", ""),
}
"""What an endpoint did, as the end of a sentence, and what to do (empty: nothing in particular), by kind of failure."""


def explained(error: Exception, session: Session, endpoints: Iterable[str]) -> Exception:
    """Return the error with what every endpoint did in its message; its type and all attributes stay.

    With a single endpoint the error stays what the SDK makes of it, and so does one of the request's own making. Names
    and kinds only: no text of a server's is added.

    Args:
        error: the error of the first failure, which ends the answer.
        session: the answer's.
        endpoints: the names of all endpoints of the client.
    """
    names = list(endpoints)
    kinds = {a.candidate.name: a.failure for a in session.attempts if a.failure is not None}
    if len(names) < 2 or not kinds or all(kind.is_callers_fault for kind in kinds.values()):
        return error
    told = "; ".join(f"{name} {WORDS[kind][0]}" for name, kind in kinds.items())
    asked = {attempt.candidate.name for attempt in session.attempts}
    left = [name for name in names if name not in asked]
    begun = session.transcript.tokens > 0
    text = f"{_BEGIN}{'go on with the answer' if begun else 'answer'}: {told}."
    if left:
        text += f" Not asked: {', '.join(left)}."
    if remedies := dict.fromkeys(WORDS[kind][1] for kind in kinds.values() if WORDS[kind][1]):
        text += f" To go on: {'; or '.join(remedies)}. `disco doctor` looks closer."
    if not isinstance(error, openai.APIError):
        error.add_note(text)
    elif _BEGIN not in error.message:  # an endpoint may raise one object more than once
        error.message = f"{error.message} {text}"
        error.args = (error.message, *error.args[1:])
    return error
