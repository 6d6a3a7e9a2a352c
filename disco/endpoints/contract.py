"""The contract every endpoint keeps: open an attempt, stream its events, stop it promptly.

`disco.testing` is this contract as checks that run on any endpoint. disco runs them on the simulated endpoint, on
llama.cpp and on real HTTP servers (`tests/endpoints/test_conformance.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from disco.candidate import Place, PromptSize, Reach
from disco.endpoints.drafter import Drafter
from disco.events import (
    Alive,
    Delta,
    Ended,
    Parked,
    Progress,
    SeamReport,
    SpeculationReport,
    Started,
    Traffic,
    Usage,
)
from disco.request import Prefix, Request

__all__ = ["PAUSE_HOLD_S", "Attempt", "Capabilities", "Endpoint", "Event", "Progress", "seam_behind"]

PAUSE_HOLD_S = 2.0
"""How long a paused attempt keeps its place at a device while other attempts wait for one (`Attempt.pause`), s."""

Event = list[Delta] | Started | Alive | Progress | Parked | Ended
"""What an attempt yields: batches of deltas, then how the attempt ended."""


def seam_behind(prefix: Prefix, text_chars: int) -> SeamReport | None:
    """Return the seam of an attempt whose model has read the prefix as its own tokens; None without a prefix.

    Such a model repeats nothing of its own accord. The withheld text is spelt before anything else, and is not part of
    the `text_chars` characters that the attempt has yielded.
    """
    if not prefix:
        return None
    swallowed_chars = len(prefix.withheld) if text_chars else 0
    return SeamReport("continued", len(prefix.sent), text_chars + swallowed_chars, swallowed_chars)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an endpoint can do, as far as is *known*: detected or configured, never assumed.

    Attributes:
        continues: the endpoint can continue a half-written answer (see `endpoints/continuation`).
        continues_if_proved: that is not known, but an attempt with a prefix may be opened: it proves that its text
            continues the prefix, or fails with SEAM. An attempt may ask the server more than once for that.
        context_tokens: context length, prompt and answer together; None when unknown (no limit is then enforced).
        features: request features that the endpoint serves: "tools", "json_schema", "images", "audio", "logprobs",
            "n", "reasoning", "logit_bias". Plain text needs none. None means that every request is passed on and
            the server decides, but for features in `lacks`.
        lacks: of features that the endpoint does not serve, by name: why, and what would serve them; for messages.
        vocabulary: fingerprint of the tokenizer, or None when unknown.
        ready: the endpoint can start now; False while a model still has to be loaded.
        loads: `Endpoint.load` loads the model in the background.
        loading_s: how long the model has been loading, seconds; None where it does not load now.
        load_s: how long it took to load the model that is loaded, seconds; None where that is not known.
        parks: an attempt can finish its prefill and keep it without writing (`Attempt.park`).
        pauses: an attempt can stop writing and go on later where it stopped (`Attempt.pause`).
        follows: a parked attempt can be given more text and stay parked (`Attempt.follow`).
        limits: an answer can be limited to a number of tokens although the application set no limit (`Request.cap`).
        announces: attempts report when their work begins (`events.Started`); until then they wait in a queue.
        waiting: requests that would be served before a new one; None where the endpoint does not report it.
        logp: `Endpoint.open` accepts "logp" among its `wants`: log probabilities for disco's own use.
        label_scores: the same for "label_scores": an attempt at a request with classes scores them all.
        progress: the same for "progress": an attempt reports its prefill as it goes (`events.Progress`).
    """

    continues: bool = False
    continues_if_proved: bool = False
    context_tokens: int | None = None
    features: frozenset[str] | None = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict, hash=False)
    vocabulary: str | None = None
    ready: bool = True
    loads: bool = False
    loading_s: float | None = None
    load_s: float | None = None
    parks: bool = False
    pauses: bool = False
    follows: bool = False
    limits: bool = False
    announces: bool = False
    waiting: int | None = None
    logp: bool = False
    label_scores: bool = False
    progress: bool = False


class Attempt(ABC):
    """One endpoint's try at (the rest of) one answer: an async iterator of events, the last of which is `Ended`.

    Iterating starts the work. The first event is `Started` where the endpoint reports when an attempt's turn has come
    (`Capabilities.announces`). `Alive` may come at any time before the end. `Progress` comes only where "progress" was
    asked for (`Endpoint.open`): once when the prefill begins, and once for each of its batches. For one attempt that
    writes, it comes before all text. A follower reports each text that it reads. A batch is a non-empty list of deltas,
    in order, that arrived together.
    After `Ended`, a failure or `aclose()` the iterator stops (StopAsyncIteration). A failure raises `EndpointFailure`.
    Cancelling the iterating task, or `aclose()`, stops the work promptly: the connection is closed, decoding stops
    within one token, prefill within 100 ms. `aclose()` is idempotent and returns only when nothing of the attempt is
    running.
    """

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Event: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Stop the work, and return when nothing of the attempt is running; may be called again."""

    @property
    @abstractmethod
    def usage(self) -> Usage:
        """Return what has been processed so far: the best known figure, exact after `Ended` with usage.

        A cancelled attempt is charged for this figure. It counts prompt tokens from the moment they are (or, for a
        server, must be assumed to be) processed.
        """

    def park(self) -> bool:
        """Ask to finish the prompt's prefill, keep it, and end with `Ended("parked")` without writing.

        Returns False where the endpoint cannot do that (a server); the caller then cancels the attempt instead.
        """
        return False

    def follow(self) -> bool:
        """Ask to finish the prompt's prefill and stay as a warm follower, which never writes.

        `Parked` comes each time the follower has read all text that it was given. The follower then waits for
        `extend`, or for its end (`aclose`). Returns False, and changes nothing, where the endpoint cannot follow
        (`Capabilities.follows`).
        """
        return False

    def extend(self, prefix: Prefix) -> bool:
        """Give a follower the answer so far, now `prefix`: it reads what is new and stays parked.

        `prefix` need not begin with the text that was given before. A follower that still reads goes on with the
        newest prefix once it has read the one before. A prefix equal to the one that it has read changes nothing, and
        no `Parked` follows. Text beyond the context is a failure (CONTEXT_LENGTH), as for any attempt.
        Returns False if the attempt is no follower or has ended; the caller then continues without it.
        """
        del prefix
        return False

    def pause(self) -> bool:
        """Ask to write nothing more until `resume`, and to keep the cache and the state of the sampler.

        The attempt stops before its next token. What was written before, even if the iterator has not yielded it, still
        comes, and an answer that was complete by then still ends. A prompt is read to its end. Its place at a device
        stays its own: attempts that find no other wait, as they would if this one wrote, but no longer than
        `PAUSE_HOLD_S` after the pause began. Then one has its place, and `resume` waits for its turn (before those
        that have not begun) and reads again what the cache has lost. An attempt that is paused may be cancelled,
        closed, parked or told to follow.
        Returns False, and changes nothing, where the endpoint cannot pause (`Capabilities.pauses`), or where the
        attempt does not write: it was not iterated yet, follows or has ended.
        """
        return False

    def resume(self) -> bool:
        """Go on exactly where `pause` stopped: the text is the same as without a pause.

        Where the cache had to be read again, arithmetic in batches may change it as any cached prompt does. The tokens
        that are read again count as prompt tokens (`usage`). Returns False if the attempt is not paused.
        """
        return False

    @property
    def progress(self) -> Progress | None:
        """Return how far the attempt's prefill has come; None where the endpoint does not know."""
        return None

    @property
    def traffic(self) -> Traffic:
        """Return the bytes sent and received for the attempt so far."""
        return Traffic()

    @property
    def seam(self) -> SeamReport | None:
        """Return the verdict on the seam where the attempt continued an answer; None if there was no prefix."""
        return None

    @property
    def speculation(self) -> SpeculationReport | None:
        """Return how a drafter and a verify server made the answer so far; None where they do not."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Endpoint(ABC):
    """Something that generates: a device model or a server model.

    Attributes:
        name: unique within one client; plans, ledger and records use it.
        place: "device" when the prompt does not leave this machine, else "server".
    """

    name: str
    place: Place

    @property
    def reach(self) -> Reach:
        """Return how far the prompt travels; an endpoint on another of the user's machines returns "own"."""
        return "device" if self.place == "device" else "any"

    @abstractmethod
    def capabilities(self, model: str | None = None) -> Capabilities:
        """Return what is known now; `model` is the request's (a server may hold several)."""

    @abstractmethod
    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> Attempt:
        """Make an attempt at `request`; nothing happens until it is iterated.

        `wants` names what disco asks for besides the text: "logp" fills `Delta.logp` where the endpoint can
        (`Capabilities.logp`), and changes nothing that the application sees; a follower fills `Parked.logp`, for the
        text that it was given since `follow`. "label_scores", for a request with
        classes, fills `Delta.label_scores` (`Capabilities.label_scores`); an engine of ours then yields one
        delta with the most probable class as its text. Half an answer is continued freely. "progress" makes the
        attempt yield `Progress` while it reads (`Capabilities.progress`). What an endpoint cannot do it leaves out.

        A non-empty `prefix` is only passed to endpoints whose capabilities include `continues` or
        `continues_if_proved`. The attempt's first text then follows `prefix.text` exactly: `prefix.withheld` and any
        echo have been removed, or `EndpointFailure(SEAM)` was raised. With a `retry_after_s`, that failure means that
        the endpoint may be asked once more.
        """

    @property
    def has_route(self) -> bool:
        """Return whether this machine has any route to the endpoint; False only where that is certain.

        Called before every plan, so it takes microseconds and sends nothing.
        """
        return True

    def drafter(self) -> Drafter | None:
        """Return what drafts with this endpoint's model for answers that another model writes; None: nothing."""
        return None

    async def prompt_size(self, request: Request, within_s: float) -> PromptSize | None:
        """Return how long the prompt of a request without tools is, and how much of it need not be read again.

        Computes nothing and changes nothing. None where the endpoint does not know that within `within_s` seconds: it
        cannot count, its model is not loaded, the request would have to wait, or it is refused. Where it can count, and
        does not know its cache, no token is cached.
        """
        del request, within_s
        return None

    async def look(self) -> None:  # noqa: B027 - optional hook
        """Learn what a plan has to know and `capabilities` does not yet, in a moment; never raises.

        Called before each plan in which the endpoint may take part. Nothing of a request is sent.
        """

    async def load(self) -> None:
        """Load the model, and do nothing else (`Capabilities.loads`); it loads on where the caller is cancelled."""
        await self.warm_up()

    async def warm_up(self) -> None:  # noqa: B027 - optional hook
        """Do now what the first request would otherwise wait for: load, connect, probe."""

    async def aclose(self) -> None:  # noqa: B027 - optional hook
        """Stop all attempts and free everything. Idempotent."""
