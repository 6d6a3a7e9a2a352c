"""The route record of a direct answer: what was noted is played through a session, which every record is made of."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import openai

from disco.client.chat.routed_request import CHAT
from disco.dispatch import features_of
from disco.endpoints.openai_api.chunk_reader import ChatReader
from disco.endpoints.openai_api.chunk_repair import (
    MalformedChunkError,
    ServerReportedError,
    parts_of,
    usage_from,
)
from disco.endpoints.openai_api.error_mapping import failure_from, kind_of_status, kind_of_transport
from disco.endpoints.openai_api.sse import EventSplitter
from disco.errors import EndpointFailure
from disco.events import Delta, DeltaKind, Ended, Usage
from disco.plan import Plan, Start, Why
from disco.playback import Playback
from disco.request import Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record

if TYPE_CHECKING:
    from disco.client.direct.direct_answer import DirectAnswer
    from disco.client.request_options import RequestOptions
    from disco.client.router import Router
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.session.records.route_record import RouteRecord

__all__ = ["read_pieces", "text_of", "write_record"]


def write_record(
    direct: DirectAnswer,
    router: Router,
    server: OpenAIEndpoint,
    body: Mapping[str, Any],
    own: RequestOptions,
    *,
    stream: bool,
) -> RouteRecord:
    """Write the record of an answer that has ended."""
    read_pieces(direct)
    model = str(body.get("model"))
    candidate, preset = router.candidate_of(server, model, own)
    params = {name: value for name, value in body.items() if name not in ("messages", "model")}
    messages = body.get("messages")
    request = Request(messages if isinstance(messages, list) else [], model, params)
    features = features_of(request, stream=stream, local_only=False)
    config = SessionConfig(
        prompt_tokens=features.prompt_tokens or _tokens_in(body.get("input")),
        max_tokens=features.max_tokens,
        streams=stream,
        timeouts=Timeouts(None, None, None, None),
        max_retries=len(repeated(direct)),
    )
    lengths = router.statistics.answer_lengths()
    why = Why("alone", candidate.usual_first_token_s(0), None, candidate.times_from, candidate.times_seen)
    plan = Plan(starts=(Start(candidate.name, 0.0, why),))
    session = Session(plan, {candidate.name: candidate}, config, Playback(None), lengths)
    _play(session, direct, config.prompt_tokens)
    return make_record(session, settle_accounts(session), preset=preset, created_s=direct.created_s)


def _play(session: Session, direct: DirectAnswer, prompt_tokens: int) -> None:
    """Let the session see the answer as it came."""
    number = _play_failures(session, direct)
    given = usage_from(direct.usage) or Usage()
    written = 0
    for at, item in direct.texts:
        deltas = _deltas(item)
        if len(direct.texts) == 1 and deltas[0].tokens:  # a whole answer
            deltas[0].tokens = max(1, given.completion_tokens)
        written += sum(delta.tokens for delta in deltas)
        session.deltas(number, deltas, at)
    was_answered = direct.failed is None or bool(direct.texts)
    usage = Usage(
        given.prompt_tokens or (prompt_tokens if was_answered else 0),
        given.completion_tokens or written,
        given.cached_tokens,
        cache_write_tokens=given.cache_write_tokens,
    )
    end = direct.began_at if direct.ended_at is None else direct.ended_at
    if direct.failed is not None:
        session.failed(number, failure_of(direct.failed), end)
    elif direct.finish_reason is None and direct.is_cancelled:
        session.cancelled(end)
    else:
        session.ended(number, Ended(direct.finish_reason or "stop", usage), end)
    session.stopped(number, usage, end, traffic=direct.traffic)


def _play_failures(session: Session, direct: DirectAnswer) -> int:
    """Let the session see the sends that failed and that the SDK repeated; return the number of the last attempt."""
    session.start(direct.began_at)
    for number, (_, failed_at, why) in enumerate(repeated(direct)):
        kind = kind_of_status(why) if isinstance(why, int) else kind_of_transport(why)
        again = EndpointFailure(kind, RuntimeError("repeated"), retry_after_s=0.0, may_retry=True)
        session.failed(number, again, failed_at)
        session.stopped(number, Usage(), failed_at)
        next_at = direct.sent_at if number + 1 == len(repeated(direct)) else direct.failures[number + 1][0]
        session.woken(next_at)
    return len(repeated(direct))


def repeated(direct: DirectAnswer) -> list[tuple[float, float, BaseException | int]]:
    """Return the failed sends that were followed by another send."""
    return [failure for failure in direct.failures if failure[0] < direct.sent_at]


def failure_of(error: Exception) -> EndpointFailure:
    """Return the failure that an error of the SDK stands for; the SDK has tried again already where that was right."""
    known = failure_from(error, name="server") if isinstance(error, openai.OpenAIError) else None
    kind = kind_of_transport(error) if known is None else known.kind
    return EndpointFailure(kind, error, may_retry=False)


def text_of(direct: DirectAnswer) -> str:
    """Return the text that came."""
    read_pieces(direct)
    return "".join(delta.text for _, item in direct.texts for delta in _deltas(item))


def read_pieces(direct: DirectAnswer) -> None:
    """Parse the parts of a body that were only noted so far."""
    pieces, direct.pieces = direct.pieces, []
    if not pieces:
        return
    if len(pieces) == 1 and pieces[0][1].lstrip()[:1] == b"{":
        _read_document(direct, *pieces[0])
        return
    splitter = direct.splitter = direct.splitter or EventSplitter()
    reader = direct.reader = direct.reader or ChatReader()
    with contextlib.suppress(MalformedChunkError, ServerReportedError, ValueError):
        for at, piece in pieces:
            events = splitter.feed(piece)
            if direct.url != CHAT:
                _read_response_events(direct, at, events)
                continue
            direct.texts += [(at, delta) for delta in reader.read(events)]
            direct.finish_reason = reader.finish_reason
            direct.usage = reader.usage or direct.usage


def _read_document(direct: DirectAnswer, at: float, data: bytes) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(data)
        if not isinstance(body, dict):
            return
        direct.usage = body.get("usage")
        choices = body.get("choices")
        if direct.url != CHAT:
            direct.finish_reason = "stop" if body.get("status") == "completed" else "length"
            direct.texts.append((at, _output_text(body)))
        elif isinstance(choices, list) and choices and isinstance(choices[0], dict):
            reason, message = choices[0].get("finish_reason"), choices[0].get("message")
            direct.finish_reason = None if reason is None else str(reason)
            content = message.get("content") if isinstance(message, dict) else None
            direct.texts.append((at, content if isinstance(content, str) else ""))


def _read_response_events(direct: DirectAnswer, at: float, events: list[bytes]) -> None:
    for data in events:
        event = json.loads(data)
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "response.output_text.delta":
            direct.texts.append((at, str(event.get("delta") or "")))
        elif kind in ("response.completed", "response.incomplete"):
            direct.finish_reason = "stop" if kind == "response.completed" else "length"
            direct.usage = (event.get("response") or {}).get("usage")


def _output_text(body: Mapping[str, Any]) -> str:
    parts = [
        p for item in body.get("output") or [] if isinstance(item, dict) for p in item.get("content") or []
    ]
    return "".join(str(p.get("text") or "") for p in parts if isinstance(p, dict))


def _deltas(item: Any) -> list[Delta]:
    """Return the deltas of what was noted: a text, a delta, a chunk, or a whole message."""
    if isinstance(item, str):
        return [Delta(item, 1 if item else 0, DeltaKind.TEXT if item else DeltaKind.ROLE)]
    if isinstance(item, Delta):
        return [item]
    if hasattr(item, "choices"):
        return [delta for delta, _ in parts_of(item)]
    text = item.content if isinstance(item.content, str) else ""
    tools = bool(item.tool_calls or item.function_call)
    kind = DeltaKind.TEXT if text else DeltaKind.TOOL if tools else DeltaKind.ROLE
    return [Delta(text, int(bool(text or tools)), kind)]


def _tokens_in(text: object) -> int:
    """Return an estimate of the tokens in the input of a request for a response, at four characters each."""
    return -(-len(text if isinstance(text, str) else json.dumps(text, default=str)) // 4)
