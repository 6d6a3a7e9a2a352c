"""What the tests of all frameworks share. They run where a framework is installed: `make test-frameworks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from weather_server import WeatherServer, weather_server

from disco import AsyncDisco, Disco
from disco.dispatch import Preset

SERVER_ONLY = Preset(name="test", dispatch={"policy": "server_only"})


@pytest.fixture
def anyio_backend() -> str:
    """These frameworks are made for asyncio."""
    return "asyncio"


@pytest.fixture
def server() -> Iterator[WeatherServer]:
    with weather_server() as running:
        yield running


@pytest.fixture(params=["openai", "disco"])
def client_of(request: pytest.FixtureRequest) -> Callable[[WeatherServer], openai.AsyncOpenAI]:
    """Makes the plain client, and ours: what a framework does with one it does with the other."""
    return plain if request.param == "openai" else routed


@pytest.fixture(params=["openai", "disco"])
def sync_client_of(request: pytest.FixtureRequest) -> Callable[[WeatherServer], openai.OpenAI]:
    def plain_sync(server: WeatherServer) -> openai.OpenAI:
        return openai.OpenAI(base_url=server.base_url, api_key="test-key")

    def routed_sync(server: WeatherServer) -> openai.OpenAI:
        return Disco(policy=SERVER_ONLY, base_url=server.base_url, api_key="test-key", price=(1.0, 1.0))

    return plain_sync if request.param == "openai" else routed_sync


@pytest.fixture
def disco_of() -> Callable[..., AsyncDisco]:
    """Makes our client only: for what the plain one would need a server of another kind for."""
    return routed


def plain(server: WeatherServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.base_url, api_key="test-key")


def routed(server: WeatherServer, **more: Any) -> AsyncDisco:
    settings = {"policy": SERVER_ONLY, "price": (1.0, 1.0), **more}
    return AsyncDisco(base_url=server.base_url, api_key="test-key", **settings)
