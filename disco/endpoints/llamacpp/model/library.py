"""llama.cpp as a library: found, loaded once, silent, with the reason of its last failures.

It is the compiled llama-cpp-python where that is installed, else the shared object of the wheel xllamacpp.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from disco.endpoints.llamacpp.model.declarations import VERSIONS, WheelLibrary
from disco.endpoints.llamacpp.model.library_check import DoesNotFit, check
from disco.errors import ConfigurationError

__all__ = [
    "COMPILED",
    "FoundLibrary",
    "NoLibrary",
    "find_library",
    "forget_errors",
    "ggml_functions",
    "load_library",
    "reason",
    "string_length",
]

# A library must not print: llama.cpp's own log goes here, all of it at DEBUG.
_log = logging.getLogger("disco.llamacpp")
_log.addHandler(logging.NullHandler())

_GGML_LOG_ERROR = 4
_ERRORS_KEPT = 8
_errors: list[str] = []  # llama.cpp's error messages since a model began to load
_loading = threading.Lock()  # several models may be loaded at once

COMPILED: Final = "llama-cpp-python>=0.3.36,<0.4"
"""What may be installed in the wheel's place: it is compiled when it is installed, and then preferred."""
_FROM, _BELOW = (0, 3, 36), (0, 4)
_COMPILE: Final = f'pip install "{COMPILED}"   (compiles llama.cpp, which takes minutes and a compiler)'
_TESTED: Final = f"xllamacpp=={VERSIONS[-1]}"
_INSTALL: Final = 'pip install "disco-llm[local]"'


class FoundLibrary(NamedTuple):
    """The llama.cpp that the engine uses.

    Attributes:
        package: "llama-cpp-python", which was compiled here, or "xllamacpp", a wheel.
        version: of the package.
        path: the shared object of xllamacpp; None for llama-cpp-python, which finds its own.
    """

    package: str
    version: str
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


class NoLibrary(NamedTuple):
    """Why the engine has no llama.cpp, and what to do about it."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why} {self.remedy}"


def find_library() -> FoundLibrary | NoLibrary:
    """Return the llama.cpp that the engine would use, or why it has none. Nothing is loaded.

    A library that is found may still turn out not to be as declared, when it is loaded.
    """
    compiled = _version("llama-cpp-python")
    if compiled is not None and _FROM <= _numbers(compiled) < _BELOW and _is_built():
        return FoundLibrary("llama-cpp-python", compiled)
    version = _version("xllamacpp")
    spec = importlib.util.find_spec("xllamacpp") if version is not None else None
    if version is None or spec is None:
        return NoLibrary("The engine of local models needs llama.cpp, which is not installed.", _INSTALL)
    if sys.platform == "win32":
        return NoLibrary(
            "On Windows the wheel xllamacpp has llama.cpp's server, but not the functions that the engine needs.",
            f"Use llama-server, or {_COMPILE}",
        )
    if version not in VERSIONS:
        return NoLibrary(
            f"xllamacpp {version} is installed, and the engine of local models fits {' and '.join(VERSIONS)} only.",
            f"{_INSTALL}, or use llama-server, or {_COMPILE}",
        )
    for folder in spec.submodule_search_locations or ():
        for path in Path(folder).glob("xllamacpp.*.so"):
            return FoundLibrary("xllamacpp", version, path)
    return NoLibrary(
        f"xllamacpp {version} has lost its shared object.", f'pip install --force-reinstall "{_TESTED}"'
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _is_built() -> bool:
    """Return whether llama-cpp-python was installed with its compiled library."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        return False
    folders = [Path(folder) / "lib" for folder in spec.submodule_search_locations or ()]
    if own := os.environ.get("LLAMA_CPP_LIB_PATH"):  # where llama_cpp looks instead
        folders = [Path(own)]
    return any(path for folder in folders for path in folder.glob("*llama.*"))


def string_length() -> Any:
    """Return the C function `strlen`."""
    runtime = ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)
    return runtime.strlen


def load_library() -> Any:
    """Load llama.cpp, start its backend and send its log to this module's logger. Repeating it is harmless.

    Returns:
        The module llama_cpp, or a `WheelLibrary`, which has the same names and was checked.

    Raises:
        ConfigurationError: there is none, or it is not as it is declared.
    """
    with _loading:
        library = _loaded()
        # Importing llama_cpp.Llama elsewhere may have set another callback in its place.
        library.llama_log_set(_log_callback(library), None)
    return library


@cache
def _loaded() -> Any:
    found = find_library()
    if isinstance(found, NoLibrary):
        raise ConfigurationError(str(found))
    if found.path is None:
        compiled = importlib.import_module("llama_cpp")
        compiled.llama_log_set(_log_callback(compiled), None)
        compiled.llama_backend_init()
        return compiled
    try:
        library = WheelLibrary(found.path)
        library.llama_log_set(_log_callback(library), None)
        library.llama_backend_init()
        check(library)
    except (OSError, AttributeError, DoesNotFit) as broken:
        if "libgomp" in str(broken):
            raise ConfigurationError(
                f"{found} needs GNU's OpenMP library, which is no Python package ({broken}): "
                "apt-get install libgomp1 (Debian, Ubuntu) or dnf install libgomp (Fedora)"
            ) from broken
        raise ConfigurationError(
            f"The llama.cpp of {found} is not as disco's engine knows it: {broken}. Install it anew: "
            f'pip install --force-reinstall "{_TESTED}", or use llama-server, or {_COMPILE}'
        ) from broken
    return library


@cache
def _log_callback(library: Any) -> Any:
    """Return the function that takes llama.cpp's log; kept alive by the cache, for llama.cpp has only its address."""

    def on_log(level: int, text: bytes, _data: object) -> None:
        if level == _GGML_LOG_ERROR and len(_errors) < _ERRORS_KEPT:
            _errors.append(text.decode("utf-8", "replace").strip())
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", text.decode("utf-8", "replace").rstrip())

    return library.llama_log_callback(on_log)


def ggml_functions(library: Any) -> Any:
    """Return what has the functions of ggml that belong to a library of `load_library`."""
    return (
        library if isinstance(library, WheelLibrary) else importlib.import_module("llama_cpp._ggml").libggml
    )


def forget_errors() -> None:
    """Forget earlier failures, before a model is loaded."""
    _errors.clear()


def reason() -> str:
    """Return what llama.cpp says about the failure."""
    return _errors[0] if _errors else "no reason given"  # later messages repeat the first, less clearly
