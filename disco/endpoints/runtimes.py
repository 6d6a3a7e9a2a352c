"""What can run a local model that is named by its name or file: the two programs of a host, and which is there."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final, Literal, get_args

from disco.errors import ConfigurationError

__all__ = [
    "LoraChoice",
    "Program",
    "Runtime",
    "chosen_program",
    "engine_available",
    "is_available",
    "require",
]

Program = Literal["engine", "llama-server"]
Runtime = Literal["auto", "engine", "llama-server"]
"""What runs a local model that is named by its name or file. "engine": disco's own engine over llama.cpp.
"llama-server": llama.cpp's own server. "auto": llama-server where a projector for images is given; else the
engine where it can be loaded, else llama-server."""
_OF_THE_ENGINE: Final = ("starlette", "uvicorn")  # its API
LoraChoice = str | os.PathLike[str] | tuple[str | os.PathLike[str], float]
"""How a LoRA adapter is named: its GGUF file, or that and how much of it is added to the weights (1: all)."""


def engine_available() -> bool:
    """Return whether the engine can be loaded here."""
    from disco.endpoints.llamacpp.model.library import (  # noqa: PLC0415 - only if a model is named
        FoundLibrary,
        find_library,
    )

    return isinstance(find_library(), FoundLibrary)


def _llama_server_available() -> bool:
    """Return whether llama.cpp's own server can be loaded here."""
    return importlib.util.find_spec("xllamacpp") is not None


def chosen_program(runtime: Runtime, *, sees: bool = False) -> Program:
    """Return what is meant; where neither can be loaded, the one whose error names both.

    Args:
        runtime: what the user names.
        sees: whether there is a projector for images, which only llama-server uses.

    Raises:
        ConfigurationError: there is no such runtime, or it cannot do what is asked.
    """
    if runtime not in get_args(Runtime):
        raise ConfigurationError(f'runtime must be "auto", "engine" or "llama-server", not {runtime!r}.')
    if sees and runtime == "engine":
        raise ConfigurationError(
            'mmproj needs runtime="llama-server": disco\'s own engine reads text only. Leave runtime="engine" out, or '
            "leave mmproj out."
        )
    if runtime != "auto":
        return runtime
    if sees:
        return "llama-server"
    return "llama-server" if _llama_server_available() and not engine_available() else "engine"


def require(program: Program) -> None:
    """Raise an error with the remedy where a host program cannot be started.

    Raises:
        ConfigurationError: a package is not installed, or there is no Python interpreter to start a second time.
    """
    if program == "engine":
        from disco.endpoints.llamacpp.model.model_files import require_llama_cpp  # noqa: PLC0415 - as above

        require_llama_cpp()
    elif not _llama_server_available():
        raise ConfigurationError('runtime="llama-server" needs xllamacpp: pip install "disco-llm[local]"')
    if not sys.executable or getattr(sys, "frozen", False):
        raise ConfigurationError(
            "A local model runs in a second Python interpreter, and this program has none to start. Start the model "
            "in a server of its own (`disco serve`, Ollama, llama-server), and name its address: "
            'local="http://localhost:11434".'
        )
    missing = [name for name in _OF_THE_ENGINE if importlib.util.find_spec(name) is None]
    if program == "engine" and missing:
        raise ConfigurationError(
            f'A local model\'s host needs {" and ".join(missing)}: pip install "disco-llm[local]"'
        )


def is_available(program: Program) -> bool:
    """Return whether a host program has what it needs."""
    return engine_available() if program == "engine" else _llama_server_available()
