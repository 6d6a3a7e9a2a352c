"""The verdict on a cell: a function of what was seen, of what the plain SDK gave, and of what the row says is right.

**As the SDK**: an application sees the same. The same answer (text, thoughts, refusal, calls, finish reason, further
fields, and the usage where the SDK has one), or an error of the same class and status after the same text. Where the
SDK raises what is no `OpenAIError`, any `OpenAIError` is the same.

**Better**: the SDK raises and this is the answer that the row means, from its server or from somebody else; or the SDK
gives what the row says is no answer and this is one, or an error.

**Worse**: an error where the SDK answers, or where somebody else would have answered and the reader has nothing yet;
the SDK's answer with a part of it lost; less text before an error; a wait of more than 5 s and a tenth beyond the
SDK's (2 s where both end in an error), or of more than a row allows where somebody else may answer; more requests to
the server than the SDK's three and one to leave something out.

With its helpers, `.stream()` and `parse()`, the SDK fails of some servers' oddities with what is no `OpenAIError`. The
same failure is as the SDK, and so is disco's error that says that the helper has failed; an answer is held to what the
SDK gives without them.

**Wrong**: an answer that neither the SDK gives nor the row means; an exception that is no `OpenAIError`; an error of
another class; nothing at all within three times the SDK's patience.

A server without the Responses API is an error for the SDK. Where disco answers instead, it is held to what the SDK
makes of the server's chat completion, streamed or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from wall.script import FAILS, REFUSED, Row
from wall.seen import Seen
from wall.ways import Way

__all__ = ["BAD", "Cell", "Kind", "judged", "plain_of", "reference_of"]

LONGER_S, ERROR_LATER_S, SHARE = 5.0, 2.0, 0.1
MOST_REQUESTS = 4


class Kind(Enum):
    """A verdict, with its sign in the table."""

    SAME = "="
    BETTER = "+"
    WORSE = "-"
    WRONG = "!"
    PURPOSE = "~"


BAD = (Kind.WORSE, Kind.WRONG)


class Cell(NamedTuple):
    """A verdict, and why."""

    kind: Kind
    why: str = ""


def reference_of(row: Row, way: Way) -> Way:
    """The SDK's way that a way is held to."""
    if not way.shape.startswith("responses") or row.has_responses:
        return way.reference
    return Way(way.reference.setup, "stream" if way.shape.endswith("stream") else "whole", way.is_async)


def plain_of(way: Way) -> Way | None:
    """The SDK's way without its helpers, where a way has them."""
    plain = {"helper": "stream", "parse": "whole"}.get(way.shape)
    return None if plain is None else Way(way.reference.setup, plain, way.is_async)


_HELPER_FAILED = "The openai package cannot read this answer"


def judged(row: Row, way: Way, seen: Seen, sdk: Seen, plain: Seen | None = None) -> Cell:
    """The verdict.

    Args:
        sdk: what the way's `reference_of` gave.
        plain: what the SDK gave without its helpers, where the way has them.
    """
    is_of_helper = seen.error == sdk.error or (seen.is_ours and _HELPER_FAILED in seen.says)
    if plain is not None and not sdk.is_ours and not is_of_helper:
        sdk = plain  # the SDK's helper fails of a server's oddity: the chunks, or the completion, are the measure
    cell = _judged(row, way, seen, sdk)
    reason = next((why for name, why in row.but.items() if way.is_named([name])), None)
    if reason is None:
        return cell
    return Cell(Kind.PURPOSE, reason) if cell.kind in BAD else cell


def _judged(row: Row, way: Way, seen: Seen, sdk: Seen) -> Cell:
    if seen.complaints:
        return Cell(Kind.WRONG, f"the event loop or the log was told of {seen.complaints[0]}")
    if not seen.is_ours and seen.error == sdk.error:
        return Cell(Kind.SAME, f"raises {seen.error}")
    if not seen.is_ours:
        return Cell(Kind.WRONG, f"raises {seen.error}, which is no OpenAIError: {seen.says}")
    is_added = way.shape.startswith("responses") and not row.has_responses
    if is_added and seen.status == 404 and not way.helped(row):
        return Cell(Kind.SAME, "no Responses API")
    cell = _raised(row, way, seen, sdk) if seen.error else _answered(row, way, seen, sdk)
    if cell.kind in BAD:
        return cell
    slack = ERROR_LATER_S if seen.error and sdk.error else LONGER_S
    if seen.wait_s > sdk.wait_s * (1 + SHARE) + slack:
        return Cell(Kind.WORSE, f"takes {seen.wait_s:g} s, the SDK {sdk.wait_s:g} s")
    if row.within_s is not None and way.helped(row) and seen.wait_s > row.within_s:
        return Cell(Kind.WORSE, f"takes {seen.wait_s:g} s, though somebody else may answer")
    if seen.requests > max(sdk.requests, MOST_REQUESTS):
        return Cell(Kind.WORSE, f"sends {seen.requests} requests, the SDK {sdk.requests}")
    return cell


def _answered(row: Row, way: Way, seen: Seen, sdk: Seen) -> Cell:
    mine = _facts(seen.answer(), way)
    theirs = _facts(sdk.answer(), way)
    # What the SDK raised about has no end.
    known = {name: theirs[name] for name in theirs if not sdk.error or name not in ("finish", "usage")}
    meant = {**known, **_facts(row.means, way)} if isinstance(row.means, Mapping) else None
    good = _facts(row.good, way)
    is_same = sdk.error is None and (_same(mine, theirs) or (_is_empty(mine) and _is_empty(theirs)))
    if is_same and way.helped(row) and _is_none(row, sdk, way):
        return Cell(Kind.WORSE, "no answer, where somebody else would have answered")
    if is_same:
        return Cell(Kind.SAME)
    if meant is not None and _same(mine, meant):
        return Cell(Kind.BETTER)
    if way.helped(row) and all(mine[name] == good[name] for name in good if name != "usage"):
        return Cell(Kind.SAME if sdk.error is None and row.means != FAILS else Kind.BETTER)
    if sdk.error is not None:
        return Cell(Kind.WRONG, f"answers {_few(mine)}, where the SDK raises {sdk.error}")
    lost = [name for name in theirs if theirs[name] and not _same_field(name, mine, theirs)]
    why = "; ".join(_differences(mine, meant or theirs))
    is_lost = lost and all(_is_less(mine[name], theirs[name]) for name in lost)
    return Cell(Kind.WORSE if is_lost else Kind.WRONG, why)


# What the SDK's helpers raise about an answer that is complete.
_OF_THE_ANSWER = ("LengthFinishReasonError", "ContentFilterFinishReasonError")


def _is_none(row: Row, sdk: Seen, way: Way) -> bool:
    """Whether the SDK has no answer: it raises, or what it gives is none by what the row says."""
    is_missed = isinstance(row.means, Mapping) and bool(row.good.get("text")) and _is_empty(sdk.answer())
    return sdk.error is not None or row.means == FAILS or is_missed


def _is_empty(facts: Mapping[str, Any]) -> bool:
    return not any(facts.get(name) for name in ("text", "reasoning", "refusal", "calls"))


def _raised(row: Row, way: Way, seen: Seen, sdk: Seen) -> Cell:
    has_nothing = not seen.text and not seen.calls and sdk.error not in _OF_THE_ANSWER
    is_none = _is_none(row, sdk, way)
    if way.helped(row) and row.means != REFUSED and is_none and has_nothing:
        return Cell(Kind.WORSE, f"raises {seen.error}, where somebody else would have answered: {seen.says}")
    if sdk.error is None:
        if is_none:
            return Cell(Kind.BETTER)
        return Cell(Kind.WORSE, f"raises {seen.error}, where the SDK answers: {seen.says}")
    if "stream" in way.shape or way.shape == "helper":
        if len(seen.text) < len(sdk.text):
            return Cell(Kind.WORSE, f"{seen.text!r} before the error, the SDK {sdk.text!r}")
        if not seen.text.startswith(sdk.text):
            return Cell(Kind.WRONG, f"{seen.text!r} before the error, the SDK {sdk.text!r}")
    if not sdk.is_ours:
        return Cell(Kind.BETTER)
    is_same = sdk.error in seen.kinds and (sdk.status is None or sdk.status == seen.status)
    # Behind a server, the connection that failed is not the client's own.
    is_behind = way.setup.startswith("serve") and sdk.status is None and "APIError" in seen.kinds
    # The same error within a stream has no status, but its words.
    is_within = any(c.get("error") for r in row.replies for c in r.chunks) and "APIError" in seen.kinds
    if is_same or is_behind or (is_within and seen.error != "IncompleteAnswerError"):
        return Cell(Kind.SAME)
    return Cell(
        Kind.WRONG, f"raises {seen.error} ({seen.status}), the SDK {sdk.error} ({sdk.status}): {seen.says}"
    )


# Of a completed response the Responses API gives no reason.
_FINISH = {
    "length": "max_output_tokens",
    "max_output_tokens": "max_output_tokens",
    "content_filter": "content_filter",
}


def _facts(answer: Mapping[str, Any], way: Way) -> dict[str, Any]:
    """What is compared, in the terms of the way's API."""
    facts = {name: value for name, value in answer.items() if name in Seen().answer()}
    if "calls" in facts:
        facts["calls"] = [tuple(call) for call in facts["calls"]]
    if "text" in facts:
        facts["text"] = facts["text"] or ""
    if facts.get("usage"):
        prompt, completion, *rest = facts["usage"]
        total, cached = (*rest, None, None)[:2]
        facts["usage"] = (prompt, completion, total, cached or 0)
        if not any(type(count) in (int, float, str) for count in (prompt, completion, total)):
            facts["usage"] = None
    if "more" in facts:
        facts["more"] = {k: v for k, v in facts["more"].items() if not k.startswith("_")}
    if way.shape.startswith("responses"):
        facts.pop("more", None)
        facts.pop("reasoning", None)
        if "finish" in facts:
            facts["finish"] = _FINISH.get(facts["finish"], "stop")
    return facts


def _same(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(_same_field(name, mine, other) for name in other)


def _same_field(name: str, mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    wanted, given = other[name], mine.get(name)
    if name == "usage":
        return wanted is None or (given is not None and _same_counts(given, wanted))
    return bool(given == wanted)


def _same_counts(given: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    """Counts that the other has not, or that make no sense, may be anything."""
    return all(g == w or type(w) is not int or w < 0 for g, w in zip(given, wanted, strict=True))


def _is_less(mine: Any, theirs: Any) -> bool:
    if not mine:
        return True
    if isinstance(mine, str) and isinstance(theirs, str):
        return len(mine) < len(theirs) and mine in theirs
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return all(theirs.get(name) == value for name, value in mine.items())
    return isinstance(mine, list) and len(mine) < len(theirs) and all(item in theirs for item in mine)


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for name in other:
        if not _same_field(name, mine, other):
            yield f"{name} {_short(mine.get(name))} for {_short(other[name])}"


def _few(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in facts.items() if value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 90 else text[:60] + "..." + text[-20:]
