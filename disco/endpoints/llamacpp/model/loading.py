"""Loads the weights of a GGUF file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disco.endpoints.llamacpp.model.library import load_library, reason
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.errors import LocalModelError

__all__ = ["load_weights"]


def load_weights(path: Path, *, gpu_layers: int, keep_loading: Callable[[], bool]) -> Any:
    """Return llama.cpp's model of a file; the caller must free it.

    Args:
        path: a GGUF file.
        gpu_layers: how many layers go to a GPU, -1 for all, where llama.cpp was built for a GPU.
        keep_loading: called while loading; returning False stops the loading.

    Raises:
        LocalModelError: llama.cpp refused the file.
        Aborted: `keep_loading` returned False.
    """
    library = load_library()
    params = library.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    progress = library.llama_progress_callback(lambda _progress, _data: keep_loading())
    params.progress_callback = progress
    model = library.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        if not keep_loading():
            raise Aborted
        raise LocalModelError(f"llama.cpp could not load {path}: {reason()}")
    return model
