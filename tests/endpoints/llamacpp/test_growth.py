"""A model begins with a small context and makes a larger one when an answer needs it: the numbers stay the same."""

from __future__ import annotations

import numpy as np
import pytest

from disco.endpoints.context_size import ContextSize, first_tokens
from disco.endpoints.gguf_header import read_header
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.errors import LocalModelError
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("grown") / "tiny.gguf", context_tokens=8192)


def test_a_model_whose_rotations_depend_on_its_context_has_all_of_it_from_the_start(file, tmp_path):
    most = ContextSize(8192, 4)
    assert first_tokens(read_header(file), most) == 1024
    more = {"llama.rope.scaling.original_context_length": 4096}
    scaled = tiny_llama(tmp_path / "scaled.gguf", context_tokens=8192, more=more)
    assert first_tokens(read_header(scaled), most) == 8192


def opened(file, **more):
    sizes = {"context_tokens": 8192, "slots": 4, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
    return SequenceModel(file, **(sizes | more), keep_loading=lambda: True)


def texts(model, lengths):
    """Tokens of each sequence."""
    rng = np.random.default_rng(5)
    return [rng.integers(3, model.vocabulary_tokens, length).tolist() for length in lengths]


def written(model, lengths):
    """Read by turns what each sequence has, batch after batch; return all logits."""
    found, asked = [], texts(model, lengths)
    for at in range(0, max(lengths), 64):
        for slot, ids in enumerate(asked):
            if batch := ids[at : at + 64]:
                (place,) = model.compute([Rows(slot, at, batch)])
                found.append(np.stack([model.logits(place + one) for one in range(len(batch))]))
    return np.concatenate(found)


@pytest.mark.real
def test_answers_that_outgrow_the_context_have_the_numbers_that_they_have_in_a_large_one(file):
    lengths = (2300, 40, 700, 4500)
    grown, large = opened(file), opened(file)
    try:
        large.make_room(8192)
        assert np.array_equal(written(grown, lengths), written(large, lengths))
        assert [grown.sequence_tokens(slot) for slot in range(4)] == list(lengths)
        many = [Rows(slot, length, [5]) for slot, length in enumerate(lengths)]
        places = grown.compute(many), large.compute(many)
        for one, other in zip(*places, strict=True):
            assert np.array_equal(grown.logits(one), large.logits(other))
    finally:
        grown.close()
        large.close()


@pytest.mark.real
def test_a_state_that_is_put_back_makes_its_room_and_leaves_the_newest_logits(file):
    model = opened(file)
    try:
        (ids,) = texts(model, (3000,))
        for at in range(0, len(ids), 64):
            model.compute([Rows(0, at, ids[at : at + 64], 0)])
        state = model.sequence_state(0, len(ids))
        model.close()
        model = opened(file)
        model.compute([Rows(0, 0, ids[:10])])
        newest = model.logits(9).copy()
        model.put_sequence_state(2, bytearray(state), len(ids))
        assert np.array_equal(model.logits(9), newest)
        assert [model.sequence_tokens(slot) for slot in range(4)] == [10, 0, 3000, 0]
        model.put_sequence_state(3, bytearray(state)[:-1], len(ids))  # refused
        assert model.sequence_tokens(3) == 0
        model.compute([Rows(2, 3000, [5])])
        assert not np.array_equal(model.logits(0), newest)
    finally:
        model.close()


@pytest.mark.real
def test_where_there_is_no_memory_for_a_larger_context_the_error_says_what_needs_less(file, monkeypatch):
    model = opened(file)
    try:
        model.compute([Rows(0, 0, [5, 6])])
        monkeypatch.setattr(model._lib, "llama_init_from_model", lambda *_: None)
        with pytest.raises(
            LocalModelError, match=r"8,192 tokens for each of 4 answers.*smaller context_tokens"
        ):
            model.make_room(5000)
        assert model.sequence_tokens(0) == 2
    finally:
        model.close()


@pytest.mark.real
def test_where_a_cache_cannot_be_moved_all_is_as_it_was_and_nothing_leaks(file, monkeypatch):
    model = opened(file)
    freed = []

    def none_left(_sequence):
        raise MemoryError

    try:
        model.compute([Rows(0, 0, [5, 6])])
        free = model._lib.llama_free
        with monkeypatch.context() as patch:
            patch.setattr(model._lib, "llama_free", lambda context: (freed.append(context), free(context)))
            patch.setattr(model, "_state", none_left)
            with pytest.raises(
                LocalModelError, match=r"could not move a cache of 2 tokens.*smaller context_tokens"
            ):
                model.make_room(5000)
        assert len(freed) == 1
        model.make_room(5000)
        assert model.sequence_tokens(0) == 2
    finally:
        model.close()


@pytest.mark.real
@pytest.mark.parametrize("tokens", [1, 17, 31])
def test_a_context_that_is_shorter_than_a_batch_does_not_end_the_process(file, tokens):
    model = opened(file, context_tokens=tokens, slots=1)
    try:
        model.compute([Rows(0, 0, [5] * 32)])  # as the engine measures
    finally:
        model.close()
