"""What the tests of all frameworks share. They run where a framework is installed: `make test-frameworks`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from weather_server import WeatherServer, weather_server

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile


@pytest.fixture
def anyio_backend() -> str:
    """These frameworks are made for asyncio."""
    return "asyncio"


@pytest.fixture
def server() -> Iterator[WeatherServer]:
    with weather_server() as running:
        yield running


def client(make: Any, server: WeatherServer, **more: Any) -> Any:
    settings = {"base_url": server.base_url, "api_key": "test-key", **more}
    if make in (AsyncDisco, Disco):
        preset = Preset(name="test", dispatch={"policy": "server_only"})
        settings = {"policy": preset, "price": (1.0, 1.0), **settings}
    return make(**settings)


@pytest.fixture(params=[openai.AsyncOpenAI, AsyncDisco])
def client_of(request: pytest.FixtureRequest) -> Callable[[WeatherServer], openai.AsyncOpenAI]:
    """Makes the plain client, and ours: what a framework does with one it does with the other."""
    return lambda server: client(request.param, server)


@pytest.fixture(params=[openai.OpenAI, Disco])
def sync_client_of(request: pytest.FixtureRequest) -> Callable[[WeatherServer], openai.OpenAI]:
    return lambda server: client(request.param, server)


@pytest.fixture
def disco_of() -> Callable[[WeatherServer], AsyncDisco]:
    """Makes our client only: for what the plain one would need a server of another kind for."""
    return lambda server: client(AsyncDisco, server)


@pytest.fixture
def with_device(server: WeatherServer) -> tuple[AsyncDisco, list[Any]]:
    """Our client with a model on this machine, which says "From here.", and the routes of its answers."""
    routes: list[Any] = []
    device = SimulatedEndpoint("device", SimulatedProfile(answer="From here."), place="device")
    return client(AsyncDisco, server, local=device, on_route=routes.append), routes
