"""A model on this machine, run by llama.cpp."""

from __future__ import annotations

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
