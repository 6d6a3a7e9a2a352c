"""A typed use of the public API. Checked by mypy (`tests/test_typing.py`), never run.

Whatever is written here is what an application may write: a change that breaks it breaks applications.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import disco
from disco import (
    AnswerTimeoutError,
    AsyncDisco,
    ConfigurationError,
    ContextLengthError,
    DiscoError,
    IncompleteAnswerError,
    LocalModelError,
    ModelFileError,
    NoEndpointError,
    RouteLog,
    Timeouts,
)
from disco.client.chat.answer_stream import DiscoStream
from disco.client.chat.chat_chunks import RoutedChatCompletion
from disco.dispatch import Preset, available_presets, load_preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.profiles import DeviceProfile, ServerProfile, load_device, load_server
from disco.session.records.route_record import AttemptRecord, MigrationRecord, RouteRecord, SegmentRecord


def seen(route: RouteRecord) -> None:
    """A callback for `on_route`."""
    assert_type(route.winner, str | None)
    assert_type(route.cost, float)
    assert_type(route.seamless, bool)
    assert_type(route.attempts, tuple[AttemptRecord, ...])
    assert_type(route.segments, tuple[SegmentRecord, ...])
    assert_type(route.migrations, tuple[MigrationRecord, ...])
    assert_type(route.to_json(indent=2), str)
    assert_type(route.ledger.total_cost, float)


def constructions(preset: Preset, profile: DeviceProfile, server: ServerProfile) -> list[AsyncDisco]:
    """Every way to make a client."""
    endpoint: Endpoint = LlamaCppEndpoint(model=Path("model.gguf"), name="device", context_tokens=4096)
    return [
        AsyncDisco(),
        AsyncDisco(local="smollm2-135m"),
        AsyncDisco(local=Path("model.gguf"), policy="private"),
        AsyncDisco(local=endpoint, policy=preset, device_profile=profile, server_profile=server),
        AsyncDisco(policy=Path("mine.toml"), device_profile="mine", server_profile=Path("s.toml")),
        AsyncDisco(api_key="...", base_url="http://localhost:8000/v1", continuation="auto"),
        AsyncDisco(api_key="...", continuation=Continuation(method="flags")),
        AsyncDisco(api_key="...", continuation=Continuation(method="completions", template="model.gguf")),
        AsyncDisco(
            api_key="...",
            price=(0.15, 0.6),
            timeouts=Timeouts(connect_s=1.0, first_content_s=None, gap_s=5.0, total_s=60.0),
            on_route=seen,
            timeout=20.0,
            max_retries=0,
            default_headers={"X-App": "1"},
        ),
    ]


def records() -> AsyncDisco:
    """Route records in a file."""
    with RouteLog(Path("routes.jsonl"), timelines=False) as log:
        assert_type(log, RouteLog)
        assert_type(log.path, Path)
        assert_type(log.failed, int)
        return AsyncDisco(on_route=log)


def takes_the_sdks_client(client: AsyncOpenAI) -> None:
    """A library that knows nothing of disco."""


async def streaming(client: AsyncDisco) -> str:
    """The stream's own type is only known at run time, so it is said here."""
    takes_the_sdks_client(client)
    stream: DiscoStream = await client.chat.completions.create(
        model="gpt-4o-mini",
        messages=[{"role": "user", "content": "Why is the sea salty?"}],
        stream=True,
        extra_body={"disco": {"local_only": True, "pace_tps": "off", "migrate": False, "policy": "fast"}},
    )
    text = ""
    async for chunk in stream:
        assert_type(chunk, ChatCompletionChunk)
        assert_type(stream.writer, str | None)
        text += chunk.choices[0].delta.content or ""
    assert_type(stream.route, RouteRecord)
    await stream.close()
    return text


async def streaming_as_the_sdk(client: AsyncDisco) -> None:
    """Code written for `AsyncOpenAI` keeps its types."""
    plain: openai.AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    async with plain:
        async for chunk in plain:
            assert_type(chunk, ChatCompletionChunk)


async def whole_answers(client: AsyncDisco) -> str | None:
    """Without a stream."""
    answer: RoutedChatCompletion = await client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "Hello"}]
    )
    plain: ChatCompletion = answer
    seen(answer.route)
    return plain.choices[0].message.content


async def life(client: AsyncDisco) -> None:
    """Warm-up, copies, and the end."""
    await client.warm_up()
    await client.warm_up(model="gpt-4o-mini")
    assert_type(client.with_options(timeout=3.0), AsyncDisco)
    assert_type(client.copy(max_retries=1), AsyncDisco)
    assert_type(client.timeouts, Timeouts)
    if client.server is not None:
        assert_type(client.server.continuation("gpt-4o-mini"), Continuation)
    async with client as entered:
        assert_type(entered, AsyncDisco)
    await client.close()


async def errors(client: AsyncDisco) -> None:
    """Handlers an application already has go on working; disco's own are finer."""
    try:
        await client.models.list()
    except (ContextLengthError, NoEndpointError) as refused:
        bad_request: openai.BadRequestError = refused
        assert_type(bad_request.code, str | None)
    except AnswerTimeoutError as late:
        timeout: openai.APITimeoutError = late
        raise timeout from late
    except (IncompleteAnswerError, LocalModelError) as lost:
        connection: openai.APIConnectionError = lost
        raise connection from lost
    except ConfigurationError as wrong:
        value: ValueError = wrong
        raise value from wrong
    except (ModelFileError, DiscoError) as other:
        base: openai.OpenAIError = other
        raise base from other


def shipped_data() -> None:
    """Presets and profiles by name."""
    assert_type(available_presets(), tuple[str, ...])
    assert_type(load_preset("balanced"), Preset)
    assert_type(load_preset({"dispatch": {"policy": "race"}}), Preset)
    assert_type(load_device("mine"), DeviceProfile)
    assert_type(load_server("gpt-4o-mini-2024"), ServerProfile)
    assert_type(disco.Timeouts().gap_s, float | None)
