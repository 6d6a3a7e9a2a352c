"""Which event loops a test runs on where it takes seconds of work: one, by turns; `make test-slow` takes the other."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest

__all__ = ["by_turns", "mostly"]

LOOPS = ("asyncio", "trio")


def _given(*values: Any, seldom: bool) -> Any:
    named = "-".join(getattr(value, "__name__", str(value)) for value in values)
    return pytest.param(*values, id=named, marks=pytest.mark.slow if seldom else ())


def by_turns(things: Iterable[Any], turn: int = 0, seldom: Container[str] = ()) -> list[Any]:
    """(thing, loop), for `parametrize`: the first thing on asyncio (with `turn` 1 on trio), the second on trio.

    Those named in `seldom` are for the slow run only.
    """
    return [
        _given(
            thing, loop, seldom=getattr(thing, "__name__", thing) in seldom or (number + place + turn) % 2 > 0
        )
        for number, thing in enumerate(things)
        for place, loop in enumerate(LOOPS)
    ]


def mostly(loop: str) -> pytest.MarkDecorator:
    """An async test runs on `loop`, and on the other one in the slow run."""
    return pytest.mark.parametrize("anyio_backend", [_given(one, seldom=one != loop) for one in LOOPS])
