"""A stream of the wall's rows, mutated: bytes, fields, order, cuts, silences. The same seed makes the same stream."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from wall.script import CUT, RESET, Reply, Step, assembled, read_rows

__all__ = ["mutated"]

WAYS = ("one server", "one server", "routed", "routed", "routed whole", "whole", "responses", "two", "serve")
_WORDS = (
    *(
        b"\n\n",
        b"\n",
        b"\r\n",
        b"data: ",
        b"data:",
        b"data: [DONE]\n\n",
        b": ping\n\n",
        b"event: error\n",
        b"id: 1\n",
    ),
    *(
        b"null",
        b"{}",
        b"[]",
        b'""',
        b"0",
        b"-1",
        b"1e999",
        b"NaN",
        b"true",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x00",
        b"\\u",
    ),
    *(
        b'"error":{"message":"x"},',
        b'"finish_reason":"stop"',
        b'"content":',
        b'"tool_calls":[{}]',
        b"\\ud83d",
        b"}",
    ),
)
_VALUES = (
    *(
        None,
        0,
        -1,
        1.5,
        10**30,
        True,
        False,
        "",
        "x",
        "stop",
        "length",
        [],
        {},
        [None],
        {"message": "x"},
        "\ud83d",
    ),
    *([{"type": "text", "text": "x"}], {"code": 429, "message": "slow"}, [[]], [{"index": 0}], "null"),
)
_NAMES = (
    *(
        "error",
        "choices",
        "delta",
        "content",
        "finish_reason",
        "usage",
        "index",
        "id",
        "tool_calls",
        "function",
    ),
    *(
        "arguments",
        "logprobs",
        "refusal",
        "role",
        "message",
        "reasoning_content",
        "object",
        "created",
        "model",
    ),
)


@cache
def _corpus() -> list[Reply]:
    replies = [reply for row in read_rows() for reply in row.replies]
    return [r for r in replies if sum(len(s) for s in r.steps if isinstance(s, bytes)) < 4000]


@cache
def _documents() -> list[Any]:
    return [assembled(reply.chunks) for reply in _corpus() if reply.chunks]


def mutated(seed: int) -> tuple[Reply, str]:
    """A reply, and the way in which it is asked for."""
    rng = random.Random(seed)
    way = WAYS[seed % len(WAYS)]
    if way == "whole":
        document = json.loads(json.dumps(rng.choice(_documents())))
        for _ in range(rng.randint(0, 3)):
            _change_value(rng, document)
        steps: list[Step] = [json.dumps(document).encode()]
        reply = Reply(headers={"content-type": "application/json"}, is_document=True)
    else:
        reply = rng.choice(_corpus())
        steps = list(reply.steps)
        if rng.random() < 0.2:
            steps += rng.choice(_corpus()).steps
    for _ in range(rng.randint(1, 3)):
        rng.choice(_MUTATIONS)(rng, steps)
    headers = {k: v for k, v in reply.headers.items() if k != "location"}
    status = rng.choice([200] * 30 + [reply.status, 400, 429, 500, 204, 304])
    return Reply(status=status, headers=headers, steps=steps, is_document=reply.is_document), way


def _change_value(rng: random.Random, body: Any) -> None:
    """Change one value, name or place in a JSON value."""
    inner = [body]
    at = body
    while isinstance(at, dict | list) and at:
        at = rng.choice(list(at.values()) if isinstance(at, dict) else at)
        if isinstance(at, dict | list):
            inner.append(at)
    where = rng.choice(inner)
    value = copy.deepcopy(rng.choice([*_VALUES, *where[:1]] if isinstance(where, list) else _VALUES))
    if isinstance(where, list):
        if where and rng.random() < 0.5:
            where[rng.randrange(len(where))] = value
        else:
            where.append(value)
    elif isinstance(where, dict):
        if where and rng.random() < 0.3:
            del where[rng.choice(list(where))]
        else:
            where[rng.choice([*where, *_NAMES])] = value


def _place(rng: random.Random, steps: Sequence[Step]) -> int | None:
    places = [i for i, step in enumerate(steps) if isinstance(step, bytes) and step]
    return rng.choice(places) if places else None


def _of_bytes(change: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, list[Step]], None]:
    def apply(rng: random.Random, steps: list[Step]) -> None:
        at = _place(rng, steps)
        if at is not None:
            steps[at] = change(rng, steps[at])  # type: ignore[arg-type]

    return apply


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 20) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_WORDS) + data[at:]


def _double(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data + data[at:]


def _change_field(rng: random.Random, data: bytes) -> bytes:
    if not data.startswith(b"data: {"):
        return _insert(rng, data)
    try:
        body = json.loads(data[6:])
    except ValueError:
        return data
    _change_value(rng, body)
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _exchange(rng: random.Random, steps: list[Step]) -> None:
    if len(steps) > 1:
        a, b = rng.randrange(len(steps)), rng.randrange(len(steps))
        steps[a], steps[b] = steps[b], steps[a]


def _again(rng: random.Random, steps: list[Step]) -> None:
    if steps:
        steps.insert(rng.randrange(len(steps)), rng.choice(steps))


def _leave_out(rng: random.Random, steps: list[Step]) -> None:
    if steps:
        del steps[rng.randrange(len(steps))]


def _cut(rng: random.Random, steps: list[Step]) -> None:
    del steps[rng.randrange(len(steps) + 1) :]
    steps += [[], [CUT], [RESET], [700.0]][rng.randrange(4)]


def _pause(rng: random.Random, steps: list[Step]) -> None:
    steps.insert(rng.randrange(len(steps) + 1), rng.choice([0.5, 1.1, 4.0, 16.0, 40.0, 700.0]))


def _split(rng: random.Random, steps: list[Step]) -> None:
    at = _place(rng, steps)
    if at is not None:
        data = steps[at]
        assert isinstance(data, bytes)
        size = rng.choice([1, 2, 3, 7, 50])
        steps[at : at + 1] = [data[i : i + size] for i in range(0, len(data), size)]


_MUTATIONS = (
    *(_of_bytes(change) for change in (_flip, _remove, _insert, _double, _change_field, _change_field)),
    *(_exchange, _again, _leave_out, _cut, _pause, _split),
)
