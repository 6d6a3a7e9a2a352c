"""A hook as an application writes it, and texts with what it finds."""

from __future__ import annotations

import re

EMAIL = re.compile(r"[\w.]+@[\w.]+\w")
NAME = re.compile(r"Zora Quill|Zora")


def hook(text: str) -> dict[str, str]:
    return dict.fromkeys(EMAIL.findall(text), "EMAIL") | dict.fromkeys(NAME.findall(text), "PERSON")


MAIL = "zora.quill@heron.example"
SECRETS = (MAIL, "Quill", "Zora", "heron.example")


def leaks(sent: object) -> list[str]:
    """The secrets in what a server was sent."""
    return [secret for secret in SECRETS if secret in str(sent)]
