"""What an error or an answer tells about its route: for type checkers, which see no attribute on the SDK's objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from disco.errors import DiscoError
from disco.session.records.route_record import RouteRecord

__all__ = ["Evidence", "evidence", "route_of"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the answer that an error ended.

    Attributes:
        route: the route record; None where no endpoint was asked, as after a mistake in the request.
        partial_text: the text that was written before the error; "" where there was none.
    """

    route: RouteRecord | None
    partial_text: str = field(repr=False)  # a text belongs in no log


def evidence(error: BaseException) -> Evidence:
    """Return what is known of the answer that an error ended. Never raises.

    Args:
        error: any exception: of disco, of the SDK, or one that a framework raised `from` it.
    """
    seen: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in seen:
        route, text = getattr(at, "route", None), getattr(at, "partial_text", None)
        if isinstance(text, str) and (text or isinstance(route, RouteRecord)):
            return Evidence(route if isinstance(route, RouteRecord) else None, text)
        seen.append(at)
        at = at.__cause__
    return Evidence(None, "")


def route_of(answer: object) -> RouteRecord:
    """Return the route record of an answer, in whatever form the SDK gave it.

    The same as `answer.route`, which every answer has, and which type checkers see on chat completions and their
    streams only.

    Args:
        answer: a completion, a response, a raw response, or a stream that was read to its end.

    Raises:
        DiscoError: the answer is not complete yet, or there is no record of it.
    """
    route = getattr(answer, "route", None)
    if isinstance(route, RouteRecord):
        return route
    raise DiscoError(
        f"There is no route record of this {type(answer).__name__}. Answers of chat.completions and responses have "
        "one; what was passed on as it is (n=2, embeddings) has none."
    )
