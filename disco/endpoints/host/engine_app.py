"""The API of the engine: OpenAI's, and what disco's own clients ask for besides.

    GET  /health                       {"status": "ok"}; needs no key
    GET  /v1/models                    the model, as OpenAI lists one
    GET  /v1/disco/host                what the engine is and can do (`facts`)
    POST /v1/chat/completions          an answer, streamed or whole
    POST /v1/disco/answers/ID          {"do": "park" | "pause" | "resume" | "follow" | "extend", …}: to a running answer
    POST /v1/disco/prompt-size         how long a prompt is
    POST /v1/disco/log-probabilities   how probable texts are as answers
    POST /v1/disco/measurements        how fast the engine is, in events
    POST /v1/disco/drafts              a drafting: events until its client leaves
    POST /v1/disco/drafts/ID           one order of it
    POST /v1/disco/rounds              a round of a verify server (`speculate.messages`)
    POST /v1/disco/rounds/KEY          {"do": "release"}: nobody will ask for this answer again

A request for an answer may have a field `disco`:

    {"id": "0f3c…", "mode": "write" | "park" | "follow", "prefix": {"text": …}, "wants": ["logp"], "classes": [],
     "cap": 64, "drafts": null, "may_be_saved": true, "number": 0}

Its chunks then have one, too (`event_coding`). `id` is what the answer is found by while it runs, and `number` that of
the text that a follower was given last. An answer ends when its client closes the connection.

A split model (`SplitEndpoint`) gives answers, and of the rest nothing; its facts have a field `split` (`SplitFacts`).
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import anyio
from starlette.types import Receive, Scope, Send

from disco.endpoints.contract import Attempt, Endpoint
from disco.endpoints.drafter import Drafting, DraftOrder
from disco.endpoints.event_coding import (
    choice_of,
    error_fields,
    extras_of,
    speculation_fields,
    status_of,
    used,
)
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.batching.round_refusals import RoundRefused
from disco.endpoints.llamacpp.runtime.job import failure_of
from disco.errors import EndpointFailure, FailureKind, NoEndpointError
from disco.events import (
    Delta,
    DeltaKind,
    Ended,
    Parked,
    Progress,
    SpeculationReport,
    Started,
    Traffic,
    Usage,
)
from disco.request import Prefix
from disco.request_checks import check_host_body, checked_order, checked_prefix
from disco.speculate.messages import BadMessageError, Round

if TYPE_CHECKING:
    from disco.endpoints.split.split_endpoint import SplitEndpoint

__all__ = ["EXTENSIONS", "EngineApp"]

EXTENSIONS: Final = (
    *("answers", "drafts", "label_scores", "log_probabilities", "logp", "measurements", "park", "pause"),
    *("follow", "prompt_size", "progress", "rounds"),
)
_MOST_BYTES: Final = 64 * 2**20
_LOOK_S: Final = 0.1  # how often usage is told that no event tells
_BUSY_S: Final = 0.02
_WANTS: Final = frozenset({"logp", "label_scores", "progress"})
_NO_USAGE: Final = Usage()
_NO_TRAFFIC: Final = Traffic()
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class _Gone(Exception):
    """The client has closed the connection."""


class EngineApp:
    """The ASGI application.

    Args:
        engine: runs the model, which is loaded.
        split: gives the answers where that is a split model's; None: the engine.
        key: what callers have to show; None: nothing.
        settings: what the host was told.

    Mutable: `_answers` (those that run, by id), `_writing` (their number, with those of other clients), `_draftings`.
    """

    def __init__(
        self,
        engine: EngineEndpoint,
        *,
        split: SplitEndpoint | None = None,
        key: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        self._engine, self._split = engine, split
        self._key = None if key is None else f"Bearer {key}".encode()
        self._settings = settings
        self._name = str(settings["alias"])
        self._made_at = int(time.time())
        self._answers: dict[str, _Answer] = {}
        self._writing = 0
        self._draftings: dict[str, Drafting] = {}

    @property
    def saves(self) -> bool:
        """Whether the engine has something to do before it ends."""
        return self._settings["prompt_cache"] is not None

    def facts(self) -> dict[str, Any]:
        """Return what the engine is and can do, as JSON values."""
        can = self._engine.capabilities()
        split = None if self._split is None else self._split.facts()
        return {
            "version": 1,
            "kind": "engine",
            "model": self._name,
            "context_tokens": can.context_tokens,
            "vocabulary": can.vocabulary,
            "parameters": self._engine.parameters,
            "slots": self._engine.engine.facts().slots,
            "load_s": can.load_s,
            "answers": self._writing,
            "features": sorted(can.features or ()),
            "extensions": sorted(EXTENSIONS if self._split is None else ("answers",)),
            "verifier": self._engine.engine.facts().to_json() if self._split is None else None,
            "ready": can.ready,
            "split": None if split is None else split.to_json(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        reply = _Reply(send)
        try:
            await self._route(scope, receive, reply)
        except _Gone:
            pass
        except Exception as error:  # noqa: BLE001 - reported to the client, whatever the error
            await reply.fail(_as_failure(error))

    async def _route(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/health":
            await reply.whole(200, {"status": "ok"})
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if self._key is not None and not hmac.compare_digest(given, self._key):
            await reply.refuse(401, "This host answers who has its key.", "invalid_api_key")
            return
        if method == "GET":
            if path == "/v1/models":
                one = {"id": self._name, "object": "model", "created": self._made_at, "owned_by": "disco"}
                await reply.whole(200, {"object": "list", "data": [one]})
            elif path == "/v1/disco/host":
                await reply.whole(200, self.facts())
            else:
                await reply.refuse(404, "There is no such path.", "not_found")
            return
        routes: dict[str, Callable[[Any, _Reply], Awaitable[None]]] = {"/v1/chat/completions": self._answer}
        others: dict[str, Callable[[Any, _Reply], Awaitable[None]]] = {
            "/v1/disco/prompt-size": self._prompt_size,
            "/v1/disco/log-probabilities": self._log_probabilities,
            "/v1/disco/measurements": self._measure,
            "/v1/disco/drafts": self._drafting,
            "/v1/disco/rounds": self._round,
        }
        orders: dict[str, Any] = {"/v1/disco/answers/": self._order}
        if self._split is None:
            routes |= others
            orders |= {"/v1/disco/drafts/": self._draft, "/v1/disco/rounds/": self._release}
        serve = routes.get(path)
        if serve is None:
            for base, order in orders.items():
                if path.startswith(base):
                    key = path.removeprefix(base)

                    async def serve(body: Any, reply: _Reply, key: str = key, order: Any = order) -> None:
                        await order(key, body, reply)

        if serve is None or method != "POST":
            await reply.refuse(404, "There is no such path.", "not_found")
            return
        body = _parsed(await _body(receive))
        check_host_body(path.removeprefix("/v1/disco/"), body)
        await _while_connected(receive, lambda: serve(body, reply))

    # Answers

    async def _answer(self, body: Mapping[str, Any], reply: _Reply) -> None:
        answer = _Answer(self._split or self._engine, self._name, body)
        self._writing += 1
        try:
            if answer.extras is None:
                await answer.plain(reply)
                return
            self._answers[answer.key] = answer
            try:
                await answer.extended(reply)
            finally:
                del self._answers[answer.key]
        finally:
            self._writing -= 1

    async def _order(self, key: str, body: Mapping[str, Any], reply: _Reply) -> None:
        answer = self._answers.get(key)
        if answer is None:
            await reply.refuse(404, "No such answer runs.", "answer_over")
            return
        await reply.whole(200, {"done": answer.do(body)})

    # What is no answer

    async def _prompt_size(self, body: Mapping[str, Any], reply: _Reply) -> None:
        request, _, _ = checked_order({"messages": body["messages"]}, {})
        size = await self._engine.prompt_size(request, float(body["within_s"]))
        await reply.whole(200, {"size": None if size is None else [size.tokens, size.cached_tokens]})

    async def _log_probabilities(self, body: Mapping[str, Any], reply: _Reply) -> None:
        request, _, _ = checked_order({"messages": body["messages"]}, {})
        found = await self._engine.log_probabilities(request, body["texts"])
        await reply.whole(200, {"log_probabilities": found})

    async def _measure(self, body: Mapping[str, Any], reply: _Reply) -> None:
        await reply.begin_events()
        done, steps = anyio.create_memory_object_stream[tuple[int, int]](1024)

        async def tell() -> None:
            async for step in steps:
                await reply.event({"progress": step})

        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            failed: EndpointFailure | None = None
            found: Any = None
            try:
                found = await self._engine.measure(
                    **body, progress=lambda *step: done.send_nowait((step[0], step[1]))
                )
            except Exception as error:  # noqa: BLE001 - told in the stream
                failed = _as_failure(error)
            done.close()
        if failed is not None:
            await reply.fail(failed)
            return
        await reply.event({"measurement": asdict(found)})
        await reply.end_events()

    # Drafts

    async def _drafting(self, body: Mapping[str, Any], reply: _Reply) -> None:
        drafting = self._engine.drafter().open(seed=body["seed"], sampling=body["sampling"])
        key = str(body["id"])
        self._draftings[key] = drafting
        try:
            await reply.begin_events()
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, drafting, reply)
                try:
                    await drafting.read(body["prompt_ids"])
                except EndpointFailure as failure:
                    await reply.event({"error": error_fields(failure)})
                else:
                    await reply.event({"read": True, "used": used(drafting.usage)})
        finally:
            del self._draftings[key]
            with anyio.CancelScope(shield=True):
                await drafting.aclose()

    async def _watch(self, drafting: Drafting, reply: _Reply) -> None:
        """Tell how a drafting reads, and whether a draft would have to wait, until its client leaves."""
        was: Any = None
        while True:
            progress = drafting.progress
            now = (drafting.busy, progress)
            if now != was:
                told = None if progress is None else list(_numbers(progress))
                await reply.event({"busy": now[0], "progress": told, "used": used(drafting.usage)})
            was = now
            await anyio.sleep(_BUSY_S)

    async def _draft(self, key: str, body: Mapping[str, Any], reply: _Reply) -> None:
        drafting = self._draftings.get(key)
        if drafting is None:
            raise _refused("The drafting is over.", FailureKind.CRASHED)
        if body.get("do") == "stop":
            drafting.stop()
            await reply.whole(200, {"done": True})
            return
        check_host_body("draft", body)
        order = DraftOrder(
            body["number"], body["keep"], tuple(body["append"]), body["count"], body["stop_below"]
        )
        found = await drafting.draft(order)
        await reply.whole(
            200,
            {
                "number": found.number,
                "ids": found.ids,
                "took_s": found.took_s,
                "read_tokens": found.read_tokens,
                "used": used(drafting.usage),
                "busy": drafting.busy,
            },
        )

    # Rounds

    async def _round(self, body: Mapping[str, Any], reply: _Reply) -> None:
        try:
            asked = Round.from_json(body)
        except BadMessageError as error:
            raise _refused(f"Invalid round: {error}.") from None
        try:
            async with aclosing(self._engine.engine.round(asked)) as verdicts:
                async for verdict in verdicts:
                    if not asked.alone:
                        await reply.whole(200, verdict.to_json())
                        return
                    if not reply.has_begun:
                        await reply.begin_events()
                    await reply.event(verdict.to_json())
        except RoundRefused as refused:
            await reply.refuse(409, refused.message, refused.code)
            return
        if not reply.has_begun:
            raise _refused("The engine gave no verdict.", FailureKind.CRASHED)
        await reply.end_events()

    async def _release(self, key: str, body: Mapping[str, Any], reply: _Reply) -> None:
        if body.get("do") != "release":
            raise _refused("An answer of rounds can only be released.", param="do")
        self._engine.engine.release(key)
        await reply.whole(200, {"done": True})


class _Answer:
    """One answer that is asked for.

    Mutable: `_given` (the text that a follower was given last, and its number), `_read` (what the attempt was given),
    `_is_parked`, `_paused`, `_told` (what the attempt has done, as far as that was told).
    """

    def __init__(self, model: Endpoint, name: str, body: Mapping[str, Any]) -> None:
        params = dict(body)
        self._streams = bool(params.pop("stream", False))
        options = params.pop("stream_options", None)
        self._counts = isinstance(options, Mapping) and bool(options.get("include_usage"))
        extras = params.pop("disco", None)
        self.extras: Mapping[str, Any] | None = extras if isinstance(extras, Mapping) else None
        known = dict(self.extras or {})
        asked_as = {name: known.pop(name, None) for name in ("id", "mode", "number")}
        check_host_body("answers", asked_as)
        self._request, prefix, wants = checked_order(params, known)
        self.key = asked_as["id"] or ""
        self._given = self._read = (prefix, asked_as["number"] or 0)
        self._mode = asked_as["mode"] or "write"
        self._is_parked = False
        self._paused = False
        self._wants = wants & _WANTS
        self._attempt: Attempt = model.open(
            self._request, prefix, wants=self._wants | ({"progress"} if self.extras is not None else set())
        )
        self._told = _Work()
        self._reply: _Reply | None = None
        self._head = {
            "id": f"chatcmpl-{self.key or secrets.token_hex(16)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": name,
        }

    # For any client

    async def plain(self, reply: _Reply) -> None:
        """Answer as OpenAI does."""
        async with self._attempt as attempt:
            ended: Ended | None = None
            deltas: list[Delta] = []
            async for event in attempt:
                if isinstance(event, Ended):
                    ended = event
                elif isinstance(event, list):
                    if not self._streams:
                        deltas += event
                        continue
                    if not reply.has_begun:
                        await self._begin(reply)
                    for delta in event:
                        await reply.event(self._chunk([choice_of(delta)]))
            if ended is None:
                raise _refused("The engine has stopped.", FailureKind.CRASHED)
            usage = _usage(ended.usage or attempt.usage)
        if not self._streams:
            await reply.whole(200, self._whole(deltas, ended, usage))
            return
        if not reply.has_begun:
            await self._begin(reply)
        last = {"index": 0, "delta": {}, "finish_reason": ended.finish_reason}
        await reply.event(self._chunk([last]))
        if self._counts:
            await reply.event({**self._chunk([]), "usage": usage})
        await reply.end_events()

    async def _begin(self, reply: _Reply) -> None:
        await reply.begin_events()
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        await reply.event(self._chunk([role]))

    def _whole(self, deltas: list[Delta], ended: Ended, usage: dict[str, Any]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas if delta.kind is DeltaKind.TEXT)
        calls: dict[int, dict[str, Any]] = {}
        for piece in (piece for delta in deltas for piece in delta.tool_calls):
            call = calls.setdefault(
                piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            )
            call["id"] = call["id"] or piece.id
            call["function"]["name"] = call["function"]["name"] or piece.name
            call["function"]["arguments"] += piece.arguments
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": ended.finish_reason}
        entries = [
            entry
            for delta in deltas
            if delta.logprobs is not None
            for entry in delta.logprobs.get("content") or ()
        ]
        choice["logprobs"] = {"content": entries, "refusal": None} if entries else None
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage}

    def _chunk(self, choices: list[Any]) -> dict[str, Any]:
        return {**self._head, "choices": choices}

    # For disco's own clients

    async def extended(self, reply: _Reply) -> None:
        """Send every event of the attempt. The head comes at once: from then on, the answer can be given orders."""
        self._reply = reply
        await reply.begin_events()
        if self._mode == "park":
            self._attempt.park()
        elif self._mode == "follow":
            self._attempt.follow()
        async with self._attempt as attempt, anyio.create_task_group() as group:
            group.start_soon(self._look)
            try:
                async for event in attempt:
                    for content in self._told_of(event):
                        await self._tell(*content)
                    if self._paused and not isinstance(event, Ended):
                        self._paused = not attempt.pause()
            except EndpointFailure as failure:
                fields = error_fields(failure)
                fields["disco"] |= self._news()
                await reply.event({"error": fields})
            group.cancel_scope.cancel()
        await reply.end_events()

    def _told_of(self, event: Any) -> list[tuple[list[Any], dict[str, Any]]]:
        """Return an event of the attempt as choices and extras."""
        if isinstance(event, list):
            return [([choice_of(delta)], extras_of(delta)) for delta in event]
        if isinstance(event, Started):
            return [([], {"started": event.cached_tokens})]
        if isinstance(event, Progress):
            return [([], {"progress": list(_numbers(event))})]
        if isinstance(event, Parked):
            return self._parked(event.logp)
        if isinstance(event, Ended):
            last = {"index": 0, "delta": {}, "finish_reason": event.finish_reason}
            if event.finish_reason == "parked":
                last["finish_reason"] = "stop"
            return [([], {"ended": event.finish_reason}), ([last], {})]
        return []

    def _parked(self, logp: tuple[float, ...] | None) -> list[tuple[list[Any], dict[str, Any]]]:
        """Give the follower the newest text, or tell that it has read it."""
        self._is_parked = True
        told = {"parked": logp, "number": self._read[1]}
        if self._given[0] != self._read[0]:
            self._read = self._given
            self._is_parked = False
            self._attempt.extend(self._given[0])
        else:
            told["number"] = self._given[1]
            self._read = self._given
        return [([], told)]

    async def _tell(self, choices: list[Any], extras: dict[str, Any]) -> None:
        assert self._reply is not None
        await self._reply.event({**self._chunk(choices), "disco": {**extras, **self._news()}})

    async def _look(self) -> None:
        """Tell the work that no event tells: of tokens that complete no text."""
        while True:
            await anyio.sleep(_LOOK_S)
            if (news := self._news()) and self._reply is not None:
                await self._reply.event({**self._chunk([]), "disco": news})

    def _news(self) -> dict[str, Any]:
        """Return what the attempt has done, as far as that has changed since it was told."""
        attempt, told = self._attempt, self._told
        now = self._told = _Work(attempt.usage, attempt.traffic, attempt.speculation)
        found: dict[str, Any] = {}
        if now.usage != told.usage:
            found["used"] = used(now.usage)
        if now.traffic != told.traffic:
            found["traffic"] = [now.traffic.bytes_up, now.traffic.bytes_down]
        if now.speculation is not None and now.speculation != told.speculation:
            known = 0 if told.speculation is None else len(told.speculation.timed_windows)
            # On the clock that all programs of a machine share.
            common = now.speculation.moved(time.monotonic() - anyio.current_time())
            found["speculation"] = speculation_fields(common, known)
        return found

    def do(self, order: Mapping[str, Any]) -> bool:
        """Carry out an order; return whether it could be."""
        what = order.get("do")
        if what == "pause":
            self._paused = not self._attempt.pause()
            return True
        if what == "resume":
            was, self._paused = self._paused, False
            return self._attempt.resume() or was
        if what in ("park", "follow"):
            self._paused = False
            self._mode = what
            return self._attempt.park() if what == "park" else self._attempt.follow()
        if what == "extend":
            check_host_body("extend", order)
            return self._extend(checked_prefix(order["prefix"]), order["number"])
        raise _refused("An order is park, pause, resume, follow or extend.", param="do")

    def _extend(self, prefix: Prefix, number: int) -> bool:
        self._given = (prefix, number)
        if not self._is_parked:
            return True
        self._read, self._is_parked = self._given, False
        return self._attempt.extend(prefix)


@dataclass(frozen=True, slots=True)
class _Work:
    """What an attempt has done."""

    usage: Usage = _NO_USAGE
    traffic: Traffic = _NO_TRAFFIC
    speculation: SpeculationReport | None = None


class _Reply:
    """Sends one response. Mutable: `has_begun`, `_is_events`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self._is_events = False

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def whole(
        self, status: int, content: object, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Send a JSON document."""
        body = _encode(content).encode("ascii")
        length = str(len(body)).encode()
        fixed = [(b"content-type", b"application/json"), (b"content-length", length)]
        await self._begin(status, [*fixed, *headers])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def begin_events(self) -> None:
        """Send the head of a stream of events."""
        self._is_events = True
        await self._begin(200, [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")])
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def event(self, content: object) -> None:
        """Send an event."""
        data = b"data: " + _encode(content).encode("ascii") + b"\n\n"
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_events(self) -> None:
        """End the stream of events."""
        await self._send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def refuse(self, status: int, message: str, code: str) -> None:
        """Send an error: as a response, or as the last event."""
        error = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        if self.has_begun:
            await self.event(error)
            await self.end_events()
            return
        await self.whole(status, error)

    async def fail(self, failure: EndpointFailure) -> None:
        """Send a failure: as a response, or as the last event."""
        error = {"error": error_fields(failure)}
        if self.has_begun:
            if self._is_events:
                await self.event(error)
                await self.end_events()
            return
        wait_s = failure.retry_after_s
        headers = () if wait_s is None else ((b"retry-after", str(ceil(wait_s)).encode()),)
        await self.whole(status_of(failure), error, headers)


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Gone
        pieces.append(message.get("body", b""))
        length += len(pieces[-1])
        if length > _MOST_BYTES:
            raise _refused(f"The body is longer than {_MOST_BYTES} bytes.")
        if not message.get("more_body"):
            return b"".join(pieces)


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are no JSON


def _parsed(data: bytes) -> Any:
    try:
        body = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise _refused("The body is no JSON object.")
    return body


async def _while_connected(receive: Receive, serve: Callable[[], Awaitable[None]]) -> None:
    """Serve a request. If its client closes the connection, that is cancelled."""
    failed: Exception | None = None

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            await serve()
        except Exception as error:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed


def _refused(
    message: str, kind: FailureKind = FailureKind.BAD_REQUEST, param: str | None = None
) -> EndpointFailure:
    return EndpointFailure(kind, NoEndpointError(message, code="invalid_value", param=param))


def _as_failure(error: Exception) -> EndpointFailure:
    """Return a failure with this error, which has been raised without one."""
    if isinstance(error, EndpointFailure):
        return error
    if isinstance(error, NoEndpointError):
        is_long = error.code == "context_length_exceeded"
        return EndpointFailure(FailureKind.CONTEXT_LENGTH if is_long else FailureKind.BAD_REQUEST, error)
    return failure_of(error, "The engine failed")


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _numbers(progress: Progress) -> tuple[int, int, float]:
    return progress.tokens_done, progress.tokens_total, progress.prefill_tps
