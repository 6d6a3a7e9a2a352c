"""A schema must not block the event loop, nor the local model after its caller has left (A5)."""

import itertools
import time

import anyio
import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("llguidance")

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

MANY = {"enum": [f"value number {i}" for i in range(100_000)]}
FAR = {"type": "integer", "minimum": -(10**4000), "maximum": 10**4000}


def required(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


def nested_unions(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"allOf": [{"anyOf": [schema, schema]}, {"anyOf": [schema, schema]}]}
    return schema


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


DEAR = {
    "characters in enum": MANY,
    "characters": {"enum": ["x" * 1_000_000]},
    "optional properties": {"type": "object", "properties": {f"p{i}": {} for i in range(5_000)}},
    "subschemas": nested_unions(30),
    "nested too deeply": nested(5_000),
    "minimum is beyond": {"type": "integer", "minimum": 10**4000},
    "maximum is beyond": {"type": "number", "maximum": -(10**4000)},
    # Each of these kept llguidance busy for a minute or more.
    "steps of multipleOf": required(
        **{f"p{i}": {"type": "integer", "multipleOf": 99_991 - i} for i in range(100)}
    ),
    "patterns and formats": {"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(30)]},
    # And these come upon its own limits.
    "too much work": {"allOf": [{"enum": [f"s{i}" for i in range(5_000)]}] * 2},
    "patterns and lengths": {
        "type": "string",
        "pattern": "(ab|a|b){0,500}",
        "maxLength": 800,
        "minLength": 300,
    },
}


@pytest.mark.parametrize("what", DEAR)
def test_a_dear_schema_is_refused_by_name_with_the_remedy(what):
    began_at = time.thread_time()
    with pytest.raises(SchemaError, match=what) as caught:
        accepted_schema(DEAR[what])
    assert what == "nested too deeply" or "send this request to a server" in str(caught.value)
    assert time.thread_time() - began_at < 5.0


def test_schemas_as_people_write_them_and_dear_ones_within_the_limits_are_accepted():
    began_at = time.thread_time()
    accepted_schema(FAR)
    accepted_schema({"type": "number", "maximum": 1.7976931348623157e308, "minimum": 0})
    accepted_schema({"enum": [f"Zone/City_{i}" for i in range(600)]})
    accepted_schema({"anyOf": [{"const": i} for i in range(5_000)]})
    accepted_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}})
    accepted_schema({"type": "string", "pattern": r"^[\w.+-]{1,64}@(?:[a-z0-9-]+\.){1,8}[a-z]{2,24}$"})
    accepted_schema({"type": "string", "pattern": "^(a?){100}$"})
    accepted_schema({"type": "integer", "minimum": 0, "maximum": 2**128 - 1})
    accepted_schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**5})
    accepted_schema(required(**{f"p{i}": {"type": "string", "maxLength": 1_000} for i in range(1_000)}))
    dates = {f"at{i}": {"type": "string", "format": "date-time"} for i in range(20)}
    accepted_schema({"allOf": [{"properties": {name: one}} for name, one in dates.items()]})
    assert time.thread_time() - began_at < 10.0


def asking(schema):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return Request([{"role": "user", "content": "Hi"}], "m", {"max_tokens": 4, "response_format": form})


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_neither_the_event_loop_nor_the_next_request_waits_for_a_schema(isolation):
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1, isolation=isolation)
    ticks = []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await anyio.sleep(0.01)

    try:
        async for _ in endpoint.open(asking({"type": "null"})):  # what only the first schema needs
            pass
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await anyio.sleep(0.05)
            # The last one is accepted, and takes its time where the model is.
            for schema in (MANY, FAR, {"enum": ["x" * 200_000]}):
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
            assert time.monotonic() - began_at < 10.0
            group.cancel_scope.cancel()
        assert max(b - a for a, b in itertools.pairwise(ticks)) < 1.0
    finally:
        await endpoint.aclose()
