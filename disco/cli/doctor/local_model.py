"""The model that this program starts: its file, whether it can chat, its first tokens, and this machine's profile."""

from __future__ import annotations

import importlib
import re
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from disco.cli.doctor.finding import (
    Facts,
    Finding,
    Setup,
    command,
    does_not,
    split_message,
    unchecked,
    works,
)
from disco.cli.doctor.packages import rebuilt, why_not_loaded
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.endpoints.llamacpp.model.model_files import check_model_file, locate, resolve_model, short_name
from disco.errors import ConfigurationError, DiscoError, EndpointFailure, ModelFileError
from disco.events import Delta, Ended
from disco.profiles import available_profiles, load_device
from disco.request import Request

if TYPE_CHECKING:
    from disco.endpoints.contract import Endpoint

__all__ = ["check_first_tokens", "check_model_file_of", "check_profile", "tried"]

_TOKENS: Final = 8
_CONTEXT_TOKENS: Final = 512
_HF: Final = "hf:"


def check_model_file_of(setup: Setup, facts: Facts) -> list[Finding] | Finding | None:
    """Find the model's file, and read its header: whether it is whole, and whether it has a chat template."""
    local = setup.local
    if local is None or not setup.names_a_model:
        return None
    try:
        if local.startswith(_HF) and not _is_downloaded(local):
            return unchecked(
                "model file",
                f"{local} is not on this machine yet.",
                f"{command('chat', '--local', local)}   (downloads it first)",
            )
        path = resolve_model(local)
        header = check_model_file(path)
    except (ConfigurationError, ModelFileError) as error:
        what, remedy = split_message(error)
        return does_not("model file", what, remedy or "Name a GGUF file with --local")
    facts.model_file = path
    trained = header.trained_context_tokens
    context = "" if trained is None else f", trained for {trained:,} tokens"
    found = [
        works(
            "model file", f"{path} is a whole GGUF file of {path.stat().st_size / 2**20:,.0f} MiB{context}."
        )
    ]
    if not isinstance(header.metadata.get("tokenizer.chat_template"), str):
        facts.can_chat = False
        found.append(
            does_not(
                "chat template",
                "The file has no chat template, so the model cannot answer messages.",
                "Name an instruct model with --local; in a program, HostEndpoint(model=..., chat_template=...) "
                "takes a template of your own",
            )
        )
    return found


async def check_first_tokens(setup: Setup, facts: Facts) -> Finding | None:
    """Load the model in a process of its own, and let it write a few tokens: llama.cpp may crash at the first."""
    if setup.local is None or not setup.names_a_model:
        return None
    because = {
        "its file cannot be used": facts.model_file is None,
        "what runs it is missing": facts.runtime_is_there is not True,
        "it has no chat template": facts.can_chat is False,
        "it does not fit into memory": facts.model_fits is False,
    }
    for why, holds in because.items():
        if holds:
            return unchecked("local model", f"The model was not loaded, because {why}: see above.")
    endpoint = model_endpoint(
        setup.local,
        runtime=setup.runtime,
        context_tokens=_CONTEXT_TOKENS,
        load_within_s=setup.within_s,
        hang_s=setup.within_s,
    )
    began_at = time.perf_counter()
    try:
        await endpoint.warm_up()
        return await tried(
            endpoint,
            short_name(setup.local),
            time.perf_counter() - began_at,
            where=", in a process of its own",
        )
    except (EndpointFailure, DiscoError) as error:
        return await _failed(setup, error.error if isinstance(error, EndpointFailure) else error)
    finally:
        await endpoint.aclose()


def check_profile(setup: Setup, facts: Facts) -> Finding | None:  # noqa: ARG001 - as all checks
    """Look whether this machine was measured with the local model."""
    if setup.local is None or not setup.names_a_model:
        return None
    name = short_name(setup.local)
    try:
        if name not in available_profiles("device"):
            return unchecked(
                "profile",
                f"This machine was not measured with {name}: plans begin with cautious figures, which answers correct.",
                f"{command('profile', setup.local)}   (about a minute)",
            )
        profile = load_device(name)
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not(
            "profile", what, remedy or f"Delete the file, then: {command('profile', setup.local)}"
        )
    return works(
        "profile",
        f"{name}: reads {profile.prefill_tps:.0f} and writes {profile.decode_tps:.0f} tokens/s ({profile.source}).",
    )


async def tried(endpoint: Endpoint, name: str, load_s: float, *, where: str = "") -> Finding:
    """Let an endpoint that is loaded write a few tokens.

    Args:
        endpoint: the endpoint.
        name: how it is shown.
        load_s: how long loading took, s.
        where: where it runs, for the sentence.

    Raises:
        EndpointFailure: it cannot.
    """
    loaded_at = time.perf_counter()
    request = Request([{"role": "user", "content": "Say hello."}], model="", params={"max_tokens": _TOKENS})
    first_at, tokens = None, 0
    async with endpoint.open(request) as attempt:
        async for item in attempt:
            if isinstance(item, list):
                deltas = [one for one in item if isinstance(one, Delta)]
                first_at = first_at or time.perf_counter()
                tokens += sum(one.tokens for one in deltas)
            elif isinstance(item, Ended):
                break
    if first_at is None:
        return does_not(
            "local model",
            f"{name} was loaded, but wrote nothing.",
            "Name another model with --local",
        )
    return works(
        "local model",
        f"{name} loads in {load_s:.1f} s and writes its first word after {first_at - loaded_at:.2f} s"
        f"{where}.",
    )


async def _failed(setup: Setup, error: Exception) -> Finding:
    """Return what the failure of a model's process means; an illegal instruction is code for another processor."""
    what, remedy = split_message(error)
    crash = re.search(r"\((SIGILL|SIGSEGV|SIGABRT|SIGBUS|SIGFPE)\)", what)
    if crash is None:
        # The library alone: in a thread that is left alone if it hangs.
        because = await anyio.to_thread.run_sync(why_not_loaded, setup, abandon_on_cancel=True)
        return because or does_not("local model", what, remedy or "Name another model with --local")
    cause = (
        "llama.cpp was compiled for another processor" if crash[1] == "SIGILL" else "llama.cpp has a fault"
    )
    return does_not(
        "local model",
        f"llama.cpp crashes before the first word: {crash[1]}. {cause}, or miscompiled (GCC 12 does that to its code "
        "for AMX). Each answer of the model would fail over to another endpoint.",
        rebuilt(setup),
    )


def _is_downloaded(local: str) -> bool:
    """Return whether a file of the Hugging Face hub is in its cache.

    Raises:
        ConfigurationError: the name has another form, or the package is missing that fetches it.
    """
    parts = local.removeprefix(_HF).split("/", 2)
    if len(parts) < 3 or not all(parts) or find_spec("huggingface_hub") is None:
        locate(local)  # raises the error that says what is missing
    hub = importlib.import_module("huggingface_hub")  # an optional package
    found = hub.try_to_load_from_cache(f"{parts[0]}/{parts[1]}", parts[2])
    return isinstance(found, str) and Path(found).exists()
