"""Choices with keyed noise: which candidates may be left out, and that nothing but seed, place and logits counts."""

from __future__ import annotations

from collections import deque
from itertools import repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.model import sampler as sampler_module
from disco.endpoints.llamacpp.model.candidates import preselected
from disco.endpoints.llamacpp.model.sampler import Keyed, Sampler
from disco.endpoints.llamacpp.request_params import Sampling
from disco.errors import EndpointFailure, FailureKind
from disco.speculate import coupled

SIZE = 3000


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.lists(st.integers(0, SIZE - 1), max_size=20, unique=True),
    st.booleans(),
    st.booleans(),
)
def test_whatever_becomes_of_the_changed_tokens_the_highest_are_among_those_kept(
    seed, count, changed, ties, some
):
    random = np.random.default_rng(seed)
    ids = np.flatnonzero(random.random(SIZE) < 0.7) if some else np.arange(SIZE)
    logits = random.normal(0, 2, len(ids)).astype(np.float32)
    logits = np.round(logits) if ties else logits
    places = preselected(logits, ids if some else None, count, set(changed))
    assert places is not None
    assert (np.diff(places) > 0).all()
    if not ties:
        assert len(places) < 6 * (count + len(changed)) + 20  # it would be of no use otherwise
    for change in (-50, 0, 50):
        after = logits + np.where(np.isin(ids, changed), change, 0)
        bound = np.sort(after)[-count]
        assert set(np.flatnonzero(after >= bound)) - set(np.flatnonzero(after == bound)) <= set(places)
        left = after[places]
        assert (np.sort(left)[-count:] == np.sort(after)[-count:]).all()


def test_few_tokens_are_all_kept():
    assert preselected(np.zeros(1000, np.float32), None, 40) is None
    assert preselected(np.zeros(SIZE, np.float32), None, 600) is None


@pytest.mark.real
def test_a_choice_is_that_of_the_whole_chain_and_of_nothing_else(thread_model, monkeypatch):
    model = thread_model.engine.model
    random = np.random.default_rng(5)
    logits = random.normal(0, 1, model.vocabulary_tokens).astype(np.float32)
    monkeypatch.setattr(type(model), "logits", lambda _self, _place=-1: logits)
    biases = tuple(
        (int(token), bias) for token, bias in zip(np.argsort(-logits)[:3], (-100, -2, 1), strict=True)
    )
    for params in (
        {"temperature": 0},
        {"temperature": 0, "repeat_penalty": 1.3},
        {},
        {"top_k": 5, "temperature": 2.0},
        {"top_k": 0, "top_p": 0.9, "min_p": 0.0},
        {"frequency_penalty": 0.8, "presence_penalty": -0.5, "logit_bias": biases, "temperature": 1.5},
    ):
        sampling = Sampling(**params)
        written = [int(token) for token in np.argsort(-logits)[:4]]

        def sample(seed, position, sampling=sampling, written=written, grammar=None, **more):
            with Sampler(model, sampling, written, keyed=Keyed(seed, **more)) as sampler:
                if grammar is not None:
                    sampler.constrain(grammar)
                return sampler.sample(position)

        few = {sample(seed, 7) for seed in range(20)}
        assert len(few) == 1 if sampling.temperature <= 0 else len(few) > 1
        chosen = [sample(seed, 7) for seed in range(8)]
        assert chosen == [sample(seed, 7) for seed in range(8)]
        with monkeypatch.context() as patch:
            patch.setattr(sampler_module, "preselected", lambda *_: None)
            assert chosen == [sample(seed, 7) for seed in range(8)]
        if sampling.temperature <= 0:
            with Sampler(model, sampling, written, keyed=Keyed(0)) as plain:  # llama.cpp's own choice
                scored = plain._candidates.apply(plain._chain, np.arange(model.vocabulary_tokens), logits)
            assert chosen == [*repeat(int(scored[0][scored[2]]), 8)]
        letters = sample(3, 7, grammar='start: "xy" | "z"')
        assert model.piece(letters) in (b"x", b"xy", b"z")


@pytest.mark.real
def test_what_is_left_by_the_chain_is_chosen_from_by_the_noise(thread_model, monkeypatch):
    model = thread_model.engine.model
    logits = np.random.default_rng(6).normal(0, 1, model.vocabulary_tokens).astype(np.float32)
    monkeypatch.setattr(type(model), "logits", lambda _self, _place=-1: logits)
    sampling = Sampling(temperature=0.7, top_k=12, top_p=1.0, min_p=0.0)
    best = np.argsort(-logits)[:12]
    with Sampler(model, sampling, [], keyed=Keyed(9)) as sampler:
        for position in range(50):
            expected = coupled.choose(9, position, best, logits[best] / 0.7)
            assert sampler.sample(position) == expected


@pytest.mark.real
def test_forced_tokens_are_followed_and_refused_where_the_grammar_forbids_them(thread_model):
    model = thread_model.engine.model
    x, z = (model.tokenize(text, special=False)[0] for text in "xz")
    keyed = Keyed(1, deque([x, x]))
    with Sampler(model, Sampling(), [], keyed=keyed) as sampler:
        sampler.constrain('start: "xz"')
        assert (sampler.sample(0), keyed.chosen, list(keyed.forced)) == (x, [x], [x])
        with pytest.raises(EndpointFailure) as caught:
            sampler.sample(0)
        assert caught.value.kind is FailureKind.BAD_REQUEST
    with Sampler(
        model, Sampling(temperature=0, repeat_penalty=1.1), [], keyed=Keyed(1, deque([z]))
    ) as sampler:
        assert sampler.most_probable([x]) == z
