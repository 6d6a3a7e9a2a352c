"""Warnings that reach a person: through `logging` where the application has set it up, else through `warnings`.

Every warning that concerns a user comes from here, and each is given once for its kind and its thing by whoever gives
it. Without any set-up it is on stderr, and the category `disco.DiscoWarning` filters it. No warning ever holds a key, a
prompt or an answer.
"""

from __future__ import annotations

import logging
import warnings

from disco.errors import DiscoWarning

__all__ = ["warn"]

_LOG = logging.getLogger("disco")


def warn(text: str) -> None:
    """Give a warning; never raises.

    Warnings are given beside answers, mostly in background tasks. So where the application turns warnings into errors
    (`-W error`), this one is shown instead: it must not end an answer that is fine.
    """
    if not _LOG.isEnabledFor(logging.WARNING):
        return
    if _is_set_up():
        _LOG.warning("%s", text)
        return
    try:
        # The place in the code is disco's own and would tell nobody anything.
        warnings.warn_explicit(text, DiscoWarning, "disco", 1, registry={})
    except DiscoWarning as raised:
        warnings.showwarning(raised, DiscoWarning, "disco", 1)


def _is_set_up() -> bool:
    """Return whether a record of the logger `disco` reaches a handler that shows it."""
    logger: logging.Logger | None = _LOG
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
