"""One attempt of the model on this machine, in the form that the session iterates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import anyio
from anyio import to_thread

from disco.endpoints.contract import Attempt, Event, seam_behind
from disco.endpoints.llamacpp.batching.engine import Engine
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.output.generation import Generation
from disco.endpoints.llamacpp.output.label_scoring import LabelScoring
from disco.endpoints.llamacpp.output.prompt_job import PromptJob
from disco.endpoints.llamacpp.prompting.template_messages import plain_messages
from disco.endpoints.llamacpp.refusals import unserved
from disco.endpoints.llamacpp.request_params import Sampling, needs_compiling, read_params
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import EndpointFailure, FailureKind, NoEndpointError
from disco.events import Delta, Ended, Parked, Progress, SeamReport, Started, Traffic, Usage
from disco.request import Prefix, Request, check_classes

__all__ = ["STOP_WITHIN_S", "LlamaCppAttempt"]

STOP_WITHIN_S = 10.0  # limit of shielded waits; stopping takes milliseconds


class LlamaCppAttempt(Attempt):
    """One answer from the model on this machine, or the rest of one.

    A follower is a sequence of jobs, each of which ends after its prefill. Between two jobs nothing runs, so the model
    is free for other requests. What the KV cache still holds at the next job's turn is not computed again.

    Mutable: `_job` and `_mail` (the newest, None until the attempt is iterated), `_ready`, `_over`, `_mode`,
    `_announced`, `_prefix`, `_read` (the prefix of the newest job), `_changed`, `_sampling`, `_earlier` (usage of the
    jobs before the newest), `_progress` (their progress), `_text_chars`, `_known` (text of the answer whose
    probability is reported, or will not be), `_logp` (not reported yet).
    """

    def __init__(
        self,
        request: Request,
        prefix: Prefix,
        *,
        engine: Engine,
        name: str,
        wants: frozenset[str] = frozenset(),
        passed: Callable[[], Traffic] = Traffic,
    ) -> None:
        self._request = request
        self._prefix = prefix
        self._engine = engine
        self._name = name
        self._wants = wants
        self._passed, self._passed_before = passed, passed()
        self._mail: Mailbox | None = None
        self._job: PromptJob | None = None
        self._ready: deque[Delta | Started | Progress | Parked | Ended | EndpointFailure] = deque()
        self._over = False
        self._mode: Literal["write", "park", "follow"] = "write"
        self._announced = False
        self._read: Prefix | None = None
        self._changed: anyio.Event | None = None  # set when a follower that waits has something to do
        self._sampling: Sampling | None = None
        self._earlier: list[Usage] = []
        self._progress: Progress | None = None
        self._text_chars = 0
        self._known = ""
        self._logp: tuple[float, ...] = ()

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._job is None and not self._ready:
                await self._start()
            while True:
                event = await self._next()
                if event is not None:
                    return event
        except BaseException:
            self._stop()
            raise

    async def _next(self) -> Event | None:
        """Return the next event; None where there is none to report."""
        if not self._ready and self._mail is None:
            return await self._wait_to_go_on()
        if not self._ready and self._mail is not None:
            self._ready.extend(await self._mail.take())
        if not self._ready or self._over:  # closed by another task
            raise StopAsyncIteration
        if isinstance(self._ready[0], Delta):
            deltas = self._take_deltas()
            return deltas if self._mode == "write" else None
        item = self._ready.popleft()
        if isinstance(item, Progress):
            return item
        if isinstance(item, Started):
            if self._announced:
                return None  # the follower's first job has reported its start
            self._announced = True
            return item
        if isinstance(item, Parked):
            self._logp += item.logp or ()
            return None
        if isinstance(item, EndpointFailure):
            self._over = True
            raise item
        assert isinstance(item, Ended)
        if self._mode == "follow":
            return self._read_all()
        self._over = True
        # The job may have finished before it could be parked: its prefill is kept all the same.
        return replace(item, finish_reason="parked", usage=self.usage) if self._mode == "park" else item

    def _take_deltas(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._ready and isinstance(item := self._ready[0], Delta):
            deltas.append(item)
            self._text_chars += len(item.text)
            self._ready.popleft()
        return deltas

    async def _start(self) -> None:
        read = partial(read_params, self._request, self._prefix, endpoint=self._name, check=self._flag_check)
        try:
            # Compiling schemas takes up to about a second, which must not block other tasks of the event loop.
            compiles = needs_compiling(self._request)
            self._sampling = await to_thread.run_sync(read, abandon_on_cancel=True) if compiles else read()
        except Aborted:
            raise StopAsyncIteration from None
        if self._over:  # closed by another task
            raise StopAsyncIteration
        limit = self._sampling.max_tokens
        if limit is not None and limit <= self._prefix.tokens and self._mode == "write":
            self._ready.append(Ended("length", Usage()))
            return
        self._submit(self._sampling)

    def _flag_check(self) -> None:
        if self._over:
            raise Aborted

    def _submit(self, sampling: Sampling) -> None:
        messages = plain_messages(self._request.messages, endpoint=self._name)
        mail = Mailbox()
        job: PromptJob
        if self._request.classes and "label_scores" in self._wants and not self._prefix:
            self._check_scorable(sampling)
            classes = self._request.classes
            job = LabelScoring(mail, messages, classes, renderer=self._engine.renderer, name=self._name)
        else:
            job = Generation(
                mail,
                messages,
                self._prefix,
                sampling,
                renderer=self._engine.renderer,
                name=self._name,
                wants=self._wants,
                known_bytes=self._known_bytes(),
                may_be_saved=self._request.may_be_saved,
            )
        if "progress" in self._wants:
            job.on_progress = mail.put
        job.park = self._mode != "write"
        self._engine.submit(job)
        if self._job is not None:
            self._earlier.append(self._job.usage)
            self._progress = self.progress
        self._job, self._mail, self._read = job, mail, self._prefix

    def _known_bytes(self) -> int | None:
        """Return how much of the prefix a follower need not report the probability of; None if it reports none."""
        if self._mode != "follow" or "logp" not in self._wants:
            return None
        # An answer may be taken back in part: then the rest of the old text says nothing of the new text.
        return len(self._known[: self._prefix.shared_chars(self._known)].encode())

    def _check_scorable(self, sampling: Sampling) -> None:
        """Refuse classes that cannot be scored, and classes beside what is not part of a class."""
        try:
            check_classes(self._request.classes)
        except ValueError as error:
            message = f"Endpoint {self._name!r}: {error}."
            refused = NoEndpointError(message, code="invalid_value", param="classes")
            raise EndpointFailure(FailureKind.BAD_REQUEST, refused) from error
        beside = {
            "tools": sampling.tools is not None,
            "logprobs": sampling.top_logprobs is not None,
        }
        if found := [what for what, there in beside.items() if there]:
            raise unserved(
                f"Endpoint {self._name!r} does not score classes beside {' and '.join(found)}: ask without the scores, "
                f"or without {' and '.join(found)}.",
                "classes",
            )

    def _read_all(self) -> Parked | None:
        """Report that a follower's job is done, unless there is more to read by now."""
        assert self._read is not None
        self._known = self._read.sent
        if self._read != self._prefix:
            self._go_on()
            return None
        self._mail = None  # from now on the follower waits for `extend`
        logp, self._logp = self._logp, ()
        return Parked(self.usage, logp if "logp" in self._wants else None)

    async def _wait_to_go_on(self) -> Ended | None:
        while not self._over and self._mode == "follow" and self._read == self._prefix:
            self._changed = anyio.Event()
            await self._changed.wait()
        if self._over:
            raise StopAsyncIteration
        if self._mode == "park":
            self._over = True
            return Ended("parked", self.usage)
        self._go_on()
        return None

    def _go_on(self) -> None:
        assert self._sampling is not None
        self._submit(self._sampling)

    def _stop(self) -> None:
        self._over = True
        if self._job is not None:
            self._engine.cancel(self._job)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def leave(self) -> None:
        """End the wait of a follower, because the endpoint is closed."""
        if self._changed is not None:
            self._stop()

    async def aclose(self) -> None:
        self._stop()
        if self._mail is not None:
            with anyio.move_on_after(STOP_WITHIN_S, shield=True):
                await self._mail.wait_closed()

    @property
    def usage(self) -> Usage:
        if self._job is None:
            return Usage()
        if not self._earlier:
            return self._job.usage
        # A follower's jobs read the same text again and more of it each time, most of it from the cache. The count
        # includes what was computed, and of the cached tokens only those that another attempt computed.
        computed = cached = written = own = 0
        for used in (*self._earlier, self._job.usage):
            computed += used.prompt_tokens - used.cached_tokens
            cached += max(0, used.cached_tokens - own)
            written += used.completion_tokens
            own = used.prompt_tokens or own
        return Usage(computed + cached, written, cached)

    @property
    def progress(self) -> Progress | None:
        return self._progress if self._job is None else self._job.progress or self._progress

    @property
    def traffic(self) -> Traffic:
        now, before = self._passed(), self._passed_before
        return Traffic(now.bytes_up - before.bytes_up, now.bytes_down - before.bytes_down)

    @property
    def seam(self) -> SeamReport | None:
        return seam_behind(self._prefix, self._text_chars)

    def park(self) -> bool:
        return self._turn("park")

    def follow(self) -> bool:
        return self._turn("follow")

    def pause(self) -> bool:
        if self._over or self._mode != "write" or not isinstance(self._job, Generation):
            return False
        self._engine.pause(self._job)
        return True

    def resume(self) -> bool:
        if self._over or self._job is None or not self._job.paused:
            return False
        self._engine.pause(self._job, paused=False)
        return True

    def _turn(self, mode: Literal["park", "follow"]) -> bool:
        if self._over:
            return False
        self._mode = mode
        if self._job is not None:
            self._engine.park(self._job)
        self._wake()
        return True

    def extend(self, prefix: Prefix) -> bool:
        if self._over or self._mode != "follow":
            return False
        self._prefix = prefix
        self._wake()
        return True
