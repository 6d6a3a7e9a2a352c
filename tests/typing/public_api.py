"""What an application may write: checked by mypy (`tests/test_typing.py`), never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import openai
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessageParam
from pydantic import BaseModel

import disco
from disco import AsyncAzureDisco, AsyncDisco, AzureDisco, Disco, RouteLog, Timeouts
from disco.client.chat.chat_chunks import RoutedChatCompletion
from disco.client.chat.stream_types import DiscoStream
from disco.dispatch import Preset, available_presets, load_preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.profiles import DeviceProfile, ServerProfile, load_device, load_server
from disco.session.records.route_record import AttemptRecord, MigrationRecord, RouteRecord, SegmentRecord


def seen(route: RouteRecord) -> None:
    assert_type((route.winner, route.bill_usd, route.seamless), tuple[str | None, float, bool])
    assert_type((route.device_energy_j, route.policy_cost), tuple[float | None, float])
    assert_type(route.attempts, tuple[AttemptRecord, ...])
    assert_type(route.segments, tuple[SegmentRecord, ...])
    assert_type(route.migrations, tuple[MigrationRecord, ...])
    assert_type((route.to_json(indent=2), route.ledger.totals().bill_usd), tuple[str, float])


def constructions(preset: Preset, profile: DeviceProfile, server: ServerProfile) -> list[AsyncDisco]:
    endpoint: Endpoint = EngineEndpoint(model=Path("model.gguf"), name="device", context_tokens=4096)
    return [
        AsyncDisco(local=Path("model.gguf"), policy="private"),
        AsyncDisco(local=endpoint, policy=preset, device_profile=profile, server_profile=server),
        AsyncDisco(policy=Path("mine.toml"), device_profile="mine", server_profile=Path("s.toml")),
        AsyncDisco(api_key="...", continuation=Continuation(method="completions", template="model.gguf")),
        AsyncDisco(
            timeouts=Timeouts(connect_s=1.0, first_content_s=None, gap_s=5.0, total_s=60.0), timeout=20.0
        ),
        AsyncDisco(
            tiers=[disco.Tier(base_url="http://b/v1", model="m", reach="own", price=(0, 0)), endpoint],
            histories=Path("histories.json"),
            shadow=preset,
            state=False,
            attach=False,
            default_options={"reach": "own", "task": "triage", "classes": ["spam", "ham"], "judge": "whole"},
        ),
        AsyncDisco(redact=lambda text: {"Ann": "PERSON"} if "Ann" in text else {}).with_options(redact=None),
        AsyncDisco(local="smollm2-135m", price=(0.15, 0.6), on_route=seen, max_retries=0),
    ]


async def answers(client: AsyncDisco) -> str | None:
    """The stream's own type is only known at run time, so it is said here. Code for `AsyncOpenAI` keeps its types."""
    sdks_client: AsyncOpenAI = client
    assert sdks_client
    stream: DiscoStream = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "Why is the sea salty?"}],
        stream=True,
        extra_body={"disco": {"local_only": True, "pace_tps": "off", "migrate": False, "policy": "fast"}},
    )
    async for chunk in stream:
        assert_type(chunk, ChatCompletionChunk)
        assert_type(stream.writer, str | None)
    assert_type(stream.route, RouteRecord)
    await stream.close()
    sdks: openai.AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    async with sdks:
        async for chunk in sdks:
            assert_type(chunk, ChatCompletionChunk)
    answer: RoutedChatCompletion = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "Hello"}]
    )
    plain: ChatCompletion = answer
    seen(answer.route)
    return plain.choices[0].message.content


async def life(client: AsyncDisco) -> None:
    await client.warm_up(model="gpt-4o-mini")
    if client.server is not None:
        assert_type(client.server.continuation("gpt-4o-mini"), Continuation)
    async with client.with_options(timeout=3.0) as entered:
        assert_type(
            (entered, entered.timeouts, entered.timeouts.gap_s), tuple[AsyncDisco, Timeouts, float | None]
        )


def errors(
    refused: disco.ContextLengthError | disco.NoEndpointError,
    late: disco.AnswerTimeoutError,
    lost: disco.IncompleteAnswerError | disco.LocalModelError,
    wrong: disco.ConfigurationError,
    other: disco.ModelFileError | disco.DiscoError,
) -> tuple[
    openai.BadRequestError, openai.APITimeoutError, openai.APIConnectionError, ValueError, openai.OpenAIError
]:
    """Handlers an application already has go on working; disco's own are finer."""
    assert_type(refused.code, str | None)
    return refused, late, lost, wrong, other


class Sea(BaseModel):
    wide: bool


def named(name: disco.PresetName, path: Path, found: str, own: disco.Options) -> list[Disco]:
    """A preset by its name, its file, or a name that is known at run time only."""
    return [
        Disco(preset=name, budget={"usd": 5, "per": "month"}, default_options=own),
        Disco(
            preset=path,
            budget=disco.Budget(usd=0.5, window_s=86_400),
            default_options={"preset": path},
        ),
        Disco(preset=load_preset(found), budget={"server_tokens": 5, "window_s": 1, "account": "test"}),
    ]


def azure(preset: Preset) -> tuple[openai.AsyncAzureOpenAI, openai.AzureOpenAI]:
    own = disco.Options(preset="fast", pace_tps="off", classes=["spam", "ham"], local_only=None)
    return (
        AsyncAzureDisco(azure_endpoint="https://a", api_version="1", preset=preset, default_options=own),
        AzureDisco(
            azure_endpoint="https://a", api_version="1", preset="fast", local="smollm2-135m", timeout=3.0
        ),
    )


def failures(client: Disco) -> None:
    """What is known of an answer that an error ended, whoever defines its type."""
    try:
        client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "Hello"}],
            extra_body={"disco": disco.Options(preset="cheap", deadline_s=5.0)},
        )
    except disco.BudgetExceededError as error:
        assert_type((error.limit, error.retry_after_s, error.partial_text), tuple[str, float | None, str])
    except openai.OpenAIError as error:
        found = disco.evidence(error)
        assert_type((found, found.route, found.partial_text), tuple[disco.Evidence, RouteRecord | None, str])
        if found.route is not None:
            seen(found.route)


async def routes(client: AsyncDisco, sync: Disco) -> None:
    """`.route` where type checkers see it, and `route_of` for everything else."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    parsed = await client.chat.completions.parse(model="m", messages=messages, response_format=Sea)
    assert_type((parsed.route, parsed.choices[0].message.parsed), tuple[RouteRecord, Sea | None])
    async with client.chat.completions.stream(model="m", messages=messages, response_format=Sea) as events:
        async for event in events:
            if event.type == "content.delta":
                assert_type(event.delta, str)
        assert_type((await events.get_final_completion()).route, RouteRecord)
        assert_type(events.route, RouteRecord)
    with sync.chat.completions.stream(model="m", messages=messages) as told:
        told.until_done()
        assert_type(told.route, RouteRecord)
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=messages)
    response = await client.responses.create(model="m", input="Hello")
    assert_type((disco.route_of(raw), disco.route_of(response)), tuple[disco.RouteRecord, RouteRecord])
    stream: DiscoStream = await client.chat.completions.create(model="m", messages=messages, stream=True)
    async for _ in stream:
        print(stream.progress.tokens)


def shipped_data() -> None:
    assert_type((available_presets(), load_preset("balanced")), tuple[tuple[str, ...], Preset])
    assert_type((load_device("mine"), load_server(Path("s.toml"))), tuple[DeviceProfile, ServerProfile])
    with RouteLog(Path("routes.jsonl"), timelines=False) as log:
        assert_type((log, log.path, log.failed), tuple[RouteLog, Path, int])
        AsyncDisco(on_route=log)
