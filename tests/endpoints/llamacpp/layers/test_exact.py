"""The real model, cut: with float32 states the whole model's logits bit for bit; with fp16 within its chunks' noise."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.requantised import requantised
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel

pytestmark = pytest.mark.real

TEXT = (
    "The lighthouse keeper had written the same sentence in his book for eleven years: nothing to report. On the night "
    "of the storm he wrote it again, and then, after a while, he crossed it out and began to tell what he had seen."
)
SIZES = {"context_tokens": 512, "threads": 1}


def in_pieces(count, chunk):
    return list(pairwise([*range(0, count, chunk), count]))


def logits_of_whole(source, ids, chunks):
    model = SequenceModel(source, **SIZES, batch_tokens=256, gpu_layers=0, keep_loading=lambda: True)
    found = []
    for chunk in chunks:
        model.cut(0, 0)
        rows = []
        for begin, end in in_pieces(len(ids), chunk):
            model.compute([Rows(0, begin, ids[begin:end])])
            rows += [model.logits(place).copy() for place in range(end - begin)]
        found.append(np.array(rows))
    model.close()
    return found


def logits_of_parts(files, ids, chunks, wire):
    device = DeviceModel(files["device"], **SIZES, batch_tokens=256, gpu_layers=0, keep_loading=lambda: True)
    cloud = StateModel(files["cloud"], "cloud", most_rows=256, **SIZES)
    head = StateModel(files["head"], "head", most_rows=256, **SIZES)
    found = []
    for chunk in chunks:
        device.cut(0, 0)
        cloud.cut(0, 0)
        rows = []
        for begin, end in in_pieces(len(ids), chunk):
            up = device.compute_states(0, begin, ids[begin:end], logits_from=end - begin).astype(wire)
            down = cloud.compute([StateRows(0, begin, up)])[0].astype(wire)
            head.cut(0, 0)
            rows.append(head.compute([StateRows(0, 0, down)])[0].copy())
        found.append(np.concatenate(rows))
    for model in (device, cloud, head):
        model.close()
    return found


def tokens_of(source, text):
    model = SequenceModel(source, **SIZES, batch_tokens=32, gpu_layers=0, keep_loading=lambda: True)
    ids = model.tokenize(text, special=False)
    model.close()
    return ids


@pytest.mark.slow  # tests/endpoints/split/test_real_split.py compares answers in every run
def test_the_real_model_cut_behind_two_layers(tmp_path):
    source = resolve_model("smollm2-135m")
    ids = tokens_of(source, TEXT)[:32]
    chunks = [len(ids), 5]
    expected = logits_of_whole(source, ids, chunks)
    found = logits_of_parts(cut_model(source, 2, tmp_path), ids, chunks, np.float32)
    for whole, parts in zip(expected, found, strict=True):
        assert np.array_equal(whole, parts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_quantisations_layers_and_chunks(kind, layers, tmp_path):
    """fp16 on the wire may change a logit, but hardly more than the whole model's own chunks do (with Q8_0), or 0.1."""
    source = requantised(resolve_model("smollm2-135m"), kind, tmp_path)
    ids = tokens_of(source, TEXT * 3)
    chunks = [len(ids), 64, 16, 1]
    expected = logits_of_whole(source, ids, chunks)
    files = cut_model(source, layers, tmp_path)
    for whole, parts in zip(expected, logits_of_parts(files, ids, chunks, np.float32), strict=True):
        assert np.array_equal(whole, parts)
    noise = max(np.abs(expected[0] - other).max() for other in expected[1:])
    halved = [
        (np.abs(whole - parts).max(), (whole.argmax(1) == parts.argmax(1)).mean())
        for whole, parts in zip(expected, logits_of_parts(files, ids, chunks, np.float16), strict=True)
    ]
    assert max(delta for delta, _ in halved) <= max(0.1, 3 * noise)
    assert min(same for _, same in halved) >= 0.9
