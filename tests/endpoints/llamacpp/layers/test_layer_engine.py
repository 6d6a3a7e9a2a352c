"""The thread of the cloud's layers, with real ones: overflow, failure, and the end."""

from __future__ import annotations

import anyio
import numpy as np
import pytest
from tiny_model import tiny_llama

from disco import ConfigurationError
from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.layer_engine import LayerEngine
from disco.endpoints.llamacpp.layers.state_model import StateModel
from disco.errors import LocalModelError, ModelFileError
from disco.speculate.layer_facts import Code

pytestmark = pytest.mark.real
ROWS = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def cut_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return cut_model(tiny_llama(folder / "tiny.gguf"), 2, folder)


def with_engine(path, use, **options):
    async def main():
        engine = LayerEngine(path, **{"slots": 2, "context_tokens": 64, **options})
        try:
            with anyio.fail_after(60):
                await use(engine)
        finally:
            await engine.aclose()

    anyio.run(main)


async def asked(connection, *chunks):
    for one in chunks:
        connection.ask(one)
    outcomes = []
    while len(outcomes) < len(chunks):
        outcomes += await connection.take()
    return outcomes


def test_numbers_that_overflow_in_a_layer_are_refused_and_stay_with_their_sender(tmp_path):
    """float16 matrices overflow at 65,504 on the way, whatever the rows; nobody gets the NaN of another's cache."""
    cloud = cut_model(tiny_llama(tmp_path / "wild.gguf", scale=1e15), 2, tmp_path)["cloud"]

    async def use(engine):
        connection = engine.connect("a" * 32)
        (refused,) = await asked(connection, Chunk(0, 0, ROWS, 0))
        assert refused.code is Code.NOT_FINITE
        connection.close()

    with_engine(cloud, use, slots=1)


def test_overwriting_all_caches_leaves_the_model_as_new(cut_files):
    async def use(engine):
        connection = engine.connect("a" * 32)
        (first,) = await asked(connection, Chunk(0, 0, ROWS, 6))
        engine._model.forget()
        engine._thread.scheduler.slots.all[0].have = 0
        (again,) = await asked(connection, Chunk(0, 0, ROWS, 6))
        assert np.array_equal(first.chunk.out, again.chunk.out)
        connection.close()

    with_engine(cut_files["cloud"], use)


def test_a_failed_pass_is_told_to_all_and_the_next_connection_loads_again(cut_files, monkeypatch):
    compute = StateModel.compute

    async def use(engine):
        await engine.warm_up()
        broken = {"left": 1}

        def failing(self, parts):
            if broken["left"]:
                broken["left"] = 0
                raise LocalModelError("llama.cpp failed in secret.gguf")
            return compute(self, parts)

        monkeypatch.setattr(StateModel, "compute", failing)
        one, other = engine.connect("a" * 32), engine.connect("b" * 32)
        one.ask(Chunk(0, 0, ROWS, 1))
        outcomes = await one.take()
        while more := await one.take():
            outcomes += more
        assert [(o.code, o.chunk is None) for o in outcomes] == [(Code.FAILED, False), (Code.FAILED, True)]
        assert all("secret" not in o.text for o in outcomes)
        assert [o.code for o in await other.take()] == [Code.FAILED]
        again = engine.connect("a" * 32)
        (done,) = await asked(again, Chunk(0, 0, ROWS, 1))
        assert isinstance(done, Computed)
        assert engine.passes == 1
        again.close()

    with_engine(cut_files["cloud"], use)


def test_its_end_is_the_end_of_all_connections(cut_files):
    async def use(engine):
        await engine.warm_up()
        early = engine.connect("a" * 32)
        await asked(early, Chunk(0, 0, ROWS, 1))
        await engine.aclose()
        late = engine.connect("b" * 32)
        for connection in (early, late):
            assert [one.code for one in await connection.take()] == [Code.FAILED]
            assert await connection.take() == []
            connection.close()
        with pytest.raises(LocalModelError, match="closed"):
            await engine.warm_up()

    with_engine(cut_files["cloud"], use)


def test_what_it_cannot_be_made_from_is_said_at_once(cut_files):
    with pytest.raises(ModelFileError, match="part 'device'"):
        LayerEngine(cut_files["device"])
    for option, value in (
        ("slots", 0),
        ("slots", 257),
        ("context_tokens", 31),
        ("threads", 0),
        ("most_rows", 0),
    ):
        with pytest.raises(ConfigurationError, match=f"{option} must be at"):
            LayerEngine(cut_files["cloud"], **{option: value})
