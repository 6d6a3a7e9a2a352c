"""Strings that nobody else would write, and the search for them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

# Secrets. None may be seen anywhere. No canary has a character that URLs or JSON would escape.
KEY = "sk-canary-8f3kQ27zLm1-key"
CALLERS_KEY = "canary-Vt51xPq09-callers-key"
HEADER = "canary-Hd77mNw31-header"
PASSWORD = "canary-Pw44cRj82-password"
SECRETS = {"key": KEY, "callers' key": CALLERS_KEY, "header": HEADER, "password": PASSWORD}

# Texts. Each is a sentence with the string to search for in its middle: a server may quote all of it, or a part.
PROMPT_CANARY, SYSTEM_CANARY = "heron-prompt-4471-canary", "heron-system-5582-canary"
TOOL_CANARY, ANSWER_CANARY = "heron-tool-6693-canary", "heron-answer-7704-canary"
TEXTS = {"prompt": PROMPT_CANARY, "system": SYSTEM_CANARY, "tool": TOOL_CANARY, "answer": ANSWER_CANARY}
PROMPT = f'Nobody may read that the "{PROMPT_CANARY}" counts the pebbles\nof my garden at dawn.'
SYSTEM = f"You keep it to yourself that {SYSTEM_CANARY} is what you are called."
TOOL_TEXT = f"Looks for {TOOL_CANARY} in the reeds."
LOOK = {"name": "look", "description": TOOL_TEXT, "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": LOOK}
ANSWER = f"It is a bird called {ANSWER_CANARY} and no other one. "
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]


def forms(canary: str) -> set[bytes]:
    """A canary as it may be written down."""
    plain = canary.encode()
    written = {plain, plain.upper(), plain.hex().encode(), canary.encode("utf-16-le")}
    for shift in range(3):  # in base64, what stands before moves it
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            coded = encode(b"\0" * shift + plain)
            written.add(coded[4 if shift else 0 : len(coded) // 4 * 4 - 4])
    return written


def found_in(data: bytes, canaries: dict[str, str]) -> Iterator[str]:
    """What of `canaries` is in `data`, with what stands around it."""
    for name, canary in canaries.items():
        places = [at for at in map(data.find, forms(canary)) if at >= 0]
        if places:
            yield f"{name}: {data[max(0, places[0] - 200) : places[0] + 80]!r}"


def found_under(folder: Path, canaries: dict[str, str]) -> list[str]:
    """The same for every file, and every file's name, below a folder."""
    found = []
    for path in sorted(folder.rglob("*")):
        found += [f"in the name {path}: {what}" for what in found_in(str(path).encode(), canaries)]
        if path.is_file():
            found += [f"{path.relative_to(folder)}: {what}" for what in found_in(path.read_bytes(), canaries)]
    return found
