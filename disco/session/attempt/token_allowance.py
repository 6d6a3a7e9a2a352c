"""When an attempt has written all that a budget lets it write."""

from __future__ import annotations

from disco.events import Delta, Ended
from disco.session.attempt.attempt_state import AttemptState

__all__ = ["has_used_up", "lowered_limit", "was_told_to_stop"]

_BYTES_PER_TOKEN = 4


def lowered_limit(state: AttemptState, max_tokens: int | None) -> int | None:
    """The limit of the whole answer that the attempt is sent in place of the caller's; None to leave that alone.

    A limit is only ever lowered: one that the caller did not set might be more than a server takes, or be called
    otherwise there.
    """
    if state.allowance is None or max_tokens is None:
        return None
    return min(max_tokens, state.prefix.tokens + state.allowance)


def was_told_to_stop(state: AttemptState, ended: Ended, max_tokens: int | None) -> bool:
    """Whether an attempt ended only because of its lowered limit."""
    limit = lowered_limit(state, max_tokens)
    if limit is None or limit == max_tokens or ended.finish_reason != "length":
        return False
    assert state.allowance is not None
    return ended.usage is None or ended.usage.completion_tokens >= state.allowance


def has_used_up(state: AttemptState, deltas: list[Delta], max_tokens: int | None) -> bool:
    """Whether an attempt is at the end of its allowance, now that it has written `deltas`, too.

    One that was told to stop there does so by itself, in time; this is for those that were not, or do not obey.
    """
    if state.allowance is None:
        return False
    state.written_bytes += sum(len(delta.text.encode("utf-8", "surrogatepass")) for delta in deltas)
    if max_tokens is not None:
        return state.tokens > state.allowance
    # Some servers send fifty tokens in one chunk and do not say so.
    return max(state.tokens, state.written_bytes // _BYTES_PER_TOKEN) >= state.allowance
