"""The text of verdicts as deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, DeltaKind, ToolCallDelta

__all__ = ["deltas_of"]

_KINDS: Final = {
    kind.value: kind for kind in (DeltaKind.TEXT, DeltaKind.REASONING, DeltaKind.TOOL, DeltaKind.ROLE)
}


def deltas_of(given: Iterable[Mapping[str, Any]]) -> list[Delta]:
    """Return the deltas that a verdict's JSON describes (`messages.Verdict.deltas`).

    Raises:
        EndpointFailure: a field has a wrong type.
    """
    try:
        return [_delta(one) for one in given]
    except (KeyError, TypeError, ValueError) as error:
        reason = IncompleteAnswerError("A verify server sent a delta that breaks the protocol.")
        raise EndpointFailure(FailureKind.GARBAGE, reason) from error


def _delta(one: Mapping[str, Any]) -> Delta:
    text, tokens, ids = one.get("text", ""), one.get("tokens", 1), one.get("ids")
    if not isinstance(text, str) or type(tokens) is not int:
        raise TypeError
    made = Delta(text, tokens, ids=None if ids is None else tuple(ids))
    if len(one) <= 3 and one.keys() <= _PLAIN:
        return made
    made.kind = _KINDS[one.get("kind", "text")]
    made.logprobs = one.get("logprobs")
    if (logp := one.get("logp")) is not None:
        made.logp = tuple(float(value) for value in logp)
    made.reasoning = str(one.get("reasoning", ""))
    made.tool_calls = tuple(ToolCallDelta(**call) for call in one.get("tool_calls") or ())
    return made


_PLAIN: Final = frozenset({"text", "tokens", "ids"})
