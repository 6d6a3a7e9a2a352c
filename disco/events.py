"""The events of an answer. Endpoints produce them; the session machine consumes them.

An event contains no time: the driver passes `now` (seconds on its one clock) together with the event.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Alive",
    "Delta",
    "DeltaKind",
    "Ended",
    "Parked",
    "Progress",
    "SeamReport",
    "SpeculationReport",
    "Started",
    "ToolCallDelta",
    "Traffic",
    "Usage",
]


class DeltaKind(StrEnum):
    """What a delta contains. The first three are content and can win a race; the others cannot."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"
    ROLE = "role"  # role chunk, empty delta, keep-alive with no content
    RETRACT = "retract"  # made by a session only: what follows replaces all text that the reader has


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call: the name once, the arguments (JSON) piece by piece.

    Attributes:
        index: the number of the call in the answer, from 0.
        arguments: the next piece of the call's arguments.
        id: the call's id; given with the first piece.
        name: the function's name; given with the first piece.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """A piece of an answer as an endpoint wrote it.

    Attributes:
        text: content text; always complete UTF-8. Empty for TOOL, REASONING and ROLE.
        tokens: the number of tokens; 1 where a server does not report it.
        kind: what the delta contains.
        ids: token ids where the endpoint knows them.
        raw: the server's chunk (of `/responses`: its event, a dict), passed from the endpoint to the client unread, so
            that an application gets it unchanged. None where the endpoint has no such chunk (local, simulated).
        logprobs: `ChoiceLogprobs`-shaped dict where the application asked for it.
        logp: log probability (natural) of each token under its model, for disco's own use; None where it was not
            asked for (`StartAttempt.wants`) or is not known.
        label_scores: log probability (natural) of each of the request's classes as the complete answer, in the order
            of `Request.classes`; None where they were not asked for or are not known.
        reasoning: the text of a REASONING delta.
        tool_calls: the pieces of a TOOL delta; empty where only `raw` has them (audio, several choices).
        refusal: whether the text is a refusal's, which the APIs keep apart from an answer's.
    """

    text: str
    tokens: int = 1
    kind: DeltaKind = DeltaKind.TEXT
    ids: tuple[int, ...] | None = None
    raw: Any = None
    logprobs: dict[str, Any] | None = None
    logp: tuple[float, ...] | None = None
    label_scores: tuple[float, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    refusal: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt was, or will be, billed for, in tokens.

    Attributes:
        prompt_tokens: tokens of the prompt and the prefix.
        completion_tokens: tokens written.
        cached_tokens: prompt tokens that were not computed again.
        shares: (payer's name, usage of that payer) where an endpoint is made of several; empty: the endpoint itself
            is the only payer.
        probed: prompt and completion tokens of these that were spent on the proof that the endpoint continues.
        drafted: prompt, completion and cached tokens of these that were spent on drafts: what a drafter read and
            guessed, and what a verify server computed for guesses that were wrong.
        cache_write_tokens: prompt tokens that the server wrote into its cache; 0 also where it does not say.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    shares: tuple[tuple[str, Usage], ...] = ()
    probed: tuple[int, int] = (0, 0)
    drafted: tuple[int, int, int] = (0, 0, 0)
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """The endpoint began to work on the attempt, which waited in a queue until then.

    `cached_tokens`: prompt tokens that need not be computed again.
    """

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Alive:
    """The endpoint's connection has shown that it lives, though nothing of the answer came.

    Attributes:
        for_s: its silence says nothing for so long, s: it writes an answer that comes as a whole, or the answer is
            complete and only its usage may follow. 0: it counts again. None: bytes came, such as a comment between two
            events.
    """

    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt's prefill has come.

    Attributes:
        tokens_done: prompt and prefix tokens that are read, cached ones included.
        tokens_total: prompt and prefix tokens in all.
        prefill_tps: speed of the prefill so far, tokens/s; 0 before the first token is read.
    """

    tokens_done: int
    tokens_total: int
    prefill_tps: float


@dataclass(frozen=True, slots=True)
class Parked:
    """A follower has read all that it was given and waits; see `Attempt.follow`.

    Attributes:
        usage: the attempt's usage so far.
        logp: where "logp" was asked for: log probability (natural), under the follower's model, of each token of the
            answer that the follower has read since the last `Parked`. The tokens are those of the follower's
            tokenizer that begin behind the text reported before, so that no text is reported twice, unless it was taken
            back. None where it was not asked for or is not known.
    """

    usage: Usage
    logp: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt finished properly.

    `finish_reason` is the API's (`stop`, `length`, `tool_calls`, `content_filter`), or `parked` when the attempt
    stopped after its prefill because it was asked to (see `Attempt.park`).

    Attributes:
        finish_reason: see above.
        usage: what was processed; None where the endpoint does not say.
        raw: the provider's own last event, for details that are passed on; None for none.
        has_content: whether `raw` has content that no delta had, so that an answer without deltas is not empty.
        has_notes: whether fields of the provider's own came without content; nobody knows whether they are an answer.
        tool_calls: the calls in `raw`, where no delta had any.
        lacks: why this is none, in words, where the endpoint can ask in another way; None: it has nothing to say.
    """

    finish_reason: str
    usage: Usage | None = None
    raw: Any = field(default=None, repr=False)
    has_content: bool = False
    has_notes: bool = False
    tool_calls: tuple[ToolCallDelta, ...] = ()
    lacks: str | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one attempt sent and received, HTTP headers included; 0 where nothing left this process.

    Attributes:
        bytes_up: sent.
        bytes_down: received.
    """

    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class SeamReport:
    """The result of the check of a seam, where an attempt continued a half-written answer.

    Attributes:
        verdict: "continued" (all that the attempt wrote continued the answer), "echo" (the attempt first repeated
            what it was sent, and the repetition was swallowed), "unproved" (the text can be read either way: it may
            be doubled, or be missing where a repetition was swallowed).
        sent_chars: characters of the answer that the attempt was sent, less those that it was told to write again.
        written_chars: all characters that the attempt wrote.
        swallowed_chars: characters of these that were not passed on, because they repeat what the reader has: the
            withheld text and an echo.
        method: how the endpoint was made to continue ("flags", "instructed", ...); None where that is always so.
    """

    verdict: Literal["continued", "echo", "unproved"]
    sent_chars: int
    written_chars: int
    swallowed_chars: int
    method: str | None = None


@dataclass(frozen=True, slots=True)
class SpeculationReport:
    """How an answer was made by a drafter and a verify server: numbers only.

    Attributes:
        rounds: requests that the server answered for it; while it goes on alone, one gives many tokens.
        drafted: tokens that the drafter guessed, sent or not.
        judged: tokens that were sent and compared: the right ones, and the first wrong one of each window.
        accepted: how many of them were right.
        rejected: tokens that were sent and that the server computed in vain.
        windows: (drafted tokens of a round, how many rounds had so many), rising.
        distributed_tokens, alone_tokens: tokens of the answer by mode: from rounds with a draft, and from the server
            alone.
        late: drafts that the server did not wait for.
        switches: changes of the mode.
        retries: rounds that were sent again.
        draft_s, wire_s, queue_s, verify_s: where the time of the rounds went: to draft, on the network, in the server's
            queue, and in its batches, s. Windows that are in flight at the same time count each.
        timed_windows: (when it was sent, when it was known how many of its tokens were right, its drafted tokens, how
            many of them were right) of each window, by the second; s on the session's clock, in a record seconds since
            the request. A window behind a wrong token has 0 right ones.
    """

    rounds: int = 0
    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    rejected: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    distributed_tokens: int = 0
    alone_tokens: int = 0
    late: int = 0
    switches: int = 0
    retries: int = 0
    draft_s: float = 0.0
    wire_s: float = 0.0
    queue_s: float = 0.0
    verify_s: float = 0.0
    timed_windows: tuple[tuple[float, float, int, int], ...] = ()

    def moved(self, by_s: float) -> SpeculationReport:
        """Return the same with the times of the windows moved by `by_s`, s: to another clock."""
        return replace(
            self,
            timed_windows=tuple(
                (sent + by_s, judged + by_s, drafted, right)
                for sent, judged, drafted, right in self.timed_windows
            ),
        )
