"""Servers on this machine: the one that `--local` names, and those that answer on the usual ports."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import anyio
import httpx2
import openai

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, split_message, typed, unchecked, works
from disco.cli.doctor.model_list import list_models, why_no_connection
from disco.cli.doctor.server import continuation_finding
from disco.client.endpoint_catalog.local_servers import LocalServer, is_address
from disco.endpoints.local_server import LocalServerEndpoint
from disco.endpoints.local_server.server_info import About, Kind, ask, is_cloud_name
from disco.errors import ConfigurationError, DiscoError, EndpointFailure

__all__ = ["check_found_servers", "check_local_server"]

_NAMES: Final[dict[Kind, str]] = {
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
    "llama-server": "llama-server",
    "vllm": "vLLM",
    "other": "A server",
}
# What starts the server that usually listens on a port.
_STARTS: Final = {
    11434: "ollama serve",
    1234: "lms server start   (LM Studio)",
    8080: "llama-server -m MODEL.gguf --port 8080",
    8000: "vllm serve MODEL",
}
USUAL_PORTS: Final = tuple(_STARTS)
_LOOK_S: Final = 3.0


async def check_local_server(setup: Setup, facts: Facts) -> list[Finding] | Finding | None:
    """Query the server that `--local` names, let it load its model, and let it write a token."""
    if setup.local is None or not is_address(setup.local):
        return None
    try:
        server = LocalServer.at(setup.local)
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not("local server", what, remedy)
    endpoint = server.endpoint()
    try:
        return await _visited(endpoint, setup, facts)
    finally:
        await endpoint.aclose()


async def check_found_servers(setup: Setup, facts: Facts) -> list[Finding]:
    """Look for servers on `USUAL_PORTS`, all at once."""
    named = setup.local or ""
    ports = [port for port in USUAL_PORTS if f":{port}/" not in named]
    found: dict[int, About] = {}

    async def look(port: int) -> None:
        server = LocalServer(base_url=f"http://localhost:{port}/v1").endpoint()
        try:
            with suppress(openai.APIError, httpx2.HTTPError, TimeoutError), anyio.fail_after(_LOOK_S):
                about = await ask(server.client, None)
                if about.models is not None:
                    found[port] = about
        finally:
            await server.aclose()

    async with anyio.create_task_group() as group:
        for port in ports:
            group.start_soon(look, port)
    return [_introduced(port, found[port], facts) for port in ports if port in found]


async def _visited(endpoint: LocalServerEndpoint, setup: Setup, facts: Facts) -> list[Finding] | Finding:
    where = endpoint.where
    listed = await list_models(endpoint.client)
    if listed.kind == "nothing":
        port = endpoint.address[1]
        start = _STARTS.get(port, "Start the server there")
        if not await _listens(*endpoint.address):
            return does_not(
                "local server", f"Nothing answers at {where}.", f"{start}; or correct the address (--local)"
            )
        why, remedy = why_no_connection(listed.error)
        return does_not("local server", f"{where}: {why}.", remedy)
    if listed.kind == "web page":
        return does_not(
            "local server",
            f"{where} answers with a web page, not with JSON: another program is there, or the API is at another "
            "path.",
            "Correct the address: --local http://localhost:PORT/v1#MODEL",
        )
    if listed.status in (401, 403):
        return does_not(
            "local server",
            f"The server at {where} wants a key ({listed.status}).",
            f'In a program: local=LocalServer(base_url="{where}", api_key=...); the commands send none, so start the '
            "server without one",
        )
    try:
        await endpoint.introduce()
    except EndpointFailure as failure:
        return await _refused(endpoint, failure)
    about = endpoint.about or About()
    began_at = time.perf_counter()
    try:
        with anyio.fail_after(setup.within_s):
            await endpoint.warm_up()
    except TimeoutError:
        return unchecked(
            "local server",
            f"{_NAMES[about.kind]} at {where} was still loading {endpoint.served_model} after {setup.within_s:.0f} s.",
            "Try again once it is loaded, or give it more time: disco doctor --within 300",
        )
    except DiscoError as error:
        what, remedy = split_message(error)
        return does_not("local server", what, remedy or "Look at the server's log")
    about = endpoint.about or about
    facts.local_address = f"{where}#{endpoint.served_model}"
    took_s = time.perf_counter() - began_at
    context = "" if about.context_tokens is None else f", {about.context_tokens:,} tokens of context"
    found = [
        works(
            "local server",
            f"{_NAMES[about.kind]} at {where} answers with {endpoint.served_model} ({took_s:.1f} s with loading and "
            f"the probe{context}).",
        )
    ]
    verdict = endpoint.verdicts.get((endpoint.base_url, endpoint.served_model or ""))
    if verdict is not None and verdict.conclusive:
        found.append(continuation_finding(verdict, "local continuation"))
    return found


async def _refused(endpoint: LocalServerEndpoint, failure: EndpointFailure) -> Finding:
    what, remedy = split_message(failure.error)
    with suppress(openai.OpenAIError, httpx2.HTTPError):
        about = await ask(endpoint.client, endpoint.model)
        if about.kind == "ollama" and about.runs_at is None and endpoint.model is not None:
            remedy = f"ollama pull {typed(endpoint.model)}; or name one that is there. {remedy}"
        elif about.kind == "ollama" and not about.models:
            remedy = f"ollama pull qwen3:4b, then --local {endpoint.where}#qwen3:4b"
    return does_not("local server", what, remedy)


def _introduced(port: int, about: About, facts: Facts) -> Finding:
    name, where = _NAMES[about.kind], f"http://localhost:{port}/v1"
    models = [one for one in about.models or () if not (about.kind == "ollama" and is_cloud_name(one))]
    if not models:
        pull = "ollama pull qwen3:4b" if about.kind == "ollama" else "Load a model there"
        return works("found server", f"{name} answers on port {port}, and has no model that runs here.", pull)
    facts.local_address = facts.local_address or f"{where}#{models[0]}"
    shown = ", ".join(models[:5]) + (f" and {len(models) - 5} more" if len(models) > 5 else "")
    return works(
        "found server",
        f"{name} answers on port {port} with {shown}.",
        f"--local {typed(f'{where}#{models[0]}')}   (in a program: local={f'{where}#{models[0]}'!r})",
    )


async def _listens(host: str, port: int) -> bool:
    with suppress(OSError, TimeoutError), anyio.fail_after(_LOOK_S):
        stream = await anyio.connect_tcp(host, port)
        await stream.aclose()
        return True
    return False
