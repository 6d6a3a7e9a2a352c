"""An endpoint in front of another one: what the other one gets has placeholders, what it writes has the originals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from disco.candidate import Reach
from disco.endpoints.continuation.methods import Call
from disco.endpoints.continuation.seam import SeamMismatchError
from disco.endpoints.continuation.spliced_deltas import SplicedDeltas
from disco.endpoints.contract import Attempt, Capabilities, Endpoint, Event, Progress
from disco.endpoints.redaction.redaction import Redacted, Redaction
from disco.endpoints.redaction.restored_deltas import RestoredDeltas
from disco.endpoints.redaction.restored_text import Restorer
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, RedactionError
from disco.events import Ended, SeamReport, SpeculationReport, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["RedactingEndpoint", "redacting"]

_JSON = ("json_object", "json_schema")


def redacting(endpoint: Endpoint, request: Request) -> tuple[Endpoint, Request]:
    """Return the endpoint and the request to give it, for a request that may have a redaction.

    An endpoint on this device gets the request as it is. Every other one gets it through its redaction.
    """
    if request.redaction is None:
        return endpoint, request
    plain = replace(request, redaction=None)
    return (endpoint if endpoint.reach == "device" else RedactingEndpoint(endpoint, request.redaction)), plain


class RedactingEndpoint(Endpoint):
    """See `Endpoint`. Every text that reaches `endpoint` goes through `open`, which redacts it.

    Args:
        endpoint: gets the redacted requests; closing this endpoint closes that one.
        redaction: of the one request that this endpoint is for.
    """

    def __init__(self, endpoint: Endpoint, redaction: Redaction) -> None:
        self.name = endpoint.name
        self.place = endpoint.place
        self._endpoint = endpoint
        self._redaction = redaction

    @property
    def reach(self) -> Reach:
        return self._endpoint.reach

    @property
    def has_route(self) -> bool:
        return self._endpoint.has_route

    def capabilities(self, model: str | None = None) -> Capabilities:
        # Token ids would spell the originals, and a follower would be given text past the redaction.
        return replace(self._endpoint.capabilities(model), vocabulary=None, follows=False)

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> RedactingAttempt:
        return RedactingAttempt(self._endpoint, self._redaction, request, prefix, wants)

    async def look(self) -> None:
        await self._endpoint.look()

    async def load(self) -> None:
        await self._endpoint.load()

    async def warm_up(self) -> None:
        await self._endpoint.warm_up()

    async def aclose(self) -> None:
        await self._endpoint.aclose()


class RedactingAttempt(Attempt):
    """See `Attempt`. The hook is called before the attempt of the other endpoint is opened.

    Text that is withheld from the target is not known to it as a placeholder or as an original, so the seam at its end
    is checked here, in the text that the reader sees. The other endpoint removes an echo of what it was sent.
    """

    # Mutable: everything below the blank line.
    __slots__ = (
        *("_endpoint", "_prefix", "_redaction", "_request", "_wants"),
        *(
            "_attempt",
            "_closed",
            "_last",
            "_opening",
            "_redacted",
            "_restored",
            "_restorer",
            "_seam",
            "_stopped",
        ),
    )

    def __init__(
        self,
        endpoint: Endpoint,
        redaction: Redaction,
        request: Request,
        prefix: Prefix,
        wants: frozenset[str],
    ) -> None:
        self._endpoint = endpoint
        self._redaction = redaction
        self._request = request
        self._prefix = prefix
        self._wants = wants

        self._attempt: Attempt | None = None  # the other endpoint's
        self._redacted: Redacted | None = None
        self._restorer = Restorer({})
        self._restored = RestoredDeltas(self._restorer, is_json=False)
        self._seam = _seam_behind("")
        self._last: Ended | None = None  # the end, behind text that was held back until then
        self._opening: anyio.CancelScope | None = None
        self._stopped = False
        self._closed = False

    async def __anext__(self) -> Event:
        if self._stopped or self._closed:
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException as error:
            self._stopped = True
            if isinstance(error, RedactionError):
                # The hook would fail for every other server, too.
                raise EndpointFailure(FailureKind.BAD_REQUEST, error) from None
            if isinstance(error, SeamMismatchError):
                reason = IncompleteAnswerError(
                    f"Endpoint {self._endpoint.name!r} cannot continue the answer: {error}."
                )
                raise EndpointFailure(FailureKind.SEAM, reason) from None
            raise

    async def aclose(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._attempt is not None:
            await self._attempt.aclose()

    @property
    def usage(self) -> Usage:
        return Usage() if self._attempt is None else self._attempt.usage

    @property
    def traffic(self) -> Traffic:
        return Traffic() if self._attempt is None else self._attempt.traffic

    @property
    def speculation(self) -> SpeculationReport | None:
        return None if self._attempt is None else self._attempt.speculation

    @property
    def progress(self) -> Progress | None:
        return None if self._attempt is None else self._attempt.progress

    def park(self) -> bool:
        return self._attempt is not None and self._attempt.park()

    @property
    def seam(self) -> SeamReport | None:
        """Return the verdict of the other endpoint, and of the seam here, in characters of the text with originals."""
        redacted = self._redacted
        if not self._prefix or redacted is None:
            return None
        sent, here = redacted.prefix.text, self._seam.report
        sent_chars = len(self._prefix.text) - len(redacted.withheld)
        inner = None if self._attempt is None else self._attempt.seam
        if inner is None:
            inner = SeamReport("continued", len(sent), 0, 0)

        def behind(chars: int) -> int:
            return len(self._restorer.whole(sent[chars:]))

        if inner.verdict == "echo":
            swallowed_chars = sent_chars
        else:
            swallowed_chars = behind(len(sent) - inner.swallowed_chars) if inner.swallowed_chars else 0
        return SeamReport(
            inner.verdict,
            sent_chars - behind(inner.sent_chars),
            swallowed_chars + here.written_chars,
            swallowed_chars + here.swallowed_chars,
            inner.method,
        )

    async def _next(self) -> Event:
        if self._last is not None:
            self._stopped = True
            return self._last
        if self._attempt is None:
            await self._open()
        assert self._attempt is not None
        while True:
            event = await self._attempt.__anext__()
            if isinstance(event, list):
                if passed := self._seam.pass_on(self._restored.pass_on(event)):
                    return passed
                continue
            if not isinstance(event, Ended):
                return event
            if event.finish_reason != "parked":
                passed = [*self._seam.pass_on(self._restored.end()), *self._seam.end()]
                event = replace(event, raw=self._restored.last(event.raw))
                if passed:
                    self._last = event
                    return passed
            self._stopped = True
            return event

    async def _open(self) -> None:
        opening = self._opening = anyio.CancelScope()
        with opening:
            self._redacted = await self._redaction.redacted(self._request, self._prefix)
        redacted = self._redacted
        if redacted is None or self._closed:
            raise StopAsyncIteration
        request, wants = redacted.request, self._wants
        if self._prefix:
            # All of the prefix may be withheld; the answer that is then asked for is no new one all the same.
            request, wants = replace(request, responses=None), wants - {"label_scores"}
        self._restorer = Restorer(redacted.originals)
        self._restored = RestoredDeltas(self._restorer, is_json=_asks_for_json(self._request))
        self._seam = _seam_behind(redacted.withheld)
        if wants:
            self._attempt = self._endpoint.open(request, redacted.prefix, wants=wants)
        else:
            self._attempt = self._endpoint.open(request, redacted.prefix)


def _seam_behind(withheld: str) -> SplicedDeltas:
    """Return the seam of a target that has to write this text first, and was sent nothing here."""
    return SplicedDeltas(Prefix(withheld, withheld=withheld), Call("", {}))


def _asks_for_json(request: Request) -> bool:
    wanted: Any = request.params.get("response_format")
    return isinstance(wanted, Mapping) and wanted.get("type") in _JSON
