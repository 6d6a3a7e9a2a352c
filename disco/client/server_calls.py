"""How the server endpoint of a client sends its requests: through the client itself, past the routing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
from openai._models import FinalRequestOptions

if TYPE_CHECKING:
    from disco.client.async_client import AsyncRouting

__all__ = ["ServerCalls"]


class ServerCalls:
    """The part of an `openai.AsyncOpenAI` that a server endpoint uses, made of an `AsyncDisco`.

    The SDK's own code makes the request, with this client's hooks. So the key, the address, the headers and the
    proxies are those that the client has when the request is made, also if the application has changed them.
    """

    def __init__(self, client: AsyncRouting) -> None:
        self._of: Any = client

    @property
    def api_key(self) -> str:
        return self._of.api_key  # type: ignore[no-any-return]

    @property
    def base_url(self) -> httpx2.URL:
        return self._of.base_url  # type: ignore[no-any-return]

    @property
    def _client(self) -> httpx2.AsyncClient:
        return self._of._client  # type: ignore[no-any-return] # noqa: SLF001 - named as the SDK's, for `connectivity`

    async def get(self, path: str, *, cast_to: Any, options: Any = {}) -> Any:  # noqa: B006 - not changed; as the SDK's
        """As the SDK's."""
        asked = FinalRequestOptions.construct(method="get", url=path, **options)
        return await self._of._ask_server(cast_to, asked)  # noqa: SLF001 - our own client

    async def post(
        self,
        path: str,
        *,
        cast_to: Any,
        body: object = None,
        options: Any = {},  # noqa: B006 - as above
        stream: bool = False,
        stream_cls: Any = None,
    ) -> Any:
        """As the SDK's."""
        asked = FinalRequestOptions.construct(method="post", url=path, json_data=body, **options)
        return await self._of._ask_server(  # noqa: SLF001
            cast_to, asked, stream=stream, stream_cls=stream_cls
        )
