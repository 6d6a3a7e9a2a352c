"""What can happen to an answer. Endpoints produce these; the session machine consumes them.

Times are not part of an event: the driver passes `now` (seconds on its one clock) beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Delta", "DeltaKind", "Ended", "Usage"]


class DeltaKind(StrEnum):
    """What a delta carries. The first three are content and can win a race; ROLE cannot."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"
    ROLE = "role"  # role chunk, empty delta, keep-alive with no content


@dataclass(slots=True)
class Delta:
    """A piece of an answer as an endpoint wrote it.

    Attributes:
        text: content text; complete UTF-8 always. Empty for TOOL, REASONING and ROLE.
        tokens: how many tokens it is; 1 where a server does not say.
        kind: what it carries.
        ids: token ids where the endpoint knows them.
        raw: the vendor's own chunk (`ChatCompletionChunk`, or a `MoldedChunk`, which makes it), passed on
            untouched where nothing had to be cut; None where the endpoint has none (local, simulated).
        logprobs: `ChoiceLogprobs`-shaped dict where asked for.
    """

    text: str
    tokens: int = 1
    kind: DeltaKind = DeltaKind.TEXT
    ids: tuple[int, ...] | None = None
    raw: Any = None
    logprobs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt was, or will be, billed for, in tokens.

    `prompt_tokens` counts prompt and prefix; `cached_tokens` of them were not computed again.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt finished properly.

    `finish_reason` is the API's (`stop`, `length`, `tool_calls`, `content_filter`), or `parked` when it
    stopped after its prefill because it was asked to (see `Attempt.park`).
    """

    finish_reason: str
    usage: Usage | None = None
    raw: Any = None


Batch = Sequence[Delta]
