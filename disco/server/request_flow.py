"""The way of one request for an answer: its body is read, then it is answered while its client is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.lowlevel
from starlette.types import Receive, Scope

from disco.server.admission import AnswerLimiter, closing
from disco.server.api_errors import Refusal, refusal_of
from disco.server.http_reply import Reply
from disco.server.request_body import Gone, read_body

__all__ = ["answer_request"]

LAST_WORD_S = 1.0  # time to send the reason to a client that may no longer read

Asked = TypeVar("Asked")


async def answer_request(
    scope: Scope,
    receive: Receive,
    reply: Reply,
    *,
    limiter: AnswerLimiter,
    max_body_bytes: int,
    parse: Callable[[bytes], Asked],
    answer: Callable[[Asked, Reply], Awaitable[None]],
    refusal: Callable[[Exception], Refusal] = refusal_of,
    named: bool = False,
) -> None:
    """Answer one request; whatever fails is reported to its client.

    Args:
        scope: of the request, as ASGI has it.
        receive: gives the request's body.
        reply: the response.
        limiter: admits the request, and may cancel it.
        max_body_bytes: the longest body that is read, in bytes.
        parse: turns the body into what is asked.
        answer: answers that. It is cancelled if the client closes the connection.
        refusal: turns an error of `parse` or `answer` into a refusal.
        named: see `Reply.refuse`.
    """
    try:
        with limiter.receive() as work:
            asked = parse(await read_body(scope, receive, max_body_bytes))
            # A long body takes long to be parsed, and to be sent on: other requests have their turn in between.
            await anyio.lowlevel.checkpoint()
            with limiter.admit():
                await _while_connected(answer, asked, receive, reply)
        if work.cancelled_caught:
            with anyio.move_on_after(LAST_WORD_S):
                await reply.refuse(closing(), named=named)
    except Gone:
        pass
    except Exception as error:  # noqa: BLE001 - reported to the HTTP client, whatever the error
        await reply.refuse(refusal(error), named=named)


async def _while_connected(
    answer: Callable[[Asked, Reply], Awaitable[None]], asked: Asked, receive: Receive, reply: Reply
) -> None:
    """Answer a request. If the client closes the connection, the work is cancelled."""
    failed: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
        try:
            await answer(asked, reply)
        except Exception as error:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
            failed = error
        tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
