"""An API that checks its key, as bytes on a socket show it."""

from __future__ import annotations

from typing import Any

__all__ = ["KEY", "SECRET", "api"]

SECRET = "Zq7Xw2Lk9Rb4Tn8Vc3Jm6"
"""No report holds four characters of it in a row."""
KEY = f"sk-proj-{SECRET}"


def api(path: str, key: str | None) -> tuple[int, str, Any]:
    """An API below /v1 that checks the key, and quotes it where it refuses it, as OpenAI's does in part."""
    if path != "/v1/models":
        return 404, "application/json", {"error": {"message": "Not found"}}
    if key != KEY:
        quoted = f"{key[:9]}***{key[-4:]} ({key})" if key else "none"
        said = f"Incorrect API key provided: {quoted}."
        return 401, "application/json", {"error": {"message": said, "code": "invalid_api_key"}}
    names = ("gpt-4o-mini", "gpt-4o", "o4-mini")
    return 200, "application/json", {"object": "list", "data": [{"id": name} for name in names]}
