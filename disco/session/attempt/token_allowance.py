"""The token allowance of an attempt: the limit it is sent, and when the allowance is used up."""

from __future__ import annotations

from disco.events import Delta, Ended
from disco.session.attempt.attempt_state import AttemptState

__all__ = ["has_used_up", "lowered_limit", "was_told_to_stop"]

_BYTES_PER_TOKEN = 4


def lowered_limit(state: AttemptState, max_tokens: int | None) -> int | None:
    """Return the limit of the whole answer to send in place of the caller's; None: send the caller's.

    Only a limit that the caller set is lowered. A new limit might be more than the server accepts, or the server
    might call it by another name.
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
    """Whether an attempt has used up its allowance, `deltas` included.

    An attempt that was sent a lowered limit stops by itself in time. This check is for attempts that were sent none,
    and for those that exceed it.
    """
    if state.allowance is None:
        return False
    state.written_bytes += sum(len(delta.text.encode("utf-8", "surrogatepass")) for delta in deltas)
    if max_tokens is not None:
        return state.tokens > state.allowance
    # Some servers send fifty tokens in one chunk without reporting the number.
    return max(state.tokens, state.written_bytes // _BYTES_PER_TOKEN) >= state.allowance
