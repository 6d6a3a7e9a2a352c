"""The model of most tests: SmolLM2 as Q8_0, made from the wheel's Q4_1. It reads prompts in half the time.

A process that a test starts by a command has the wheel's file, as users do.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS, resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised

__all__ = ["use_quick_model"]

NAME = "smollm2-135m"


def use_quick_model(folder: Path) -> None:
    """Let the model's short name stand for the quick file in this process; the file is made once and kept."""
    package, _, remedy = KNOWN_MODELS[NAME]
    if all(importlib.util.find_spec(needed) is not None for needed in (package, "gguf")):
        KNOWN_MODELS[NAME] = (package, str(requantised(resolve_model(NAME), "Q8_0", folder)), remedy)
