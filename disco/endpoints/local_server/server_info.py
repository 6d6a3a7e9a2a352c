"""What a local server reports about itself, queried through the paths of the common servers.

The OpenAI API only lists models. Each server has its own paths for the rest: how much context a model has, whether it
is loaded, how many answers are written at once, and whether it runs on this machine at all. What a server does not
report stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import httpx2
import openai

from disco.errors import nearest

__all__ = ["About", "Kind", "ask", "is_cloud_name", "the_model", "unfit_model"]

Kind = Literal["ollama", "lmstudio", "llama-server", "vllm", "other"]

_LIMIT_S = 10.0
_EMBEDDER = "text-embedding-"  # LM Studio lists an embedding model beside the loaded ones


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a server and of one of its models.

    Attributes:
        kind: the kind of server, if disco recognises it.
        models: the server's names of the models that can chat; None where the server lists none.
        context_tokens: prompt and answer together, of each answer; None when unknown.
        at_once: answers that the server writes at the same time; None when unknown.
        parameters: how many weights the model has; None when unknown.
        loaded: whether the model is in memory; None when unknown.
        runs_at: host that the prompts are passed on to; None where none is known.
        file: the model's GGUF file, on the server's machine; None where the server does not report it.
    """

    kind: Kind = "other"
    models: tuple[str, ...] | None = None
    context_tokens: int | None = None
    at_once: int | None = None
    parameters: int | None = None
    loaded: bool | None = None
    runs_at: str | None = None
    file: str | None = None


async def ask(client: openai.AsyncOpenAI, model: str | None) -> About:
    """Query the server behind `client` with a few short requests; none contains the user's data.

    Args:
        client: the server's.
        model: the model to ask about; None: the server's only one.

    Raises:
        openai.APIError: the server's list of models could not be read: it is unreachable, or the key is wrong.
    """
    answer = await _get(client, "/models", required=True)
    listed = [item for item in _list(answer, "data") if isinstance(item.get("id"), str)]
    models = tuple(str(item["id"]) for item in listed if not str(item["id"]).startswith(_EMBEDDER))
    names = models if isinstance(answer, Mapping) and "data" in answer else None
    chosen = the_model(model, models)
    entry = next((item for item in listed if item["id"] == chosen), {})
    owner = entry.get("owned_by")
    if owner == "llamacpp":
        return await _llama_server(client, names, entry)
    if owner == "vllm":
        return About("vllm", names, context_tokens=_count(entry.get("max_model_len")))
    if owner == "organization_owner":
        return await _lm_studio(client, names, chosen)
    if isinstance(await _get(client, _root(client, "/api/version")), Mapping):
        return await _ollama(client, names, chosen)
    return About("other", names)


def the_model(model: str | None, models: Sequence[str]) -> str | None:
    """Return the server's name for `model`, or for its only one; None where that is not clear."""
    if model is None:
        return models[0] if len(models) == 1 else None
    for form in (model, f"{model}:latest"):  # Ollama's default tag
        for known in models:
            if known.lower() == form.lower():
                return known
    return None


def unfit_model(model: str | None, models: Sequence[str], where: str) -> str | None:
    """Return why no model can be used, as a message with a remedy; None where one can."""
    if the_model(model, models) is not None:
        return None
    listed = ", ".join(repr(name) for name in models)
    if not models:
        wanted = "a model" if model is None else repr(model)
        return f"The server at {where} lists no models. Download or load {wanted} there first."
    if model is None:
        return (
            f"The server at {where} has {len(models)} models: {listed}. "
            f'Name one behind "#", for instance "{where}#{models[0]}".'
        )
    return f"The server at {where} has no model {model!r}. {nearest(model, models)}"


def is_cloud_name(model: str) -> bool:
    """Return whether Ollama runs a model of this name on ollama.com, and passes its prompts on."""
    tag = model.rpartition(":")[2].lower()
    return tag == "cloud" or (tag != model.lower() and tag.endswith("-cloud"))


async def _llama_server(
    client: openai.AsyncOpenAI, models: tuple[str, ...] | None, entry: Mapping[str, Any]
) -> About:
    props = _mapping(await _get(client, _root(client, "/props")))
    meta = _mapping(entry.get("meta"))
    settings = _mapping(props.get("default_generation_settings"))
    return About(
        "llama-server",
        models,
        context_tokens=_count(settings.get("n_ctx")) or _count(meta.get("n_ctx")),
        at_once=_count(props.get("total_slots")),
        parameters=_count(meta.get("n_params")),
        loaded=True,
        file=props.get("model_path") or None,
    )


async def _lm_studio(client: openai.AsyncOpenAI, models: tuple[str, ...] | None, model: str | None) -> About:
    states = {
        str(item.get("id")): item
        for item in _list(await _get(client, _root(client, "/api/v0/models")), "data")
    }
    chatting = tuple(m for m in models or () if states.get(m, {}).get("type") != "embeddings")
    state = states.get(model or "", {})
    loaded = state.get("state")
    return About(
        "lmstudio",
        chatting,
        context_tokens=_count(state.get("loaded_context_length")),
        loaded=None if loaded is None else loaded == "loaded",
    )


async def _ollama(client: openai.AsyncOpenAI, models: tuple[str, ...] | None, model: str | None) -> About:
    if model is None:
        return About("ollama", models)
    shown = _mapping(await _get(client, _root(client, "/api/show"), body={"model": model}))
    host = shown.get("remote_host")
    if not host and is_cloud_name(model):
        host = "ollama.com"
    running = _list(await _get(client, _root(client, "/api/ps")), "models")
    # The context a model was trained for is not the one it runs with: `num_ctx` is 4,096 unless it was changed.
    loaded = next((m for m in running if model in (m.get("name"), m.get("model"))), None)
    return About(
        "ollama",
        models,
        context_tokens=None if loaded is None else _count(loaded.get("context_length")),
        parameters=_count(_mapping(shown.get("model_info")).get("general.parameter_count")),
        loaded=loaded is not None,
        runs_at=str(host) if host else None,
    )


def _root(client: openai.AsyncOpenAI, path: str) -> str:
    return str(client.base_url).rstrip("/").removesuffix("/v1") + path


async def _get(
    client: openai.AsyncOpenAI, path: str, *, body: Mapping[str, Any] | None = None, required: bool = False
) -> object:
    """Return the JSON at `path`; None where there is none; for a required path, raise the error instead."""
    options: Any = {"max_retries": 0, "timeout": _LIMIT_S}
    try:
        with anyio.fail_after(_LIMIT_S):
            if body is not None:
                return await client.post(path, body=body, cast_to=object, options=options)
            return await client.get(path, cast_to=object, options=options)
    except TimeoutError as error:
        if required:
            raise openai.APITimeoutError(httpx2.Request("GET", client.base_url)) from error
    except openai.APIStatusError as error:
        if required and error.status_code not in (404, 405, 501):
            raise
    except (openai.APIError, httpx2.HTTPError, ValueError):
        if required:
            raise
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object, name: str) -> list[Mapping[str, Any]]:
    found = _mapping(value).get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _count(value: object) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None  # type: ignore[operator,return-value] # it is an int
