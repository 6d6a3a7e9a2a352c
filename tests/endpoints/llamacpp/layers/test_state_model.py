"""Models of a part of the layers: what they refuse, since llama.cpp would abort, or mix up sequences."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import tiny_llama

from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.sequences import Rows

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return cut_model(tiny_llama(folder / "tiny.gguf"), 2, folder)


@pytest.fixture
def cloud(parts):
    model = StateModel(parts["cloud"], "cloud", context_tokens=64, slots=3, most_rows=512)
    yield model
    model.close()


@pytest.fixture
def device(parts):
    model = DeviceModel(
        parts["device"],
        context_tokens=64,
        threads=1,
        batch_tokens=8,
        gpu_layers=0,
        keep_loading=lambda: True,
        slots=2,
    )
    model.forget()
    yield model
    model.close()


STATES = np.random.default_rng(1).normal(0, 1, (16, 64)).astype(np.float32)


def test_sequences_in_one_pass_compute_what_each_computes_alone(cloud):
    alone = [cloud.compute([StateRows(slot, 0, STATES[slot : slot + 5])])[0].copy() for slot in range(3)]
    for slot in range(3):
        cloud.cut(slot, 0)
    together = cloud.compute([StateRows(slot, 0, STATES[slot : slot + 5], slot) for slot in range(3)])
    for slot, found in enumerate(together):
        assert found.shape == (5 - slot, 64)
        assert np.abs(found - alone[slot][slot:]).max() < 1e-5


def test_rows_that_would_be_mixed_up_or_abort_the_process_are_refused(cloud):
    assert cloud.most_rows == 3 * 64
    one = StateRows(1, 0, STATES[:2])
    for wrong in (
        [one, StateRows(0, 0, STATES[:2])],  # not in order
        [one, StateRows(2, 0, STATES[:3])],  # not equally many
        [StateRows(0, 0, STATES[:2]), StateRows(2, 0, STATES[:2])],  # not consecutive
        [one, one],
    ):
        with pytest.raises(ValueError, match="consecutive"):
            cloud.compute(wrong)
    for wrong in (
        [StateRows(0, 0, STATES[:0])],
        [StateRows(3, 0, STATES[:2])],
        [StateRows(-1, 0, STATES[:2])],
        [StateRows(0, 0, np.zeros((193, 64), np.float32))],
    ):
        with pytest.raises(ValueError, match="1 to 192 rows of the sequences 0 to 2"):
            cloud.compute(wrong)


def test_rows_that_nobody_wants_are_computed_and_kept_in_the_cache(cloud):
    whole = cloud.compute([StateRows(0, 0, STATES[:8])])[0].copy()
    assert cloud.compute([StateRows(1, 0, STATES[:6], 6)])[0].shape == (0, 64)
    assert np.abs(cloud.compute([StateRows(1, 6, STATES[6:8])])[0] - whole[6:]).max() < 1e-5


def test_states_of_tokens_without_logits_and_passes_that_nobody_reads(device):
    states = device.compute_states(0, 0, [5, 6, 7], logits_from=3).copy()
    assert states.shape == (3, 64)
    for at in range(60):  # more rows than there is room for, and no `begin`
        device.compute([Rows(1, at, [at])])
    device.cut(0, 0)
    assert np.array_equal(device.compute_states(0, 0, [5, 6, 7]), states)


def test_a_sequence_is_copied(device):
    wanted = device.compute_states(0, 0, [5, 6, 7, 8])[3].copy()
    device.compute_states(1, 0, [9, 9])
    device.copy(0, 1, 3)
    assert np.abs(device.compute_states(1, 3, [8])[0] - wanted).max() < 1e-5
