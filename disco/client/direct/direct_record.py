"""The route record of a direct answer: what was noted is played through a session, which every record is made of."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import openai

from disco.client.chat.routed_request import CHAT
from disco.client.direct.direct_answer import Document
from disco.dispatch import features_of
from disco.endpoints.openai_api.chunk_reader import ChatReader, ChunkReader
from disco.endpoints.openai_api.error_mapping import failure_from, kind_of_status, kind_of_transport
from disco.endpoints.openai_api.response_reader import ResponseReader
from disco.endpoints.openai_api.whole_documents import as_events
from disco.errors import EndpointFailure
from disco.events import Delta, Ended, Usage
from disco.plan import Plan, Start, Why
from disco.playback import Playback
from disco.request import Request, Timeouts
from disco.session.cut_prompt import least_tokens, tokens_read
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record

if TYPE_CHECKING:
    from disco.client.direct.direct_answer import DirectAnswer
    from disco.session.records.route_record import RouteRecord

__all__ = ["failure_of", "read_notes", "write_record"]


_AT_ONCE = 32  # notes


def write_record(direct: DirectAnswer) -> RouteRecord:
    """Write the record of an answer that has ended."""
    for _ in read_notes(direct):
        pass
    router, body, stream = direct.router, direct.body, direct.is_streamed
    model = str(body.get("model"))
    candidate, preset = router.candidate_of(direct.server, model, direct.own)
    params = {name: value for name, value in body.items() if name not in ("messages", "model")}
    messages = body.get("messages")
    request = Request(messages if isinstance(messages, list) else [], model, params)
    features = features_of(request, stream=stream, local_only=False)
    config = SessionConfig(
        prompt_tokens=features.prompt_tokens,
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
    ended = Ended(direct.finish_reason or "stop", direct.usage, direct.reader.finish_raw)
    if tokens_read(ended, config.prompt_tokens, None) is not None:
        read = tokens_read(ended, config.prompt_tokens, least := least_tokens(request))
        if read is not None:
            router.tell_of_cut(direct.server, model, read, least)
    return make_record(session, settle_accounts(session), preset=preset, created_s=direct.created_s)


def _play(session: Session, direct: DirectAnswer, prompt_tokens: int) -> None:
    """Let the session see the answer as it came."""
    number = _play_failures(session, direct)
    given = direct.usage or Usage()
    written = 0
    for at, deltas in _batches(direct):
        content = [delta for delta in deltas if delta.tokens] if len(direct.notes) == 1 else []
        if content:  # a whole answer
            content[0].tokens = max(1, given.completion_tokens - len(content) + 1)
        written += sum(delta.tokens for delta in deltas)
        session.deltas(number, deltas, at)
    was_answered = direct.failed is None or bool(direct.notes)
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


def _batches(direct: DirectAnswer) -> Iterator[tuple[float, list[Delta]]]:
    """Yield what came, and when; what came within a millisecond is one batch, as one read is to a session."""
    batch: list[Delta] = []
    began = -math.inf
    for at, item in direct.notes:
        if at - began > 1e-3:
            if batch:
                yield began, batch
            batch, began = [], at
        if isinstance(item, str):
            batch.append(Delta(item))
        else:
            batch += cast("list[Delta]", item)
    if batch:
        yield began, batch


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


def read_notes(direct: DirectAnswer) -> Iterator[None]:
    """Put the deltas of what was noted unread in its place: those that a session would get. Yields now and then."""
    reader: ChunkReader = direct.reader or (ChatReader() if direct.url == CHAT else ResponseReader())
    direct.reader = reader
    while direct.notes_read < len(direct.notes):
        place = direct.notes_read
        direct.notes_read += 1
        at, item = direct.notes[place]
        if isinstance(item, bytes):
            direct.notes[place] = at, []
            # Data may be of any shape; what the record would like to know of it must not fail an answer.
            with contextlib.suppress(Exception):
                events: list[bytes] | None = [item]
                if isinstance(item, Document):
                    events = as_events(json.loads(item), of_responses=direct.url != CHAT)
                deltas = reader.read(events or [])
                for delta in deltas:
                    delta.raw = None  # a record shows no chunks
                direct.notes[place] = at, deltas
        if place % _AT_ONCE == 0:
            yield
    direct.finish_reason, direct.usage = reader.finish_reason, reader.usage
