"""Answers that came as one JSON document although a stream was asked for, as the events of a stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import anyio.lowlevel
import httpx2

from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.chunk_repair import ServerReportedError, document_as_event, reported_error
from disco.endpoints.openai_api.response_reader import TEXT_DELTA, field_of
from disco.endpoints.openai_api.sse import MAX_EVENT_BYTES

__all__ = ["as_events", "document_in", "events_of_document", "is_document"]

_FIELDS = (b"data", b"event", b"id", b"retry", b":")  # an event begins with one of these
_EVENT = re.compile(rb"[\r\n]data:")  # never in a JSON document, whose texts have no line ends
_BOM = b"\xef\xbb\xbf"


def is_document(response: httpx2.Response, first: bytes) -> bool:
    """Return whether a body is one document, such as JSON or a web page, and no stream of events.

    Its first bytes show that: servers send streams under the types of documents, and documents under that of streams.
    Where they do not, the type decides.

    Args:
        response: as it came.
        first: the first bytes of its body that are not blank.
    """
    first = first.removeprefix(_BOM)[:5]
    if first[:1] in (b"{", b"[", b"<"):
        return True
    if any(first.startswith(name) or name.startswith(first) for name in _FIELDS):
        return False
    return _content_type(response) in ("application/json", "text/html")


async def document_in(
    response: httpx2.Response, first: bytes, rest: AsyncIterator[bytes], *, name: str
) -> bytes:
    """Return a document; of a stream that begins with something else, what has come when its first event begins.

    Args:
        response: as it came.
        first: the first bytes of its body.
        rest: the others.
        name: the endpoint's, for messages.

    Raises:
        EndpointFailure: it is a web page, or longer than one event of a stream may be.
    """
    whole = bytearray(first)
    async for piece in rest:
        whole += piece
        if _EVENT.search(whole, max(len(whole) - len(piece) - len(b"\ndata"), 0)):
            return bytes(whole)
        if len(whole) > MAX_EVENT_BYTES:
            what = f"answered with a document of more than {MAX_EVENT_BYTES / 2**20:g} MiB"
            raise error_mapping.garbage(what, response, name=name)
        await anyio.lowlevel.checkpoint()  # what was compressed comes all at once
    begins = first.removeprefix(_BOM)[:1]
    if begins == b"<" or (begins not in (b"{", b"[") and _content_type(response) == "text/html"):
        raise error_mapping.garbage("answered with a web page", response, name=name)
    return bytes(whole)


def events_of_document(
    whole: bytes, response: httpx2.Response, *, name: str, of_responses: bool
) -> list[bytes] | None:
    """Return the events of an answer that comes as one JSON document, the last of which is `[DONE]`.

    None where it is a stream that begins with something else, such as a line of a log: the SDK's reader ignores what
    begins with no field.

    Args:
        whole: what `document_in` returned.
        response: as it came.
        name: the endpoint's, for messages.
        of_responses: the server was asked by `/responses`.

    Raises:
        ServerReportedError: the document is an error object.
        EndpointFailure: the document is no answer.
    """
    if _EVENT.search(whole):
        return None
    try:
        body = json.loads(whole)
    except (ValueError, RecursionError):
        body = None
    error = reported_error(body)
    if error is not None:
        raise ServerReportedError(error)
    events = as_events(body, of_responses=of_responses)
    if events is None:
        raise error_mapping.garbage(
            "answered with one JSON document that is no completion", response, name=name
        )
    return [*events, b"[DONE]"]


def _content_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def as_events(body: object, *, of_responses: bool) -> list[bytes] | None:
    """Return the events of which the stream of a whole answer would consist; None for any other document."""
    if not of_responses:
        return None if (event := document_as_event(body)) is None else [event]
    if not isinstance(body, dict) or not (body.get("object") == "response" or "output" in body):
        return None
    if not isinstance(body.get("output") or [], list):
        return None
    return [
        json.dumps({"type": kind, "sequence_number": number, **fields}).encode()
        for number, (kind, fields) in enumerate(_steps(body))
    ]


def _steps(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    output = body.get("output")
    for index, item in enumerate(output if isinstance(output, list) else []):
        if isinstance(item, dict):
            begun = {**item, "content": []} if isinstance(item.get("content"), list) else item
            yield "response.output_item.added", {"output_index": index, "item": begun}
            if item.get("type") == "message":
                yield from _texts(item, {"item_id": item.get("id"), "output_index": index})
            yield "response.output_item.done", {"output_index": index, "item": item}
    ends = "incomplete" if body.get("status") == "incomplete" else "completed"
    yield f"response.{ends}", {"response": body}


def _texts(item: Mapping[str, Any], where: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    content = item.get("content")
    for index, part in enumerate(content if isinstance(content, list) else []):
        text = field_of(part, "text")
        if isinstance(text, str) and part.get("type") == "output_text":
            at = {**where, "content_index": index}
            probs = part.get("logprobs") or []
            yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
            yield TEXT_DELTA, {**at, "delta": text, "logprobs": probs}
            yield "response.output_text.done", {**at, "text": text, "logprobs": probs}
            yield "response.content_part.done", {**at, "part": part}
