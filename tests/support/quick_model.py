"""The model of most tests: SmolLM2 as Q8_0, made from the wheel's Q4_1. It reads prompts in half the time.

A process that a test starts by a command has the wheel's file, as users do.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from disco.endpoints.llamacpp.model.model_files import KNOWN_MODELS, resolve_model

__all__ = ["use_quick_model"]

NAME = "smollm2-135m"


def use_quick_model(folder: Path) -> None:
    """Let the model's short name stand for the quick file in this process; the file is made once and kept."""
    package, _, remedy = KNOWN_MODELS[NAME]
    if any(importlib.util.find_spec(needed) is None for needed in (package, "llama_cpp")):
        return
    quick = folder / f"{NAME}-q8_0-{importlib.metadata.version('llama-cpp-python')}.gguf"
    if not quick.exists():
        draft = folder / f"{os.getpid()}.gguf"  # several runs may make it at once
        command = [sys.executable, __file__, resolve_model(NAME), draft]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        draft.replace(quick)
    KNOWN_MODELS[NAME] = (package, str(quick), remedy)


if __name__ == "__main__":
    import llama_cpp

    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True
    source, target = (os.fsencode(path) for path in sys.argv[1:])
    sys.exit(llama_cpp.llama_model_quantize(source, target, ctypes.byref(settings)))
