"""llama.cpp as a library: loaded once, silent, with the reason of its last failures."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from typing import Any

__all__ = ["forget_errors", "load_library", "reason", "string_length"]

# A library must not print: llama.cpp's own log goes here, all of it at DEBUG.
_log = logging.getLogger("disco.llamacpp")
_log.addHandler(logging.NullHandler())

_GGML_LOG_ERROR = 4
_ERRORS_KEPT = 8
_log_callback: Any = None  # kept alive here: llama.cpp stores only a pointer to it
_errors: list[str] = []  # llama.cpp's error messages since a model began to load


def string_length() -> Any:
    """Return the C function `strlen`."""
    runtime = ctypes.CDLL("msvcrt") if os.name == "nt" else ctypes.CDLL(None)
    return runtime.strlen


def load_library() -> Any:
    """Import llama_cpp, start its backend and send its log to this module's logger. Repeating it is harmless."""
    global _log_callback  # noqa: PLW0603 - must outlive every model
    library = importlib.import_module("llama_cpp")

    def on_log(level: int, text: bytes, _data: object) -> None:
        if level == _GGML_LOG_ERROR and len(_errors) < _ERRORS_KEPT:
            _errors.append(text.decode("utf-8", "replace").strip())
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", text.decode("utf-8", "replace").rstrip())

    if _log_callback is None:
        _log_callback = library.llama_log_callback(on_log)
        library.llama_backend_init()
    # Importing llama_cpp.Llama elsewhere may have set another callback in its place.
    library.llama_log_set(_log_callback, None)
    return library


def forget_errors() -> None:
    """Forget earlier failures, before a model is loaded."""
    _errors.clear()


def reason() -> str:
    """Return what llama.cpp says about the failure."""
    return _errors[0] if _errors else "no reason given"  # later messages repeat the first, less clearly
