"""Answers that came as one JSON document although a stream was asked for, as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.chunk_repair import ServerReportedError, document_as_event
from disco.endpoints.openai_api.response_reader import TEXT_DELTA, field_of
from disco.endpoints.openai_api.sdk_client import capped
from disco.endpoints.openai_api.sse import MAX_EVENT_BYTES

__all__ = ["events_of_document"]


async def events_of_document(
    response: httpx2.Response, *, name: str, of_responses: bool
) -> list[bytes] | None:
    """Return the events of an answer that came as one JSON document; None for an event stream.

    Args:
        response: as it came; its body is read if it is a document.
        name: the endpoint's, for messages.
        of_responses: the server was asked by `/responses`.

    Raises:
        ServerReportedError: the document is an error object.
        EndpointFailure: the response is neither.
    """
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "text/html":
        raise error_mapping.garbage("answered with a web page", response, name=name)
    if content_type != "application/json":
        return None
    capped(response, MAX_EVENT_BYTES)
    await response.aread()
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and body.get("error"):
        raise ServerReportedError(body["error"])
    if of_responses:
        events = _response_as_events(body)
    else:
        events = None if (event := document_as_event(body)) is None else [event]
    if events is None:
        raise error_mapping.garbage(
            "answered with one JSON document that is no completion", response, name=name
        )
    return events


def _response_as_events(body: object) -> list[bytes] | None:
    """Return a response that came as one document as the events of a stream; None for any other document."""
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
