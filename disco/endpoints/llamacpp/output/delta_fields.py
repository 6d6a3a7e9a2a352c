"""A delta of this machine's model as plain data: for the pipe of another process, and for a verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from disco.events import Delta, DeltaKind, ToolCallDelta

__all__ = ["delta_fields", "delta_of"]


def delta_fields(delta: Delta) -> dict[str, Any]:
    """Return the fields of a delta as JSON values, leaving out usual ones: there may be a delta for every token."""
    content: dict[str, Any] = {"text": delta.text, "tokens": delta.tokens}
    if delta.kind is not DeltaKind.TEXT:
        content["kind"] = delta.kind
    for name in ("ids", "logprobs", "logp", "label_scores"):
        if (value := getattr(delta, name)) is not None:
            content[name] = value
    if delta.tool_calls:
        content["tool_calls"] = [asdict(one) for one in delta.tool_calls]
    return content


def delta_of(content: Any) -> Delta:
    """Return the delta with these fields."""
    ids, logp, label_scores = content.get("ids"), content.get("logp"), content.get("label_scores")
    return Delta(
        content["text"],
        content["tokens"],
        DeltaKind(content.get("kind", DeltaKind.TEXT)),
        None if ids is None else tuple(ids),
        logprobs=content.get("logprobs"),
        logp=None if logp is None else tuple(logp),
        label_scores=None if label_scores is None else tuple(label_scores),
        tool_calls=tuple(ToolCallDelta(**one) for one in content.get("tool_calls", ())),
    )
