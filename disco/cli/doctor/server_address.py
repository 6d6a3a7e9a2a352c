"""Where the server is: the two environment variables, the proxy, and whether a connection can be made."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

import anyio
import anyio.to_thread
import httpx2

from disco.cli.doctor.finding import (
    Facts,
    Finding,
    Setup,
    does_not,
    installs,
    set_variables,
    sets,
    unchecked,
    works,
)
from disco.cli.doctor.hidden_secrets import bare
from disco.endpoints.openai_api.connectivity import has_route

__all__ = ["ADDRESS", "KEY", "Address", "address", "check_connection", "check_key_form", "why_no_client"]

KEY: Final = "OPENAI_API_KEY"
ADDRESS: Final = "OPENAI_BASE_URL"
USUAL: Final = "https://api.openai.com/v1"
_CONNECT_S: Final = 5.0

# How the keys of some providers begin, and where these keys belong. A beginning that all share is no secret.
_FORMS: Final = (
    ("sk-or-", "OpenRouter", "https://openrouter.ai/api/v1"),
    ("sk-ant-", "Anthropic", "https://api.anthropic.com/v1"),
    ("gsk_", "Groq", "https://api.groq.com/openai/v1"),
    ("xai-", "xAI", "https://api.x.ai/v1"),
    ("AIza", "Google", "https://generativelanguage.googleapis.com/v1beta/openai"),
    ("hf_", "Hugging Face", "https://router.huggingface.co/v1"),
)
_MISNAMED: Final = (
    r"(?i)OPENAI_?(API)?_?(KEY|TOKEN)S?|(OPEN_AI|OPENAPI|LLM|DISCO|DISCO_OPENAI)_(API_)?KEY|API_?KEY"
)
_OF_OTHERS: Final = (
    r"(?i)(AZURE_OPENAI|OPENROUTER|GROQ|MISTRAL|DEEPSEEK|TOGETHER|ANTHROPIC|GEMINI|GOOGLE|XAI|FIREWORKS|NVIDIA"
    r"|CEREBRAS|PERPLEXITY)_(API_)?KEY"
)


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a server's address.

    Attributes:
        shown: the address without a password and without a query.
        host, port: where to connect.
        parts: the address's parts. Not in repr: they may hold a password.
    """

    shown: str
    host: str
    port: int
    parts: SplitResult

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def with_path(self, path: str) -> str:
        """Return the same server's address with another path, to be typed."""
        return f"{self.shown[: len(self.shown) - len(self.parts.path.rstrip('/'))]}{path}"


def address(given: str | None = None) -> Address | None:
    """Return where the server is, by the environment; None where what is set is no address."""
    text = bare(given or os.environ.get(ADDRESS) or USUAL)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    where = f"[{host}]" if ":" in host else host
    shown = f"{parts.scheme}://{where}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
    return Address(shown, host, port or (443 if parts.scheme == "https" else 80), parts)


def check_key_form(setup: Setup, facts: Facts) -> Finding:  # noqa: ARG001 - as all checks
    """Look whether there is a key, and whether it has what no key has. The key itself is never shown."""
    given = os.environ.get(KEY, "")
    key = bare(given)
    if not key:
        return _no_key(given)
    where = address()
    if not key.isascii() or any(not one.isprintable() or one == " " for one in key):
        return does_not(
            "key",
            f"The value of {KEY} holds a character that no key has: a blank, a line break or an odd letter.",
            f"Copy the key again, then: {sets(KEY, '...')}",
        )
    for begins, provider, usual in _FORMS:
        if key.startswith(begins) and where is not None and where.host.endswith("openai.com"):
            return does_not(  # and the key is not sent: it is no business of that server's
                "key",
                f"{KEY} looks like a key of {provider}, but the address is {where.shown}: it was not sent there.",
                sets(ADDRESS, usual),
            )
    facts.key = key
    if given != key:
        return does_not(
            "key",
            f"{KEY} holds more than the key: {_wrapping(given)}. The checks below use the key without it.",
            f"{sets(KEY, '...')} with the key alone: no line break, no blanks, no quotes inside it, no word before it",
        )
    return works("key", f"{KEY} is set.")


async def check_connection(setup: Setup, facts: Facts) -> Finding | None:
    """Look at the address and the proxy, look the name up, and connect."""
    del setup
    given = os.environ.get(ADDRESS, "")
    where = address()
    if where is None:
        return does_not("address", *_no_address(given))
    if given != bare(given):
        what = f"{ADDRESS} holds more than an address: {_wrapping(given)}."
        return does_not("address", what, sets(ADDRESS, where.shown))
    if not facts.key:
        return None
    no_client = why_no_client()
    if no_client is not None:
        return no_client
    host, port = where.host, where.port
    via = ""
    proxy = _proxy(where)
    if proxy is not None:
        variable, proxied = proxy
        if proxied is None:
            return does_not(
                "proxy",
                f"{variable} is set, but is no address of a proxy.",
                f"unset {variable}, or {sets(variable, 'http://HOST:PORT')}",
            )
        host, port, via = (
            proxied.host,
            proxied.port,
            f" through the proxy {proxied.host}:{proxied.port} ({variable})",
        )
    fault = await _unreachable(host, port)
    if fault is not None:
        what, remedy = fault
        if via:
            what = f"{variable} sends requests to {where.host} through the proxy {host}:{port}, and {what}."
            remedy = f"unset {variable}, or correct it; or {sets('NO_PROXY', where.host)} to go past it"
            return does_not("proxy", what, remedy)
        return does_not("connection", f"{where.shown}: {what}.", remedy or _correct(given))
    facts.is_reached = True
    return works("connection", f"{where.shown} can be reached{via}.")


def why_no_client() -> Finding | None:
    """Return why no HTTP client can be made with what the environment says; None where one can."""
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        named = os.environ.get(variable)
        if named and not Path(named).exists():
            return does_not(
                "certificates",
                f"{variable} names {named}, which does not exist.",
                f"unset {variable}, or correct it",
            )
    for variable, value in set_variables(r"(?i)(https?|all)_proxy").items():
        if value.lower().startswith("socks") and find_spec("socksio") is None:
            return does_not(
                "proxy",
                f"{variable} names a SOCKS proxy, for which a package is missing.",
                installs("socksio"),
            )
    try:
        httpx2.AsyncClient()  # as the SDK's own, which would complain as it goes
    except Exception as error:  # noqa: BLE001 - whatever the environment makes of it; its message may hold a password
        return does_not(
            "connection",
            f"No HTTP client can be made of the environment ({type(error).__name__}).",
            f"Look at {ADDRESS}, HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE",
        )
    return None


def _correct(given: str) -> str:
    return f"Correct {ADDRESS}" if given else "Check the network; behind a company's proxy, set HTTPS_PROXY"


async def _unreachable(host: str, port: int) -> tuple[str, str] | None:
    """Return why no connection can be made, and a remedy; None where one can."""
    looked_up: object = None
    with anyio.move_on_after(_CONNECT_S):
        try:
            # In a thread that is left alone: the event loop's own would hold up the end of the program.
            looked_up = await anyio.to_thread.run_sync(
                lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), abandon_on_cancel=True
            )
        except (OSError, UnicodeError):
            if not has_route(host, port):
                return "this machine has no network", "Connect to a network"
            return f"there is no machine with the name {host} (the look-up failed)", ""
    if looked_up is None:
        return f"looking up the name {host} took longer than {_CONNECT_S:.0f} s", "Check this machine's DNS"
    try:
        with anyio.fail_after(_CONNECT_S):
            stream = await anyio.connect_tcp(host, port)
            await stream.aclose()
    except TimeoutError:
        return (
            f"nothing answered on port {port} within {_CONNECT_S:.0f} s",
            "Check the port, and any firewall",
        )
    except OSError:
        if not has_route(host, port):
            return "this machine has no network", "Connect to a network"
        return (
            f"nothing listens on port {port} (connection refused)",
            "Start the server there, or correct the port",
        )
    return None


def _proxy(where: Address) -> tuple[str, Address | None] | None:
    """Return the variable that names the proxy of this address, and the proxy; None where there is none."""
    scheme = where.parts.scheme
    proxies = getproxies()
    name = scheme if proxies.get(scheme) else "all" if proxies.get("all") else None
    if name is None or proxy_bypass(where.host):
        return None
    variable = next(
        (one for one in (f"{name}_proxy", f"{name}_PROXY".upper()) if os.environ.get(one)), f"{name} proxy"
    )
    value = proxies[name]
    proxied = address(value if "://" in value else f"http://{value}")
    return variable, proxied


def _no_address(given: str) -> tuple[str, str]:
    if "://" not in given and bare(given).startswith(("sk-", *(form[0] for form in _FORMS))):
        return (
            f"{ADDRESS} holds a key, it seems, and no address.",
            f"{sets(KEY, '...')} with the key, and {sets(ADDRESS, 'https://HOST/v1')}",
        )
    return (
        f"{ADDRESS} is no address: it must begin with http:// or https:// and name a host.",
        f"{sets(ADDRESS, 'https://HOST/v1')}, or unset {ADDRESS} for OpenAI's own",
    )


def _no_key(given: str) -> Finding:
    if given:
        return does_not(
            "key", f"{KEY} is set, but holds no key: blanks or quotes only.", f"{sets(KEY, '...')}"
        )
    if os.environ.get(ADDRESS):
        return does_not(
            "key",
            f"{ADDRESS} names a server, but {KEY} is not set: disco then has no server, and does not ask this one.",
            f"{sets(KEY, '...')}   (any text, such as none, where the server checks no key)",
        )
    misnamed = sorted(name for name in set_variables(_MISNAMED) if name != KEY)
    if misnamed:
        what = f"{KEY} is not set. {misnamed[0]} is set, but nothing reads it."
        return does_not("key", what, sets(KEY, like=misnamed[0]))
    for name in sorted(set_variables(_OF_OTHERS)):
        if name.upper().startswith("AZURE"):
            told, remedy = "only disco.AzureDisco, in a program, reads it", sets(KEY, "...")
        else:
            usual = next((form[2] for form in _FORMS if form[1].upper() in name.upper()), "https://HOST/v1")
            told = "no command reads it"
            remedy = f"{sets(KEY, like=name)} and {sets(ADDRESS, usual)}"
        return unchecked("key", f"{KEY} is not set: there is no server. {name} is set, but {told}.", remedy)
    what = f"{KEY} is not set: there is no server, and every answer comes from this machine."
    return unchecked("key", what, sets(KEY, "..."))


def _wrapping(given: str) -> str:
    parts = []
    if "\n" in given or "\r" in given:
        parts.append("a line break")
    inner = given.strip()
    if given.strip("\r\n") != given.strip("\r\n").strip():
        parts.append("blanks at an end")
    if inner[:1] in "\"'`“”‘’" or inner[-1:] in "\"'`“”‘’":
        parts.append("quotes")
    if inner.lower().lstrip("\"'`“”‘’ ").startswith("bearer "):
        parts.append("the word Bearer")
    return " and ".join(parts) or "something around it"
