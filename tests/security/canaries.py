"""Strings that nobody else would write, and the search for them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

# Secrets. None may be seen anywhere.
KEY = "sk-canary-8f3kQ27zLm1-key"
CALLERS_KEY = "canary-Vt51xPq09-callers-key"
HEADER = "canary-Hd77mNw31-header"
PASSWORD = "canary-Pw44cRj82-password"
SECRETS = {"key": KEY, "callers' key": CALLERS_KEY, "header": HEADER, "password": PASSWORD}

# Texts. Each is a sentence with the string to search for in its middle: a server may quote all of it, or a part.
PROMPT_CANARY, SYSTEM_CANARY, TOOL_CANARY, ANSWER_CANARY = (
    "heron-prompt-4471-canary",
    "heron-system-5582-canary",
    "heron-tool-6693-canary",
    "heron-answer-7704-canary",
)
TEXTS = {"prompt": PROMPT_CANARY, "system": SYSTEM_CANARY, "tool": TOOL_CANARY, "answer": ANSWER_CANARY}
PROMPT = f'Nobody may read that the "{PROMPT_CANARY}" counts the pebbles\nof my garden at dawn.'
SYSTEM = f"You keep it to yourself that {SYSTEM_CANARY} is what you are called."
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": f"Looks for {TOOL_CANARY} in the reeds.",
        "parameters": {"type": "object", "properties": {}},
    },
}
ANSWER = f"It is a bird called {ANSWER_CANARY} and no other one. "
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]


def forms(canary: str) -> set[bytes]:
    """A canary as it may be written down."""
    plain = canary.encode()
    written = {
        plain,
        plain.upper(),
        quote(canary).encode(),
        quote_plus(canary).encode(),
        repr(plain).encode(),
    }
    written |= {json.dumps(canary)[1:-1].encode(), plain.hex().encode(), canary.encode("utf-16-le")}
    for shift in range(3):  # in base64, what stands before moves it
        coded = base64.b64encode(b"\0" * shift + plain)
        written.add(coded[4 if shift else 0 : len(coded) // 4 * 4 - 4])
        written.add(
            base64.urlsafe_b64encode(b"\0" * shift + plain)[4 if shift else 0 : len(coded) // 4 * 4 - 4]
        )
    return written


def found_in(data: bytes, canaries: dict[str, str]) -> Iterator[str]:
    """What of `canaries` is in `data`, with what stands around it."""
    for name, canary in canaries.items():
        for form in forms(canary):
            at = data.find(form)
            if at >= 0:
                yield f"{name}: {data[max(0, at - 200) : at + 80]!r}"
                break


def found_under(folder: Path, canaries: dict[str, str]) -> list[str]:
    """The same for every file, and every file's name, below a folder."""
    found = []
    for path in sorted(folder.rglob("*")):
        found += [f"in the name {path}: {what}" for what in found_in(str(path).encode(), canaries)]
        if path.is_file():
            found += [f"{path.relative_to(folder)}: {what}" for what in found_in(path.read_bytes(), canaries)]
    return found
