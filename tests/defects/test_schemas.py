"""A schema must not block the event loop, nor the local model after its caller has left (A5)."""

import itertools
import time

import anyio
import pytest

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.json_schema import SchemaError, schema_grammar
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

MANY = {"enum": [f"value number {i}" for i in range(100_000)]}
FAR = {"type": "integer", "minimum": -(10**4000), "maximum": 10**4000}


def nested_unions(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"allOf": [{"anyOf": [schema, schema]}, {"anyOf": [schema, schema]}]}
    return schema


DEAR = {
    "enum": MANY,
    "anyOf": {"anyOf": [{"const": i} for i in range(5_000)]},
    "characters": {"enum": ["x" * 1_000_000]},
    "optional properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}},
    "anyOf: |subschemas": nested_unions(30),
    "repetitions": {
        "type": "object",
        "required": [f"p{i}" for i in range(1_000)],
        "properties": {f"p{i}": {"type": "string", "maxLength": 1_000} for i in range(1_000)},
    },
    "optional parts in a pattern": {"type": "string", "pattern": "^(a?){100}$"},
    "characters in patterns": {"type": "string", "pattern": "x" * 100_000},
    "minimum has more than 40 digits": {"type": "integer", "minimum": 10**4000},
    "maximum has more than 40 digits": {"type": "number", "maximum": -(10**4000)},
}


@pytest.mark.parametrize("what", DEAR)
def test_a_dear_schema_is_refused_by_name_with_the_remedy(what):
    began_at = time.monotonic()
    with pytest.raises(SchemaError, match=what) as caught:
        schema_grammar(DEAR[what])
    assert "send this request to a server" in str(caught.value)
    assert time.monotonic() - began_at < 5.0


def test_bounds_that_nobody_reaches_are_drawn_in():
    began_at = time.monotonic()
    for schema in (FAR, {"type": "number", "maximum": 1.7976931348623157e308, "minimum": 0}):
        assert len(schema_grammar(schema)) < 10_000
    assert time.monotonic() - began_at < 1.0


def test_schemas_as_people_write_them_are_within_the_limits():
    schema_grammar({"enum": [f"Zone/City_{i}" for i in range(600)]})
    schema_grammar({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}})
    schema_grammar({"type": "string", "pattern": r"^[\w.+-]{1,64}@(?:[a-z0-9-]+\.){1,8}[a-z]{2,24}$"})
    schema_grammar({"type": "integer", "minimum": 0, "maximum": 2**128 - 1})


def asking(schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return Request([{"role": "user", "content": "Hi"}], "m", {"max_tokens": 4, "response_format": form})


@pytest.mark.anyio
async def test_neither_the_event_loop_nor_the_next_request_waits_for_a_schema():
    pytest.importorskip("llama_cpp")
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1)
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await anyio.sleep(0.01)

    try:
        await endpoint.warm_up()
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(0.05)
            for schema in (MANY, FAR):
                with anyio.move_on_after(2.0):
                    try:
                        async for _ in endpoint.open(asking(schema)):
                            pass
                    except EndpointFailure as failure:
                        assert failure.kind is FailureKind.UNSERVED  # noqa: PT017
            began_at = time.monotonic()
            async with endpoint.open(
                Request([{"role": "user", "content": "Hi"}], "m", {"max_tokens": 2})
            ) as next_one:
                async for _ in next_one:
                    pass
            assert time.monotonic() - began_at < 5.0
            group.cancel_scope.cancel()
        assert max(b - a for a, b in itertools.pairwise(ticks)) < 1.0
    finally:
        await endpoint.aclose()
