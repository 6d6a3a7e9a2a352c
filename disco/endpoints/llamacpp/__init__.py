"""A model on this machine, run by llama.cpp on one thread of its own."""

from __future__ import annotations

from disco.endpoints.llamacpp.endpoint import LlamaCppEndpoint
from disco.endpoints.llamacpp.files import KNOWN_MODELS, resolve_model
from disco.endpoints.llamacpp.measure import DecodeRate, Measurement, PrefillTime
from disco.endpoints.llamacpp.params import unserved_params

__all__ = [
    "KNOWN_MODELS",
    "DecodeRate",
    "LlamaCppEndpoint",
    "Measurement",
    "PrefillTime",
    "resolve_model",
    "unserved_params",
]
