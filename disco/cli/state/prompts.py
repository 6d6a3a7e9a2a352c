"""`disco state prompts`: the saved prompts of local models, in numbers; and their end."""

from __future__ import annotations

import time
from pathlib import Path

from disco.cli.console import Screen
from disco.endpoints.saved_prompts import forget_saved_prompts, saved_prompts
from disco.endpoints.saved_prompts.prompt_cache import default_folder
from disco.errors import ConfigurationError

__all__ = ["run_prompts"]


def run_prompts(screen: Screen, given: str | None, *, forget: bool) -> int:
    """Print a table of the saved prompts in a folder, or delete them.

    Raises:
        ConfigurationError: a file cannot be deleted.
    """
    folder = default_folder() if given is None else Path(given).expanduser()
    found = saved_prompts(folder)
    if forget:
        try:
            count = forget_saved_prompts(folder)
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be deleted: {error.strerror}.") from error
        screen.line(f"Deleted: {count} files in {folder}.")
        return 0
    if not found:
        screen.line(f"No prompt is saved in {folder}.")
        return 0
    total = sum(one.size_bytes for one in found) / 2**20
    screen.line(f"{folder}: {len(found)} saved prompts, {total:.0f} MiB; they hold texts, as tokens.")
    now = time.time()
    screen.table(
        "Saved prompts",
        ("model", "tokens", "MiB", "saved", "used"),
        [
            [
                one.model,
                "damaged" if one.tokens is None else one.tokens,
                f"{one.size_bytes / 2**20:.1f}",
                "" if one.saved_at is None else _ago(now - one.saved_at),
                _ago(now - one.used_at),
            ]
            for one in found
        ],
    )
    return 0


def _ago(seconds: float) -> str:
    for size_s, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit} ago"
    return "just now"
