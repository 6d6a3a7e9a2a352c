"""What can happen to an answer. Endpoints produce these; the session machine consumes them.

Times are not part of an event: the driver passes `now` (seconds on its one clock) beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

__all__ = [
    "Delta",
    "DeltaKind",
    "Ended",
    "Parked",
    "SeamReport",
    "Started",
    "ToolCallDelta",
    "Traffic",
    "Usage",
]


class DeltaKind(StrEnum):
    """What a delta carries. The first three are content and can win a race; ROLE cannot."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"
    ROLE = "role"  # role chunk, empty delta, keep-alive with no content


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of one tool call: its name once, its arguments (JSON) piece by piece.

    Attributes:
        index: which call of the answer, from 0.
        arguments: the next piece of its arguments.
        id: given with the first piece.
        name: of the function; given with the first piece.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(slots=True)
class Delta:
    """A piece of an answer as an endpoint wrote it.

    Attributes:
        text: content text; complete UTF-8 always. Empty for TOOL, REASONING and ROLE.
        tokens: how many tokens it is; 1 where a server does not say.
        kind: what it carries.
        ids: token ids where the endpoint knows them.
        raw: what the endpoint's edge hands to the client's edge so that an application gets a server's chunk as it
            came; no room in between looks at it. None where the endpoint has none (local, simulated).
        logprobs: `ChoiceLogprobs`-shaped dict where the application asked for it.
        logp: log probability (natural) of each token under its model, for disco's own use; None where it was not
            asked for (`StartAttempt.wants`) or is not known.
        reasoning: the text of a REASONING delta.
        tool_calls: the pieces of a TOOL delta; empty where only `raw` has them (audio, several choices).
    """

    text: str
    tokens: int = 1
    kind: DeltaKind = DeltaKind.TEXT
    ids: tuple[int, ...] | None = None
    raw: Any = None
    logprobs: dict[str, Any] | None = None
    logp: tuple[float, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt was, or will be, billed for, in tokens.

    Attributes:
        prompt_tokens: prompt and prefix.
        completion_tokens: written.
        cached_tokens: of the prompt, not computed again.
        shares: by payer's name, what each did, where an endpoint is made of several; empty: it did all itself.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    shares: tuple[tuple[str, Usage], ...] = ()


@dataclass(frozen=True, slots=True)
class Started:
    """The endpoint began to work on the attempt; until then it waited for its turn.

    `cached_tokens` of the prompt need not be computed again.
    """

    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Parked:
    """A warm follower has read all that it was given and waits: see `Attempt.follow`."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt finished properly.

    `finish_reason` is the API's (`stop`, `length`, `tool_calls`, `content_filter`), or `parked` when it
    stopped after its prefill because it was asked to (see `Attempt.park`).
    """

    finish_reason: str
    usage: Usage | None = None
    raw: Any = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on the wire of one attempt, HTTP heads included; 0 where nothing left this process."""

    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class SeamReport:
    """What became of the place where an attempt went on with a half-written answer.

    Attributes:
        verdict: "continued" (all that it wrote went on), "echo" (it repeated what it was sent first, and that was
            swallowed), "unproved" (what it wrote can be read either way: text may stand there twice, or be missing
            where a repetition was swallowed).
        sent_chars: characters of the answer that it was sent.
        written_chars: characters that it wrote, all of them.
        swallowed_chars: of these, not passed on, because they repeat what the reader has: the withheld text, and
            an echo.
    """

    verdict: Literal["continued", "echo", "unproved"]
    sent_chars: int
    written_chars: int
    swallowed_chars: int
