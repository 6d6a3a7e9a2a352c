"""What a local server reports about itself, queried through the paths of the common servers.

The OpenAI API only lists models. Each server has its own paths for the rest: how much context a model has, whether it
is loaded, how many answers are written at once, and whether it runs on this machine at all. What a server does not
report stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import anyio
import httpx2
import openai

from disco.errors import nearest

__all__ = [
    "TELL_WHAT_IS_LOADED",
    "About",
    "Kind",
    "StillLoadingError",
    "ask",
    "ask_what_is_loaded",
    "is_cloud_name",
    "the_model",
    "unfit_model",
]

Kind = Literal["ollama", "lmstudio", "llama-server", "vllm", "other"]

TELL_WHAT_IS_LOADED: Final[frozenset[Kind]] = frozenset({"ollama", "lmstudio"})
"""Servers that load a model for the first request that names it, and tell at any time whether it is loaded."""

_LIMIT_S = 10.0
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)$", re.MULTILINE)
_EMBEDDER = "text-embedding-"  # LM Studio lists an embedding model beside the loaded ones


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a server and of one of its models.

    Attributes:
        kind: the kind of server, if disco recognises it.
        models: the server's names of the models that can chat; None where the server lists none.
        context_tokens: prompt and answer together, of each answer; None when unknown. Of a model that is not loaded,
            what it is going to be, where its settings say so.
        at_once: answers that the server writes at the same time; None when unknown.
        parameters: how many weights the model has; None when unknown.
        loaded: whether the model is in memory; None when unknown.
        runs_at: host that the prompts are passed on to; None where none is known.
        file: the model's GGUF file, on the server's machine; None where the server does not report it.
        able: what the model can do, in Ollama's words ("tools", "vision", "thinking", ...); None when unknown. Of
            llama-server: whether the chat template has a place for tools, and whether the model sees images.
    """

    kind: Kind = "other"
    models: tuple[str, ...] | None = None
    context_tokens: int | None = None
    at_once: int | None = None
    parameters: int | None = None
    loaded: bool | None = None
    runs_at: str | None = None
    file: str | None = None
    able: frozenset[str] | None = None


class StillLoadingError(Exception):
    """The server loads its only model, and answers nothing before it is loaded; `error` is what it says."""

    def __init__(self, error: openai.APIStatusError) -> None:
        super().__init__()
        self.error = error


async def ask(client: openai.AsyncOpenAI, model: str | None) -> About:
    """Query the server behind `client` with a few short requests; none contains the user's data.

    Args:
        client: the server's.
        model: the model to ask about; None: the server's only one.

    Raises:
        StillLoadingError: see there; llama-server says so.
        openai.APIError: the server's list of models could not be read: it is unreachable, or the key is wrong.
    """
    try:
        answer = await _get(client, "/models", required=True)
    except openai.APIStatusError as error:
        if error.status_code == 503 and "loading model" in str(error).lower():
            raise StillLoadingError(error) from error
        raise
    listed = [item for item in _list(answer, "data") if isinstance(item.get("id"), str)]
    models = tuple(str(item["id"]) for item in listed if not str(item["id"]).startswith(_EMBEDDER))
    names = models if isinstance(answer, Mapping) and "data" in answer else None
    chosen = the_model(model, models)
    entry = next((item for item in listed if item["id"] == chosen), {})
    owner = entry.get("owned_by")
    if owner == "llamacpp":
        return await _llama_server(client, names, entry)
    if owner == "vllm":
        return About("vllm", names, context_tokens=_count(entry.get("max_model_len")), loaded=True)
    if owner == "organization_owner":
        return await _lm_studio(client, names, chosen)
    if isinstance(await _get(client, _root(client, "/api/version")), Mapping):
        return await _ollama(client, names, chosen)
    return About("other", names)


async def ask_what_is_loaded(client: openai.AsyncOpenAI, about: About, model: str | None) -> About:
    """Return what is known with whether the model is loaded now, and with which context.

    Args:
        client: the server's.
        about: what is known; of a kind in `TELL_WHAT_IS_LOADED`.
        model: the server's name for the model.
    """
    if model is None:
        return about
    if about.kind == "lmstudio":
        entry = (await _lm_studio_states(client)).get(model, {})
        state, context = entry.get("state"), _count(entry.get("loaded_context_length"))
        loaded = None if state is None else state == "loaded"
    else:
        loaded, context = await _ollama_runs(client, model)
    # A context that was seen is the best guess at the one that the next load gives.
    return replace(about, loaded=loaded, context_tokens=context or about.context_tokens)


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
        file=path if isinstance(path := props.get("model_path"), str) and path else None,
        able=_llama_server_able(props),
    )


def _llama_server_able(props: Mapping[str, Any]) -> frozenset[str] | None:
    shows = _mapping(props.get("chat_template_caps")).get("supports_tools")
    if shows is None and isinstance(template := props.get("chat_template"), str):  # of an older build
        shows = "tools" in template
    if shows is None:
        return None
    # A build that does not tell may see: it refuses images itself where it does not.
    sees = _mapping(props.get("modalities")).get("vision") is not False
    return frozenset(word for word, is_so in {"tools": shows, "vision": sees}.items() if is_so)


async def _lm_studio(client: openai.AsyncOpenAI, models: tuple[str, ...] | None, model: str | None) -> About:
    states = await _lm_studio_states(client)
    chatting = tuple(m for m in models or () if states.get(m, {}).get("type") != "embeddings")
    state = states.get(model or "", {})
    vision = {"vision"} if state.get("type") == "vlm" else set()
    about = About("lmstudio", chatting, able=frozenset({"tools", "thinking", *vision}) if state else None)
    loaded = state.get("state")
    return replace(
        about,
        context_tokens=_count(state.get("loaded_context_length")),
        loaded=None if loaded is None else loaded == "loaded",
    )


async def _lm_studio_states(client: openai.AsyncOpenAI) -> dict[str, Mapping[str, Any]]:
    listed = _list(await _get(client, _root(client, "/api/v0/models")), "data")
    return {str(item.get("id")): item for item in listed}


async def _ollama(client: openai.AsyncOpenAI, models: tuple[str, ...] | None, model: str | None) -> About:
    if model is None:
        return About("ollama", models)
    shown = _mapping(await _get(client, _root(client, "/api/show"), body={"model": model}))
    host = shown.get("remote_host")
    if not host and is_cloud_name(model):
        host = "ollama.com"
    info = _mapping(shown.get("model_info"))
    # The context a model was trained for is not the one it runs with, which the server's settings decide, unless the
    # model's own (`num_ctx`) do.
    loaded, context = await _ollama_runs(client, model)
    able = shown.get("capabilities")
    return About(
        "ollama",
        models,
        context_tokens=context or _ollama_num_ctx(shown.get("parameters"), info),
        parameters=_count(info.get("general.parameter_count")),
        loaded=loaded,
        runs_at=str(host) if host else None,
        able=frozenset(map(str, able)) if isinstance(able, list) else None,
    )


async def _ollama_runs(client: openai.AsyncOpenAI, model: str) -> tuple[bool | None, int | None]:
    """Return whether the model is loaded, and with which context; None: not known."""
    answer = await _get(client, _root(client, "/api/ps"))
    if not isinstance(answer, Mapping):
        return None, None
    found = next((m for m in _list(answer, "models") if model in (m.get("name"), m.get("model"))), None)
    return found is not None, None if found is None else _count(found.get("context_length"))


def _ollama_num_ctx(parameters: object, info: Mapping[str, Any]) -> int | None:
    """Return the context of a model whose own settings (the text of `/api/show`) give it one."""
    found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    if found is None:
        return None
    trained = (_count(value) for name, value in info.items() if name.endswith(".context_length"))
    return min((int(found[1]), *(most for most in trained if most is not None))) or None


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
