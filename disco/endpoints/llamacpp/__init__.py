"""A model on this machine, run by llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disco._lazy import loader  # applications need what describes a model, and not what runs it

if TYPE_CHECKING:
    from disco.endpoints.chat_template import ChatTemplate
    from disco.endpoints.llamacpp.engine_endpoint import EngineEndpoint
    from disco.endpoints.llamacpp.model.library import ggml_functions, load_library
    from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS, resolve_model
    from disco.endpoints.llamacpp.model.requantised import requantised
    from disco.endpoints.llamacpp.request_params import unserved_params
    from disco.endpoints.llamacpp.runtime.speed_benchmark import DecodeRate, Measurement, PrefillTime

__all__ = [
    "KNOWN_MODELS",
    "ChatTemplate",
    "DecodeRate",
    "EngineEndpoint",
    "Measurement",
    "PrefillTime",
    "ggml_functions",
    "load_library",
    "requantised",
    "resolve_model",
    "unserved_params",
]

_NAMES = {
    "engine_endpoint": ("EngineEndpoint",),
    "model.library": ("ggml_functions", "load_library"),
    "model.model_files": ("KNOWN_MODELS", "resolve_model"),
    "model.requantised": ("requantised",),
    "prompting.prompt_tokens": ("ChatTemplate",),
    "request_params": ("unserved_params",),
    "runtime.speed_benchmark": ("DecodeRate", "Measurement", "PrefillTime"),
}
"""Module below this package -> the names of `__all__` that it holds."""

__getattr__ = loader(__name__, _NAMES)
