"""A tiny model that writes, whole and cut in two, with a layer server for its middle."""

import dataclasses

import numpy as np
import pytest

from disco.endpoints.llamacpp.layers.cut import cut_model
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama
from tests.endpoints.split.layer_stand_in import LayerStandIn


@dataclasses.dataclass(frozen=True)
class Cut:
    """Files. `device` has an adapter of random weights; its drafts are often right, and often wrong."""

    whole: object
    device: object
    undrafted: object
    cloud: object
    head: object


def some_adapter(hidden=64, seed=3):
    """A layer that attends to what came before, and changes a little."""
    rng = np.random.default_rng(seed)
    shapes = {"q": hidden, "k": hidden // 2, "v": hidden // 2, "output": hidden}
    found = {f"attn_{one}.weight": rng.normal(0, 0.1, (rows, hidden)) for one, rows in shapes.items()}
    found["attn_norm.weight"] = np.ones(hidden)
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    whole = tiny_llama(folder / "tiny.gguf", layers=6, writes=True, quiet_from=2, context_tokens=1024)
    parts = cut_model(whole, 2, folder)
    trained = folder / "trained"
    trained.mkdir()
    device = cut_model(whole, 2, trained, adapter=some_adapter())["device"]
    return Cut(whole, device, parts["device"], parts["cloud"], parts["head"])


@pytest.fixture
def stand_in(tiny):
    made = LayerStandIn(tiny.cloud)
    yield made
    made.close()
