"""The shipped model cut in two: over a real socket, its answers are the whole model's."""

import anyio
import numpy as np
import pytest

from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_endpoint import SplitEndpoint
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from tests.endpoints.split.asking import ask, asked, running
from tests.endpoints.split.layer_stand_in import LayerStandIn

pytestmark = pytest.mark.real

CHUNK = 16
PROMPTS = ("Name three colours.", "Write two sentences about the sea.", "What is 17 times 3?")


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    source = resolve_model("smollm2-135m")
    # An adapter that does nothing: its drafts are bad, and nearly every one is taken back.
    adapter = {"attn_norm.weight": np.ones(576, np.float32)}
    return cut_model(source, 2, tmp_path_factory.mktemp("smol"), adapter=adapter)


async def compared(parts, prompts, *, tokens, window):
    requests = [
        ask(prompt, temperature=temperature, seed=7, max_tokens=tokens)
        for prompt in prompts
        for temperature in (0.0, 0.8)
    ]
    whole = EngineEndpoint(
        model="smollm2-135m", name="whole", slots=1, context_tokens=512, batch_tokens=CHUNK
    )
    async with running(whole):
        wanted = [await asked(whole, request) for request in requests]
    server = await anyio.to_thread.run_sync(lambda: LayerStandIn(parts["cloud"]))
    try:
        where = LayerServer(base_url=server.base_url, dtype=Dtype.F32)
        split = SplitEndpoint(
            parts["device"],
            where,
            SplitOptions(chunks=CHUNK, window=window, always=True),
            context_tokens=512,
        )
        attempts = []
        async with running(split):
            assert [await asked(split, request, attempts) for request in requests] == wanted
        return [one.speculation for one in attempts]
    finally:
        await anyio.to_thread.run_sync(server.close)


@pytest.mark.slow
def test_a_few_tokens_with_bad_drafts(parts):
    reports = anyio.run(lambda: compared(parts, PROMPTS[:1], tokens=8, window=2))
    assert sum(one.rejected for one in reports) > 0


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 4])
def test_longer_answers(parts, window):
    anyio.run(lambda: compared(parts, PROMPTS, tokens=48, window=window))
