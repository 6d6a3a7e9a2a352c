"""How an answer ended: its finish reason, the server's last chunk, and its usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from openai.types import CompletionUsage

if TYPE_CHECKING:
    from disco.client.live_driver import LiveSession

__all__ = ["finish_reason", "last_chunk", "session_usage"]


def finish_reason(live: LiveSession) -> str:
    """Return why an answer ended, once it has ended."""
    return live.session.finish_reason or "stop"


def last_chunk(live: LiveSession) -> Any:
    """Return the server's own chunk with the finish reason; None where the writer is no server."""
    writer = live.session.transcript.writer
    return None if writer is None else writer.last_raw


def session_usage(live: LiveSession) -> CompletionUsage:
    """Return one usage for one answer: its prompt once, its own tokens once. The route has the losers' usage."""
    session = live.session
    given: Any = getattr(last_chunk(live), "usage", None)
    counts = getattr(given, "prompt_tokens", None), getattr(given, "completion_tokens", None)
    if len(session.transcript.segments) == 1 and all(counts):
        return cast("CompletionUsage", given)  # with all details
    prompt, completion = session.config.prompt_tokens, session.transcript.tokens
    first = session.transcript.first_writer
    if first is not None and first.usage is not None and first.usage.prompt_tokens:
        prompt = first.usage.prompt_tokens
        if len(session.transcript.segments) == 1 and first.usage.completion_tokens:
            completion = first.usage.completion_tokens
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
