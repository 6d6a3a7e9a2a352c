"""The models that a command takes by name: local ones, their quantisations, or servers."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from disco.client.endpoint_catalog.local_servers import LocalServer, is_address, is_loopback
from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.model.model_files import resolve_model, short_name
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.profiles import user_profile_dir

__all__ = ["model_file", "open_model"]


def _model_name(text: str) -> str:
    """Return the name that a model has in the trace: the server's model, or the file's with its quantisation."""
    if is_address(text):
        address, _, model = text.partition("#")
        return f"{model or urlsplit(address).netloc} (server)"
    model, kind = _parts(text)
    return f"{short_name(model)}@{kind.upper()}" if kind else short_name(model)


def open_model(text: str, *, threads: int | None) -> Endpoint:
    """Make the endpoint of a model; a local model is loaded later.

    A server that is not on this machine is sent the key in OPENAI_API_KEY.

    Raises:
        ConfigurationError: there is no such model or quantisation, or the address is invalid.
        ModelFileError: the file is not a usable GGUF file.
    """
    if is_address(text):
        address, _, model = text.partition("#")
        here = is_loopback(urlsplit(address).hostname or "")
        key = None if here else os.environ.get("OPENAI_API_KEY")
        return LocalServer(
            base_url=address,
            model=model or None,
            name=_model_name(text),
            reach="device" if here else "any",
            api_key=key,
        ).endpoint()
    path: str | Path = model_file(text) if _parts(text)[1] else text
    return EngineEndpoint(model=path, name=_model_name(text), threads=threads)


def model_file(text: str) -> Path:
    """Return the file of a local model, requantised first where a type is named behind an @.

    Raises:
        ConfigurationError: there is no such model or quantisation.
        ModelFileError: the file is not a usable GGUF file.
    """
    model, kind = _parts(text)
    path = resolve_model(model)
    return requantised(path, kind, user_profile_dir().parent / "models") if kind else path


def _parts(text: str) -> tuple[str, str]:
    """Return the model and the quantisation behind an @, which is empty where there is none."""
    if "@" in text and not Path(text).exists():
        model, _, kind = text.rpartition("@")
        return model, kind
    return text, ""
