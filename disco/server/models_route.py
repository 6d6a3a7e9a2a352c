"""`/v1/models` and `/v1/models/{name}`: the models with names, or the server's models and the one on this machine."""

from __future__ import annotations

import json
from typing import Any, Final

import openai
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from disco.client import AsyncDisco
from disco.server.api_errors import Refusal, garbled, json_bytes, refusal_of
from disco.server.http_reply import Reply
from disco.server.named_models import NamedModels, no_such_model
from disco.server.ttft_board import PUBLISHES
from disco.server.upstream import KeyFilter, hidden_keys

__all__ = ["MODEL", "MODELS", "ModelsRoute"]

MODELS: Final = "/v1/models"
MODEL: Final = "/v1/models/{name}"


class ModelsRoute:
    """The ASGI application of both paths.

    Args:
        models: what is offered. Where they have names, those are all that is listed: callers get nothing else.
    """

    def __init__(self, models: NamedModels) -> None:
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        name = scope["path_params"].get("name")
        if name == "":
            raise HTTPException(404)  # "/v1/models/" is not a path of the API
        reply = Reply(send, MODELS if name is None else MODEL)
        client = self._models.only_client
        if client is not None:
            reply.clean = KeyFilter(hidden_keys(client)).cleaned
        try:
            answer = json_bytes(await self._answer(name))
        except Exception as error:  # noqa: BLE001 - reported to the HTTP client, whatever the error
            await reply.refuse(refusal_of(error))
        else:
            await reply.whole(200, answer, [PUBLISHES])

    async def _answer(self, name: str | None) -> dict[str, Any]:
        client = self._models.only_client
        if client is not None:
            return await (_all(client) if name is None else _one(client, name))
        if name is not None:
            return _entry(self._models.find(name).name)
        return {"object": "list", "data": [_entry(model.name) for model in self._models.named]}


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "disco"}


async def _all(client: AsyncDisco) -> dict[str, Any]:
    mine = [model.model_dump(mode="json", exclude_unset=True) for model in client.local_models()]
    if not _asks_server(client):
        return {"object": "list", "data": mine}
    try:
        raw = await client.models.with_raw_response.list()
        theirs = _document(client, raw)
        if not isinstance(theirs.get("data"), list):
            raise garbled()
    except (openai.APIConnectionError, Refusal):
        # The model on this machine also works without a server.
        if not mine:
            raise
        theirs = {"object": "list", "data": []}
    return {**theirs, "data": [*mine, *theirs["data"]]}


async def _one(client: AsyncDisco, name: str) -> dict[str, Any]:
    for model in client.local_models():
        if model.id == name:
            return model.model_dump(mode="json", exclude_unset=True)
    unknown = no_such_model(name)
    if not _asks_server(client):
        raise unknown
    try:
        raw = await client.models.with_raw_response.retrieve(name)
    except ValueError:  # the SDK refuses dots in a path
        raise unknown from None
    return _document(client, raw)


def _asks_server(client: AsyncDisco) -> bool:
    return client.server is not None and client.router.may_ask(client.server, client.default_options)


def _document(client: AsyncDisco, raw: Any) -> dict[str, Any]:
    """Parse the JSON object that the server behind disco answered.

    Raises:
        Refusal: the answer is not a JSON object.
    """
    try:
        document = json.loads(KeyFilter(hidden_keys(client, raw.http_request)).cleaned(raw.content))
    except (ValueError, RecursionError):
        raise garbled() from None
    if not isinstance(document, dict):
        raise garbled()
    return document
