"""The inversion attack: it finds tokens, and only those that give the states."""

from __future__ import annotations

import numpy as np
import pytest

from disco.endpoints.llamacpp.layers.candidate_model import CandidateModel
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.inversion import Inverter, telling_directions
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama

IDS = [5, 9, 9, 40, 2, 80, 33, 95, 7, 12, 61, 5]


@pytest.fixture(scope="module")
def device_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return cut_model(tiny_llama(folder / "tiny.gguf"), 2, folder)["device"]


def states_of(device_file, ids):
    model = DeviceModel(
        device_file, context_tokens=64, threads=1, batch_tokens=32, gpu_layers=0, keep_loading=lambda: True
    )
    model.forget()
    try:
        return model.compute_states(0, 0, ids).astype(np.float16)
    finally:
        model.close()


@pytest.mark.real
def test_every_token_is_found_and_progress_is_told(device_file):
    learned, found = [], []
    inverter = Inverter(
        device_file, context_tokens=64, threads=1, progress=lambda *so_far: learned.append(so_far)
    )
    states = states_of(device_file, IDS)
    for _ in range(2):  # nothing is left of a sequence before
        recovered = inverter.recover(states, lambda *so_far: found.append(so_far))
        assert recovered.ids == IDS
    inverter.close()
    assert learned[-1][0] == learned[-1][1] == 3 * 96 + 96
    assert found[-1] == (len(IDS), len(IDS))
    assert len(recovered.first) == len(IDS) <= recovered.tried
    assert str(IDS[3]) not in repr(recovered)  # what was read is not told by accident


@pytest.mark.real
def test_states_of_no_token_end_with_the_best_one(device_file):
    """All of the vocabulary is tried, once each, and the attack goes on."""
    inverter = Inverter(device_file, context_tokens=64, threads=1)
    recovered = inverter.recover(np.full((2, 64), 50.0, np.float16))
    inverter.close()
    assert recovered.tried == 2 * 96
    assert all(0 <= token < 96 for token in recovered.ids)


@pytest.mark.real
def test_a_candidates_state_is_what_the_device_computes_for_it(device_file):
    model = CandidateModel(device_file, context_tokens=64, threads=1)
    for token in IDS[:-1]:
        model.append(token)
    found = model.states([*range(20), IDS[-1]]).copy()
    again = model.states([IDS[-1]])
    wanted = states_of(device_file, IDS)[-1]
    assert np.abs(found[-1] - wanted).max() < 0.01 < np.abs(found[:5] - wanted).max(1).min()
    assert np.abs(again[0] - wanted).max() < 0.01
    model.close()


def test_directions_tell_tokens_apart_and_not_prefixes():
    random = np.random.default_rng(3)
    tokens, noise = random.normal(0, 1, (400, 12)), random.normal(0, 1, (3, 400, 12))
    tokens[:, 6:] *= 0.1
    noise[..., :6] *= 0.1
    directions = telling_directions(tokens + noise, 6)
    assert directions.shape == (12, 6)
    assert np.abs(directions[6:]).max() < 0.2 * np.abs(directions[:6]).max()
    along = (noise - noise.mean(0)) @ directions
    assert np.allclose((along**2).sum((0, 1)) / (400 * 2), 1, atol=0.1)
