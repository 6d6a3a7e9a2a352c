"""One attempt of the model on this machine, as the session iterates it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio

from disco.endpoints.base import Attempt
from disco.endpoints.llamacpp.generation import Generation
from disco.endpoints.llamacpp.handover import Mailbox
from disco.endpoints.llamacpp.messages import plain_messages
from disco.endpoints.llamacpp.params import read_params
from disco.endpoints.llamacpp.prompt import Renderer
from disco.endpoints.llamacpp.worker import Worker
from disco.errors import EndpointFailure
from disco.events import Delta, Ended, SeamReport, Usage
from disco.request import Prefix, Request

__all__ = ["STOP_WITHIN_S", "LlamaCppAttempt"]

STOP_WITHIN_S = 10.0  # a bound for shielded waits; stopping takes milliseconds


class LlamaCppAttempt(Attempt):
    """One answer from the model on this machine, or the rest of one.

    Mutable: `_job` and `_mail` (None until it is iterated), `_ready`, `_over`, `_parking`, `_text_chars`.
    """

    def __init__(
        self,
        request: Request,
        prefix: Prefix,
        *,
        worker: Worker,
        renderer: Callable[[], Renderer],
        name: str,
    ) -> None:
        self._request = request
        self._prefix = prefix
        self._worker = worker
        self._renderer = renderer
        self._name = name
        self._mail: Mailbox | None = None
        self._job: Generation | None = None
        self._ready: deque[Delta | Ended | EndpointFailure] = deque()
        self._over = False
        self._parking = False
        self._text_chars = 0

    async def __anext__(self) -> list[Delta] | Ended:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._job is None:
                self._start()
            while True:
                if not self._ready and self._mail is not None:
                    self._ready.extend(await self._mail.take())
                deltas = self._take_deltas()
                if deltas and not self._parking:
                    return deltas
                if not deltas or self._ready:
                    break
        except BaseException:
            self._stop()
            raise
        return self._finish()

    def _take_deltas(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._ready:
            item = self._ready[0]
            if not isinstance(item, Delta):
                break
            deltas.append(item)
            self._text_chars += len(item.text)
            self._ready.popleft()
        return deltas

    def _finish(self) -> Ended:
        self._over = True
        if not self._ready:  # closed by another task
            raise StopAsyncIteration
        last = self._ready.popleft()
        if isinstance(last, EndpointFailure):
            raise last
        assert isinstance(last, Ended)
        # It may have been finished before it could be parked: its prefill is there all the same.
        return Ended("parked", last.usage) if self._parking else last

    def _start(self) -> None:
        sampling = read_params(self._request, self._prefix, endpoint=self._name)
        messages = plain_messages(self._request.messages, endpoint=self._name)
        limit = sampling.max_tokens
        if limit is not None and limit <= self._prefix.tokens and not self._parking:
            self._ready.append(Ended("length", Usage()))
            return
        mail = Mailbox()
        job = Generation(mail, messages, self._prefix, sampling, renderer=self._renderer, name=self._name)
        job.park = self._parking
        self._worker.submit(job)
        self._job, self._mail = job, mail

    def _stop(self) -> None:
        self._over = True
        if self._job is not None:
            self._worker.cancel(self._job)

    async def aclose(self) -> None:
        self._stop()
        if self._mail is not None:
            with anyio.move_on_after(STOP_WITHIN_S, shield=True):
                await self._mail.wait_closed()

    @property
    def usage(self) -> Usage:
        return Usage() if self._job is None else self._job.usage

    @property
    def seam(self) -> SeamReport | None:
        # The sampler spells the withheld text before anything else, and a prompt never comes back as an answer.
        prefix = self._prefix
        if not prefix:
            return None
        swallowed_chars = len(prefix.withheld) if self._text_chars else 0
        return SeamReport("continued", len(prefix.sent), self._text_chars + swallowed_chars, swallowed_chars)

    def park(self) -> bool:
        if self._over:
            return False
        self._parking = True
        if self._job is not None:
            self._worker.park(self._job)
        return True
