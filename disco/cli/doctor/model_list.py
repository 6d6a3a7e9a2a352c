"""Asks a server for its list of models, which costs nothing, and says in words what came instead of one."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx2
import openai

from disco.cli.doctor.hidden_secrets import known_secrets, quoted

__all__ = ["Listed", "list_models", "why_no_connection"]

_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Listed:
    """What came.

    Attributes:
        kind: a list of models; another JSON document; a web page; neither; or no answer at all.
        status: of the response; None without one.
        models: the names in the list.
        said: the server's message, without anything that it has in common with a secret; empty where there is none.
        code: of the error, such as "insufficient_quota".
        error: why there is no answer.
    """

    kind: Literal["models", "document", "web page", "other", "nothing"]
    status: int | None = None
    models: tuple[str, ...] = ()
    said: str = ""
    code: str = ""
    error: Exception | None = None

    @property
    def is_api(self) -> bool:
        """Whether an OpenAI API seems to answer here: a list, or a refusal of the key as JSON."""
        return self.kind == "models" or (self.kind == "document" and self.status in (401, 403, 429))


async def list_models(client: openai.AsyncOpenAI, url: str = "/models", *, with_key: bool = True) -> Listed:
    """Send one GET and return what came; it raises nothing that the server or the network causes.

    Args:
        client: the server's.
        url: the path below the client's base_url, or a whole address.
        with_key: False leaves the key out.
    """
    options: Any = {"max_retries": 0, "timeout": _LIMIT_S}
    if not with_key:
        options["headers"] = {"Authorization": openai.Omit()}
    try:
        response = await client.get(url, cast_to=httpx2.Response, options=options)
    except openai.APIStatusError as error:
        return _of_response(error.response)
    except (openai.OpenAIError, httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        return Listed("nothing", error=error)
    return _of_response(response)


def _of_response(response: httpx2.Response) -> Listed:
    status = response.status_code
    try:
        document = response.json()
    except (ValueError, UnicodeDecodeError):
        page = "html" in response.headers.get("content-type", "") or response.text.lstrip()[:1] == "<"
        return Listed("web page" if page else "other", status)
    data = document.get("data") if isinstance(document, Mapping) else None
    if isinstance(data, list):
        names = (one.get("id") for one in data if isinstance(one, Mapping))
        return Listed("models", status, tuple(name for name in names if isinstance(name, str)))
    error = document.get("error") if isinstance(document, Mapping) else None
    said = error.get("message") if isinstance(error, Mapping) else error
    code = error.get("code") if isinstance(error, Mapping) else None
    secrets = known_secrets()
    return Listed("document", status, said=quoted(said, secrets), code=quoted(code, secrets))


def why_no_connection(error: BaseException | None) -> tuple[str, str]:
    """Return why a request brought no answer, as the end of a sentence, and the remedy (empty: none is known)."""
    for one in _chain(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not accepted ({one.verify_message})",
                "Check the address and this machine's clock; for a certificate of yours: export SSL_CERT_FILE=FILE.pem",
            )
        if isinstance(one, ssl.SSLError):
            if "WRONG_VERSION" in (one.reason or "") or "RECORD_LAYER" in (one.reason or ""):
                return "it speaks http, not https", "write http:// in place of https://"
            return (
                f"TLS failed ({one.reason or type(one).__name__})",
                "Check the address, and what filters the network",
            )
        if isinstance(one, httpx2.ProxyError):
            return "the proxy refuses the connection", "Check the proxy's address and password"
        if isinstance(one, httpx2.RemoteProtocolError):
            return (
                "it closed the connection, or does not speak HTTP",
                "If the server has a certificate, write https://",
            )
        if isinstance(one, TimeoutError | httpx2.TimeoutException | openai.APITimeoutError):
            return (
                f"nothing came within {_LIMIT_S:.0f} s",
                "Check whether the server, or what is in front of it, hangs",
            )
    return f"the connection broke ({type(error).__name__})", "Try again; check the address"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
