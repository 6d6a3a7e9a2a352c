"""How a server proves that it wrote an announcement, before anything of a request is sent to it.

When a server ends, its port may be taken by a program of another user. So a program that attaches first sends a random
number, on the connection on which it will send its request. The answer must be a keyed hash of that number and of both
ends of this connection. A program that only passes the question on to the real server gets the hash of another
connection.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final

__all__ = ["is_nonce", "new_key", "new_nonce", "proof", "token"]

_NONCE: Final = re.compile(r"[0-9a-f]{64}")

Address = tuple[str, int]


def new_key() -> str:
    """Return a key for one start of a server: 64 hexadecimal digits."""
    return secrets.token_hex(32)


def new_nonce() -> str:
    """Return a question that was never asked before: 64 hexadecimal digits."""
    return secrets.token_hex(32)


def is_nonce(text: str) -> bool:
    """Return whether it can be such a question."""
    return _NONCE.fullmatch(text) is not None


def proof(key: str, nonce: str, *, client: Address, server: Address) -> str:
    """Return what only a holder of the key can answer on the connection between these two addresses."""
    return _keyed(key, "server", nonce, *map(str, (*client[:2], *server[:2])))


def token(key: str) -> str:
    """Return what a program shows of the key. It is sent on proven connections only."""
    return _keyed(key, "program")


def _keyed(key: str, *parts: str) -> str:
    message = "\n".join(("disco attach 1", *parts))
    return hmac.new(bytes.fromhex(key), message.encode(), hashlib.sha256).hexdigest()
