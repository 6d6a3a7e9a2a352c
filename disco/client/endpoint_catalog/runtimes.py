"""What runs a local model that is named by a name or a file: llama.cpp in this program, or its prebuilt server."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Literal, get_args

from disco.errors import ConfigurationError

if TYPE_CHECKING:
    from disco.endpoints.llamacpp import LlamaCppEndpoint
    from disco.endpoints.prebuilt import PrebuiltEndpoint
    from disco.endpoints.saved_prompts import PromptCache

__all__ = ["Runtime", "chosen_runtime", "is_installed", "model_endpoint"]

Runtime = Literal["auto", "compiled", "prebuilt"]
"""`AsyncDisco(runtime=...)`. "compiled": llama-cpp-python, which is compiled when it is installed. "prebuilt": a
llama-server out of the wheel xllamacpp, as a child process. "auto": the compiled one where it is installed, else the
prebuilt one."""

_PACKAGES = {"compiled": "llama_cpp", "prebuilt": "xllamacpp"}


def is_installed(runtime: Literal["compiled", "prebuilt"]) -> bool:
    """Return whether the package of a runtime can be imported."""
    return importlib.util.find_spec(_PACKAGES[runtime]) is not None


def chosen_runtime(runtime: Runtime) -> Literal["compiled", "prebuilt"]:
    """Return the runtime that is meant; where neither is installed, the one whose error names both.

    Raises:
        ConfigurationError: there is no such runtime.
    """
    if runtime not in get_args(Runtime):
        raise ConfigurationError(f'runtime must be "auto", "compiled" or "prebuilt", not {runtime!r}.')
    if runtime != "auto":
        return runtime
    return "prebuilt" if is_installed("prebuilt") and not is_installed("compiled") else "compiled"


def model_endpoint(
    model: str | os.PathLike[str],
    *,
    runtime: Runtime = "auto",
    name: str = "device",
    isolation: Literal["thread", "process"] = "thread",
    prompt_cache: PromptCache | None = None,
    drafts: bool = False,
    **sizes: Any,
) -> LlamaCppEndpoint | PrebuiltEndpoint:
    """Make the endpoint of a model that this program runs; nothing is loaded.

    Args:
        model: a name, the path of a GGUF file, or "hf:owner/repo/file.gguf".
        runtime: what runs it.
        name: the endpoint's name in records.
        isolation: of the compiled runtime; the prebuilt one is always a process of its own.
        prompt_cache: of the compiled runtime.
        drafts: whether it is to draft for a server that verifies.
        sizes: `context_tokens`, `threads`; see the endpoints.

    Raises:
        ConfigurationError: the prebuilt runtime is chosen for what only the compiled one can do, or an option is out of
            range.
    """
    if chosen_runtime(runtime) == "prebuilt":
        from disco.endpoints.prebuilt import PrebuiltEndpoint  # noqa: PLC0415 - only if it is used

        for given, what in ((prompt_cache is not None, "prompt_cache"), (drafts, "speculate")):
            if given:
                raise ConfigurationError(
                    f"{what} needs llama-cpp-python, which the prebuilt runtime does without: pip install "
                    f'"disco-llm[local]", or leave {what} out.'
                )
        return PrebuiltEndpoint(model=model, name=name, **sizes)
    from disco.endpoints.llamacpp import LlamaCppEndpoint  # noqa: PLC0415 - only if it is used

    return LlamaCppEndpoint(model=model, name=name, isolation=isolation, prompt_cache=prompt_cache, **sizes)
