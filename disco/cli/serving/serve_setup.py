"""What both kinds of `disco serve` need before they serve: packages, the callers' key, a log; and what both say."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from disco._settings_files import settings_text
from disco.cli.console import Screen
from disco.errors import ConfigurationError

__all__ = ["KEY_VARIABLE", "announce", "callers_key", "logging_at", "require_extra"]

KEY_VARIABLE: Final = "DISCO_SERVER_KEY"


def require_extra() -> None:
    """Refuse to go on without the packages of the extra.

    Raises:
        ConfigurationError: one is not installed.
    """
    try:
        import httptools  # noqa: F401, PLC0415 - as below
        import prometheus_client  # noqa: F401, PLC0415 - only to check that it is installed
        import starlette  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f'`disco serve` needs the package {error.name!r}: pip install "disco-llm[server]"'
        ) from error


def callers_key(file: str | None) -> str | None:
    """Return the callers' key; None if none is set.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if file is None:
        return os.environ.get(KEY_VARIABLE)
    return settings_text(Path(file), "the key file").strip()


@contextmanager
def logging_at(level: str) -> Iterator[None]:
    """Write disco's log to standard error. Other libraries' logs may contain URLs with keys and are left out."""
    logger = logging.getLogger("disco")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def announce(screen: Screen, base_url: str, facts: Sequence[str], *, with_key: bool) -> None:
    """Print the base URL, what is served, and what callers need; called when the server is ready."""
    # Objects loaded by now stay until the end. Scanning them for garbage again and again would stall every stream.
    # Only for this command, whose process is its own. `disco.server.serve` leaves its host's collector alone.
    gc.collect()
    gc.freeze()
    screen.line(base_url)
    for line in facts:
        screen.line(line, style="dim")
    callers = "the key you set" if with_key else "any text as the key"
    screen.line(f"Give clients this base URL and {callers}. Ctrl-C stops the server.", style="dim")
