"""The endpoint contract on a split model: tiny, with drafts, in a host, its middle layers on a real layer server."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from loops import by_turns

from disco.endpoints.host.host_split import HostSplit
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from disco.testing import CHECKS, Check, Subject
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama
from tests.endpoints.split.asking import running
from tests.endpoints.split.conftest import some_adapter
from tests.endpoints.split.layer_stand_in import LayerStandIn

pytestmark = pytest.mark.real

CONTEXT = 4096  # a token is a byte
SELDOM = {
    "an_answer_is_batches_and_an_end_with_exact_usage",
    "it_continues_exactly_where_the_prefix_ends",
    "opening_does_nothing_until_iterated",
    "a_prompts_size_is_what_an_attempt_then_reports",
    "progress_is_reported_to_those_who_want_it",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[LayerStandIn, object]]:
    folder = tmp_path_factory.mktemp("contract")
    whole = tiny_llama(
        folder / "tiny.gguf", layers=6, writes=True, ends=False, quiet_from=2, context_tokens=CONTEXT
    )
    parts = cut_model(whole, 2, folder, adapter=some_adapter())
    server = LayerStandIn(parts["cloud"], context_tokens=CONTEXT)
    server.delay_s = 0.005  # so that there is time to stop it
    yield server, parts["device"]
    server.close()


@pytest.mark.parametrize(("check", "backend"), by_turns(CHECKS, 0, SELDOM))
def test_a_split_model_keeps_the_contract(served, check: Check, backend: str) -> None:
    server, device = served

    async def main() -> None:
        where = LayerServer(base_url=server.base_url, dtype=Dtype.F32)
        endpoint = HostSplit(
            device, where, SplitOptions(window=4, always=True), context_tokens=CONTEXT, slots=3
        )
        with anyio.fail_after(300):
            async with running(endpoint, warm=False) as made:
                await check(Subject(context_tokens=CONTEXT, long_tokens=600), made)

    anyio.run(main, backend=backend)
