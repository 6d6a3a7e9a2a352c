"""The verdict is a function: each kind of it, once, by hand. And the language of the rows says what it cannot read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from wall.script import FAILS, REFUSED, TEXT, Row, rows_of
from wall.seen import Seen
from wall.verdict import Kind, judged
from wall.ways import Way

WHOLE = Seen(text=TEXT, finish="stop", requests=1)
RAISED = Seen(
    error="InternalServerError",
    kinds=("InternalServerError", "APIStatusError", "APIError"),
    status=500,
    requests=3,
)
HALF = Seen(text="Rhine ", error="APIConnectionError", kinds=("APIConnectionError", "APIError"), requests=1)
FOREIGN = Seen(error="KeyError", kinds=("KeyError",), is_ours=False, requests=1)
CALL = ("a", "now", "{}")


def row(**more: Any) -> Row:
    (made,) = rows_of(f"[a row]\nsay {TEXT}\nstop")
    return replace(made, **more)


@pytest.mark.parametrize(
    ("expected", "seen", "sdk", "more"),
    [
        (Kind.SAME, WHOLE, WHOLE, {}),
        (Kind.SAME, replace(WHOLE, usage=(9, 3, 12, None)), WHOLE, {}),
        (Kind.SAME, RAISED, RAISED, {}),
        (Kind.SAME, HALF, HALF, {}),
        (Kind.SAME, FOREIGN, FOREIGN, {}),
        (Kind.BETTER, HALF, replace(FOREIGN, text="Rhine "), {}),
        (Kind.BETTER, WHOLE, RAISED, {"means": {"text": TEXT}}),
        (Kind.BETTER, RAISED, replace(WHOLE, text=""), {"means": FAILS}),
        (Kind.WORSE, RAISED, WHOLE, {}),
        (Kind.WORSE, replace(WHOLE, text="Rhine"), WHOLE, {}),
        (Kind.WORSE, WHOLE, replace(WHOLE, usage=(9, 3, 12, None)), {}),
        (Kind.WORSE, WHOLE, replace(WHOLE, calls=[CALL]), {}),
        (Kind.WORSE, replace(HALF, text=""), HALF, {}),
        (Kind.WORSE, replace(WHOLE, wait_s=6.0), WHOLE, {}),
        (Kind.WORSE, replace(RAISED, wait_s=3.0), RAISED, {}),
        (Kind.WORSE, replace(WHOLE, requests=5), WHOLE, {}),
        (Kind.WRONG, FOREIGN, WHOLE, {}),
        (Kind.WRONG, replace(WHOLE, text="Rhine", finish="stop"), HALF, {}),
        (Kind.WRONG, replace(WHOLE, text="Rhone"), WHOLE, {}),
        (Kind.WRONG, replace(WHOLE, calls=[CALL]), replace(WHOLE, calls=[("b", *CALL[1:])]), {}),
        (Kind.WRONG, replace(RAISED, error="X", kinds=("X",)), RAISED, {}),
        (Kind.WRONG, replace(WHOLE, complaints=["?"]), WHOLE, {}),
    ],
)
def test_a_server_alone(expected: Kind, seen: Seen, sdk: Seen, more: dict[str, Any]) -> None:
    assert judged(row(**more), Way("one server", "stream"), seen, sdk).kind is expected


@pytest.mark.parametrize(
    ("expected", "seen", "sdk", "more"),
    [
        (Kind.BETTER, WHOLE, RAISED, {}),
        (Kind.WORSE, RAISED, RAISED, {}),
        (Kind.SAME, RAISED, RAISED, {"means": REFUSED}),
        (Kind.SAME, HALF, HALF, {}),
        (Kind.WORSE, replace(WHOLE, text=""), replace(WHOLE, text=""), {"means": FAILS}),
        (Kind.WORSE, replace(WHOLE, wait_s=7.0), replace(RAISED, wait_s=600.0), {"within_s": 6.0}),
        (Kind.PURPOSE, RAISED, RAISED, {"but": {"backup": "a reason"}}),
    ],
)
def test_where_somebody_else_may_answer(expected: Kind, seen: Seen, sdk: Seen, more: dict[str, Any]) -> None:
    assert judged(row(**more), Way("backup", "stream"), seen, sdk).kind is expected


def test_a_row_in_five_lines() -> None:
    (made,) = rows_of('[x]\nwhen stream\nsay "a "\npause 1\ncut\notherwise\nstatus 400\nbody {"error": 1}')
    streamed, plain = (made.reply("/chat", {"stream": stream}, 1) for stream in (True, False))
    assert (streamed.status, streamed.steps[1:]) == (200, [1.0, "cut"])
    assert (plain.status, plain.steps) == (400, [b'{"error": 1}'])


def test_a_document_is_what_the_stream_says_with_the_same_fault() -> None:
    (made,) = rows_of("[x]\nsay a\nsay b\nusage 1 2\npause 3\nstop")
    wait_s, data = made.reply("/chat", {}, 1).steps
    document = json.loads(data)
    assert (wait_s, document["choices"][0]["message"]["content"], document["usage"]["total_tokens"]) == (
        3.0,
        "ab",
        3,
    )
    (cut,) = rows_of("[x]\nsay a\ncut")
    assert cut.reply("/chat", {}, 1).fault == "cut"


def test_a_line_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"rows:2: 'sya a'"):
        rows_of("[x]\nsya a")
