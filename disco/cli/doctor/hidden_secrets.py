"""Keeps keys and passwords out of the report, whole or in part, whatever a message quotes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from disco.endpoints.openai_api.refused.redacted import without_secrets
from disco.errors import cut

__all__ = ["bare", "clean", "known_secrets", "quoted"]

_SECRET_NAME = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL).*", re.IGNORECASE)
_PART = 4  # characters in common with a secret, of a word that somebody else wrote
_MASKED = re.compile(r"\*{2,}|\.{3}|…|x{4,}|•")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def known_secrets() -> tuple[str, ...]:
    """Return the secrets in the environment: keys, and passwords in addresses; as they are, and without wrapping."""
    found: set[str] = set()
    for name, value in os.environ.items():
        if _SECRET_NAME.fullmatch(name):
            found |= {value, bare(value)}
        if "://" in value or "@" in value:
            found.update(_of_address(value))
    return tuple(sorted((one for one in found if one.strip()), key=len, reverse=True))


def bare(key: str) -> str:
    """Return a key without what does not belong to it: blanks, line breaks, quotes, and the word Bearer."""
    key = "".join(key.split("\n")).strip()
    key = re.sub(r"^bearer\s+", "", key.strip("\"'`“”‘’ \t\r"), flags=re.IGNORECASE)
    return key.strip("\"'`“”‘’ \t\r")


def clean(text: str, secrets: Iterable[str]) -> str:
    """Return a text of the report: without secrets, and with `~` in place of the user's home."""
    text = without_secrets(text, secrets)
    home = str(Path("~").expanduser())
    if len(home) > 3:  # a home such as / is no one's name
        text = re.sub(rf"(?<![\w/.-]){re.escape(home)}(?=[/\\\s'\":;,.)]|$)", "~", text)
    return text


def quoted(said: object, secrets: Iterable[str], *, most: int = 160) -> str:
    """Return what a server said, on one line, without any word that has something in common with a secret.

    Servers quote the keys that they refuse, whole, masked or in part: "sk-ab***yz".
    """
    secrets = tuple(secrets)
    if not isinstance(said, str):
        return ""
    text = without_secrets(_CONTROL.sub(" ", said), secrets)
    words = ["[key]" if _is_of(word, secrets) else word for word in text.split()]
    return cut(" ".join(words), most)


def _is_of(word: str, secrets: Iterable[str]) -> bool:
    if _MASKED.search(word.rstrip(".…")):
        return True
    core = word.strip("\"'`.,:;()[]{}<>")
    for secret in secrets:
        if core and core == secret.strip():
            return True
        if any(core[at : at + _PART] in secret for at in range(len(core) - _PART + 1)):
            return True
    return False


def _of_address(value: str) -> Iterator[str]:
    try:
        parts = urlsplit(value if "://" in value else f"//{value}")
        for one in (parts.password, parts.query):
            if one:
                yield one
                yield unquote(one)
    except ValueError:
        return
