"""What the tests of all frameworks share. They run where a framework is installed: `make test-frameworks`."""

import openai
import pytest
from weather_server import weather_server

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile


@pytest.fixture
def anyio_backend():
    return "asyncio"  # which these frameworks are made for


@pytest.fixture
def server():
    with weather_server() as running:
        yield running


def made(make, server, **more):
    if make in (AsyncDisco, Disco):
        preset = Preset(name="test", dispatch={"policy": "server_only"})
        more = {"policy": preset, "price": (1.0, 1.0), **more}
    return make(base_url=server.base_url, api_key="test-key", **more)


@pytest.fixture(params=[openai.AsyncOpenAI, AsyncDisco])
async def client(request, server):
    """The plain client, and ours: what a framework does with one it does with the other."""
    async with made(request.param, server) as client:
        yield client


@pytest.fixture
async def ours(server):
    """For what the plain client would need a server of another kind for."""
    async with made(AsyncDisco, server) as client:
        yield client


@pytest.fixture(params=[openai.OpenAI, Disco])
def sync_client(request, server):
    with made(request.param, server) as client:
        yield client


@pytest.fixture
async def with_device(server):
    """Our client with a model on this machine, which says "From here.", and the routes of its answers."""
    routes = []
    device = SimulatedEndpoint("device", SimulatedProfile(answer="From here."), place="device")
    async with made(AsyncDisco, server, local=device, on_route=routes.append) as client:
        yield client, routes
