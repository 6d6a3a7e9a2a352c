"""Whose account a request is sent for: an identity made of its credentials, in memory only and never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

__all__ = ["Account", "account_of", "account_sent", "names_deployments", "present_account"]

_MAKERS = ("_azure_ad_token_provider", "_api_key_provider", "_workload_identity_auth", "_provider_runtime")
_HEADERS = ("authorization", "api-key", "openai-organization", "openai-project")


class Account:
    """Equal to another one where the credentials are the same. Hides them from `repr`, and has no other form."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def __repr__(self) -> str:
        return "Account()"

    def __reduce__(self) -> Any:
        raise TypeError("an account is known in this process only")


class _Maker:
    """What makes keys, the same for as long as the application gives the same object, hashable or not."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Maker) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


def account_of(client: Any, extra_headers: Mapping[str, Any] | None = None) -> Account:
    """Return the account of a client's requests now. Where the client asks a function for its keys: the function's.

    Args:
        client: an `openai` client, or what stands for one.
        extra_headers: those of a request, which may hold a key of its own.
    """
    of = _sdk_client(client)
    makers = [maker for name in _MAKERS if (maker := getattr(of, name, None)) is not None]
    keys: tuple[Any, ...] = (
        (_Maker(makers[0]),)
        if makers
        else (getattr(of, "api_key", None), getattr(of, "_azure_ad_token", None))
    )
    given = {**(getattr(of, "_custom_headers", None) or {}), **(extra_headers or {})}
    own = sorted((n.lower(), v) for n, v in given.items() if n.lower() in _HEADERS and isinstance(v, str))
    return Account(*keys, getattr(of, "organization", None), getattr(of, "project", None), tuple(own))


def account_sent(request: httpx2.Request) -> Account:
    """Return the account of a request that was sent, by its key; see `present_account`."""
    key = request.headers.get("api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
    return Account(key)


async def present_account(client: Any) -> Account | None:
    """Ask the function that makes a client's keys for the present one; None where there is no such function."""
    from anyio import to_thread  # noqa: PLC0415 - rarely needed

    of = _sdk_client(client)
    for maker, ask in (
        ("_azure_ad_token_provider", "_get_azure_ad_token"),
        ("_api_key_provider", "_refresh_api_key"),
    ):
        if getattr(of, maker, None) is None:
            continue
        import openai  # noqa: PLC0415 - as above

        get = getattr(of, ask)
        is_sync = isinstance(of, openai.OpenAI)
        return Account(await to_thread.run_sync(get) if is_sync else await get())
    return None


def names_deployments(client: Any) -> bool:
    """Return whether requests name deployments, as with Azure, whose list has the models behind them."""
    return hasattr(_sdk_client(client), "_azure_endpoint")


def _sdk_client(client: Any) -> Any:
    """Return the application's own client, where `client` sends in its place."""
    return getattr(client, "_of", client)
