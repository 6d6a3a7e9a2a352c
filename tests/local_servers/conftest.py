"""The servers that people have on their desk, each as it is run here: a real one, three of quirks."""

import contextlib
from types import SimpleNamespace

import pytest
from quirks.llama_cpp_python import LlamaCppPython
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import RealModel, running


@pytest.fixture(params=["ollama", "lmstudio", "llama-cpp-python", "llama-server"])
def desk(request, native_server):
    """Each of them in turn; all with real SmolLM2: where it is, what it calls its model, and that model's file."""
    with contextlib.ExitStack() as stack:
        if request.param == "llama-server":
            server, model = native_server, native_server.model
        else:
            kinds = {"ollama": Ollama, "lmstudio": LMStudio, "llama-cpp-python": LlamaCppPython}
            kind = kinds[request.param]
            server = stack.enter_context(running(kind(RealModel(native_server.base_url))))
            model = server.models[0]
        where = {"base_url": server.base_url, "model": model, "address": f"{server.base_url}#{model}"}
        yield SimpleNamespace(kind=request.param, gguf=str(native_server.gguf), **where)
