"""A model on this machine, run by llama.cpp in a thread of its own."""

from __future__ import annotations

from disco.endpoints.llamacpp.llamacpp_endpoint import LlamaCppEndpoint
from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS, resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.endpoints.llamacpp.request_params import unserved_params
from disco.endpoints.llamacpp.runtime.speed_benchmark import DecodeRate, Measurement, PrefillTime

__all__ = [
    "KNOWN_MODELS",
    "DecodeRate",
    "LlamaCppEndpoint",
    "Measurement",
    "PrefillTime",
    "requantised",
    "resolve_model",
    "unserved_params",
]
