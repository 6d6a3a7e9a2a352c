"""The endpoint of a local model that is named by a name or a file: a host process, which this program starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from disco.endpoints.runtimes import Runtime, chosen_program
from disco.errors import ConfigurationError

if TYPE_CHECKING:
    from disco.endpoints.host import HostEndpoint
    from disco.endpoints.saved_prompts import PromptCache

__all__ = ["model_endpoint"]


def model_endpoint(
    model: str | os.PathLike[str],
    *,
    runtime: Runtime = "auto",
    name: str = "device",
    prompt_cache: PromptCache | None = None,
    drafts: bool = False,
    mmproj: str | os.PathLike[str] | None = None,
    **more: Any,
) -> HostEndpoint:
    """Make the endpoint of a model that this program starts; nothing is loaded.

    Args:
        model: a name, the path of a GGUF file, or "hf:owner/repo/file.gguf".
        runtime: what runs it.
        name: the endpoint's name in records.
        prompt_cache: of the engine.
        drafts: whether it is to draft for a server that verifies, which only the engine can.
        mmproj: the projector with which it sees images, which only llama-server uses.
        more: `context_tokens`, `threads`, `lora`; see the endpoint.

    Raises:
        ConfigurationError: llama-server is chosen for what only the engine can do, or an option is out of range.
    """
    program = chosen_program(runtime, sees=mmproj is not None)
    for given, what in ((prompt_cache is not None, "prompt_cache"), (drafts, "speculate")):
        if given and mmproj is not None:
            raise ConfigurationError(
                f"{what} needs disco's own engine, and mmproj needs llama-server: leave one of the two out."
            )
        if given and program != "engine":
            raise ConfigurationError(
                f'{what} needs disco\'s own engine, which is not what runs here: pip install "disco-llm[local]" and '
                f'leave runtime="llama-server" out, or leave {what} out.'
            )
    from disco.endpoints.host import HostEndpoint  # noqa: PLC0415 - only if it is used

    return HostEndpoint(
        model=model, name=name, runtime=program, prompt_cache=prompt_cache, mmproj=mmproj, **more
    )
