"""What stands between many callers and the servers behind disco: the owner's keys, cookies and redirects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import quote

import httpx2

from disco.client import AsyncDisco
from disco.endpoints.openai_api.refused.redacted import sent_secrets

__all__ = ["KeyFilter", "hidden_keys", "share_nothing"]

_HIDDEN = b"[key]"
_SHORTEST_SECRET = 8  # a shorter "key" (local servers take anything) would blank out ordinary words
_LONGEST_LINE = 2**20  # bytes; of a longer one, the beginning is passed on before its end has come


class KeyFilter:
    """Takes the owner's keys out of what a server sends, which may quote the request it got.

    No key has a line end in it. So a line is passed on once it is whole: a key may come in pieces.

    Args:
        keys: what is taken out; a longer one before one that it contains.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._line: list[bytes] = []  # the beginning of a line, in pieces
        self._size = 0

    def cleaned(self, data: bytes) -> bytes:
        """Return a whole text without keys."""
        for key in self._keys:
            data = data.replace(key, _HIDDEN)
        return data

    def next(self, piece: bytes) -> bytes:
        """Return what can be passed on with this piece, which may be nothing."""
        end = len(piece) if piece.endswith(b"\n") else 1 + max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        if not self._line and end == len(piece):
            return self.cleaned(piece)
        whole, begun = piece[:end], piece[end:]
        if whole:
            whole = self.cleaned(b"".join([*self._line, whole]))
            self._line, self._size = [], 0
        if begun:
            self._line.append(begun)
            self._size += len(begun)
        if self._size > _LONGEST_LINE:
            line, kept = self.cleaned(b"".join(self._line)), max(map(len, self._keys), default=0)
            whole, line = whole + line[: len(line) - kept], line[len(line) - kept :]
            self._line, self._size = [line], len(line)
        return whole

    def rest(self) -> bytes:
        """Return what was kept, at the end of the text; of a key that ends there too early, nothing."""
        line = self.cleaned(b"".join(self._line))
        for key in self._keys:
            for size in range(min(len(key), len(line)), _SHORTEST_SECRET - 1, -1):
                if line.endswith(key[:size]):
                    return line[:-size] + _HIDDEN
        return line


def hidden_keys(client: AsyncDisco, request: httpx2.Request | None = None) -> list[bytes]:
    """Return the owner's secrets, which callers must not see: those of every server, in the forms of JSON and URLs.

    Args:
        client: gives the answer.
        request: what was sent, if anything was: its key may have been made for it.
    """
    found = {
        *_forms(() if request is None else tuple(sent_secrets(request))),
        *(
            key
            for sdk in _sdk_clients(client)
            for key in _keys_of(
                str(sdk.api_key),
                sdk.base_url,
                tuple(_texts(getattr(sdk, "_custom_headers", {}))),
                tuple(_texts(getattr(sdk, "_custom_query", {}))),
            )
        ),
    }
    return sorted(found, key=len, reverse=True)


def _texts(given: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    return ((name, value) for name, value in given.items() if isinstance(value, str))


@lru_cache(maxsize=64)
def _keys_of(
    api_key: str, url: httpx2.URL, headers: tuple[tuple[str, str], ...], query: tuple[tuple[str, str], ...]
) -> list[bytes]:
    sent = httpx2.Request("POST", url.copy_merge_params(dict(query)), headers=list(headers))
    return _forms((api_key, *sent_secrets(sent)))


@lru_cache(maxsize=64)
def _forms(secrets: tuple[str, ...]) -> list[bytes]:
    known = (s for s in secrets if len(s) >= _SHORTEST_SECRET)
    return [form.encode() for s in known for form in (s, json.dumps(s)[1:-1], quote(s, safe=""))]


def share_nothing(client: AsyncDisco) -> None:
    """Make a client fit for callers who have nothing to do with each other, and who trust its servers only.

    No server's cookies are kept: they would be sent with the next caller's request. No redirect to another host is
    followed: the prompt would go with it.
    """
    for sdk in _sdk_clients(client):
        http: httpx2.AsyncClient = sdk._client  # noqa: SLF001 - the SDK has no other way to it
        http.cookies.jar.clear()
        http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))
        hooks = http.event_hooks
        if _stay_there not in hooks["response"]:
            http.event_hooks = {**hooks, "response": [*hooks["response"], _stay_there]}


async def _stay_there(response: httpx2.Response) -> None:
    """Refuse a redirect to another host.

    Raises:
        httpx2.RemoteProtocolError: it is one.
    """
    if response.has_redirect_location:
        here, there = response.url, response.url.join(response.headers["location"])
        is_same = (there.scheme, there.host, there.port) == (here.scheme, here.host, here.port)
        to_tls = (here.scheme, there.scheme, here.port, there.port) == ("http", "https", None, None)
        if not is_same and not (to_tls and here.host == there.host):
            raise httpx2.RemoteProtocolError("a redirect to another host", request=response.request)


def _sdk_clients(client: AsyncDisco) -> list[Any]:
    """Return all of the SDK's clients with which a client asks servers, itself among them."""
    endpoints = (entry.endpoint for entry in client.router.endpoints.members(client.server))
    found = (getattr(endpoint, "client", None) for endpoint in endpoints)
    return [client, *(sdk for sdk in found if sdk is not None)]
