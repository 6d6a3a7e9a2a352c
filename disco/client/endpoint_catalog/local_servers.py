"""Servers on the user's own machines, as the local side."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from disco.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx2

    from disco.candidate import Reach
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.local_server import LocalServerEndpoint

__all__ = ["REACHES", "LocalServer", "is_address", "is_loopback"]

REACHES = ("device", "own", "any")
_EXAMPLE = 'base_url="http://localhost:11434/v1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """An OpenAI-compatible server on this machine, as the local side: Ollama, LM Studio, llama-server, vLLM, ...

    `AsyncDisco(local="http://localhost:11434/v1#qwen3:4b")` is short for a server with this `base_url` and `model`.

    Attributes:
        base_url: the address of its API, mostly `http://localhost:PORT/v1`.
        model: the model to request from it, whatever a request calls the other server's model; None: its only model.
        api_key: its key, if it checks one. Not in repr.
        reach: "device": the server runs on this machine, so it may serve requests that must stay here; its address
            must be this machine's. "own": it runs on another machine of the user's. "any": it passes prompts on to
            other machines.
        continuation: how it continues half-written answers, as for the client; see docs/concepts/continuation.md.
        context_tokens: the most tokens of prompt and answer together; None: the number that the server reports.
            Ollama cuts off longer prompts without an error.
        parameters: how many weights the model has, for its energy; None: the number that the server reports, else
            an assumed one.
        at_once: answers that it writes at the same time; None: the number that the server reports, else 1. Further
            requests wait in this client.
        max_queue: requests that may wait. Further ones go to another endpoint, or are refused.
        logp: whether the server gives log probabilities of what it writes, by which a cascade judges a free answer;
            None: the first answer that is to be judged finds out.
        name: its name in route records; None: "device", or "local" if it is not on this machine.
        http_client: for its connections (proxies, certificates), not with reach="device". Closed with the client.

    Raises:
        ConfigurationError: the address is invalid, or not one of this machine's; a number is out of range.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    reach: Reach = "device"
    continuation: str | Continuation = "auto"
    context_tokens: int | None = None
    parameters: int | None = None
    at_once: int | None = None
    max_queue: int = 256
    logp: bool | None = None
    name: str | None = None
    http_client: httpx2.AsyncClient | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        host = _host(self.base_url)
        if self.reach not in REACHES:
            raise ConfigurationError(f'reach must be "device", "own" or "any", not {self.reach!r}.')
        if self.reach == "device" and not is_loopback(host):
            raise ConfigurationError(
                f"{host} is not this machine, so prompts would leave it. If it is another machine of yours, give "
                f'reach="own" (disco.LocalServer or disco.Tier). It then serves requests that may leave this machine.'
            )
        if self.reach == "device" and self.http_client is not None:
            raise ConfigurationError(
                'A server with reach="device" is connected to directly. Leave http_client out, or set reach="own".'
            )
        if self.model is not None and not self.model.strip():
            raise ConfigurationError("The model's name is empty. Leave it out for the server's only model.")
        numbers = {
            "context_tokens": self.context_tokens,
            "parameters": self.parameters,
            "at_once": self.at_once,
            "max_queue": self.max_queue,
        }
        for option, value in numbers.items():
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}.")
        self._refuse_cloud_model()

    def _refuse_cloud_model(self) -> None:
        # As in `endpoints/local_server/server_info.py`, which also finds cloud models with other names.
        tag = (self.model or "").lower().rpartition(":")[2]
        if (
            self.reach == "device"
            and ":" in (self.model or "")
            and (tag == "cloud" or tag.endswith("-cloud"))
        ):
            raise ConfigurationError(
                f"{self.model!r} is one of Ollama's cloud models: prompts would leave this machine. Use a model that "
                'runs here, or set reach="any" to allow it.'
            )

    @classmethod
    def at(cls, address: str) -> LocalServer:
        """Return the server that `"http://localhost:11434/v1#qwen3:4b"` means; the part behind `#` is the model.

        Raises:
            ConfigurationError: the text is not such an address; the message says what is missing.
        """
        base_url, _, model = address.partition("#")
        if "://" not in base_url:
            raise ConfigurationError(
                f'{address!r} is not a complete address. Write local="http://{address}".'
            )
        return cls(base_url=base_url, model=model or None)

    def endpoint(self, *, assumed_at_once: int = 1) -> LocalServerEndpoint:
        """Make the endpoint; no request is sent.

        `assumed_at_once` replaces `at_once` where neither the user nor the server gives a number.
        """
        from disco.endpoints.continuation import Continuation  # noqa: PLC0415 - the HTTP client loads with it
        from disco.endpoints.local_server import LocalServerEndpoint  # noqa: PLC0415 - as above

        continuation = self.continuation
        if isinstance(continuation, str):
            continuation = Continuation(method=continuation)  # type: ignore[arg-type] # checked by Continuation
        return LocalServerEndpoint(
            base_url=self.base_url,
            model=self.model,
            api_key=self.api_key,
            name=self.name or ("device" if self.reach == "device" else "local"),
            reach=self.reach,
            continuation=continuation,
            context_tokens=self.context_tokens,
            parameters=self.parameters,
            at_once=self.at_once,
            assumed_at_once=assumed_at_once,
            max_queue=self.max_queue,
            logp=self.logp,
            http_client=self.http_client,
        )


def is_address(local: str) -> bool:
    """Return whether `local=` is the address of a server, with or without scheme, not a model's name or path."""
    if "://" in local:
        return True
    host, colon, rest = local.partition(":")
    port = rest.partition("#")[0].partition("/")[0]
    return bool(colon) and port.isdigit() and len(host) > 1  # a drive letter is not a host


def _host(base_url: str) -> str:
    """Return the host of a well-formed base_url.

    Raises:
        ConfigurationError: a part of the address is missing, or is not allowed.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"base_url is not an address ({error}). Example: {_EXAMPLE}.") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"base_url must begin with http:// or https://. Example: {_EXAMPLE}.")
    if not host:
        raise ConfigurationError(f"base_url names no host. Example: {_EXAMPLE}.")
    if parts.username or parts.password:
        raise ConfigurationError("base_url holds a password. Leave it out, and pass the key as api_key.")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"base_url must not contain ? or #. Example: {_EXAMPLE}.")
    origin = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.rstrip("/")
    if path in ("", "/api"):
        raise ConfigurationError(
            f"base_url is {base_url!r}, where no OpenAI API begins. The usual address is {origin}/v1: "
            f'write "{origin}/v1".'
        )
    if path.endswith(("/chat/completions", "/completions", "/models")):
        begins = path.removesuffix("/completions").removesuffix("/chat").removesuffix("/models")
        raise ConfigurationError(f'base_url must end where the API begins: write "{origin}{begins}".')
    del port  # read only to check it
    return host


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its name alone."""
    if host == "localhost" or host.endswith(".localhost"):  # RFC 6761: these never leave the machine
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
