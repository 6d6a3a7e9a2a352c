"""The built-in prompts, and the answers' file."""

from __future__ import annotations

import itertools
import re

import numpy as np

from disco.adapter.answers import TOP, Answer, answer_tokens, load_answers, save_answers
from disco.adapter.prompts import held_out_prompts, training_prompts


def test_prompts_that_measure_are_not_among_those_that_teach():
    held_out = held_out_prompts()
    taught = list(itertools.islice(training_prompts(1), 6571))
    assert len(set(taught)) == 6571
    assert len(set(held_out)) == len(held_out) == 64
    assert not set(held_out) & set(taught)
    assert not any(re.search(r"[{}]", prompt) or not prompt.strip() for prompt in taught + held_out)


def test_prompts_come_in_an_order_of_their_own_without_end():
    first, again, other = (list(itertools.islice(training_prompts(seed), 7000)) for seed in (1, 1, 2))
    assert first == again != other
    assert set(first[6571:]) <= set(first[:6571])


def answer(tokens: int, prompt_tokens: int, temperature: float, seed: int) -> Answer:
    rng = np.random.default_rng(seed)
    written = tokens - prompt_tokens
    return Answer(
        ids=rng.integers(0, 90, tokens).astype(np.int32),
        prompt_tokens=prompt_tokens,
        temperature=temperature,
        shallow=rng.normal(size=(tokens - 1, 8)).astype(np.float16),
        final=rng.normal(size=(written, 8)).astype(np.float16),
        top_ids=rng.integers(0, 90, (written, TOP)).astype(np.int32),
        top_shares=rng.random((written, TOP)).astype(np.float16),
    )


def test_answers_come_back_from_their_file_as_they_were(tmp_path):
    answers = [answer(9, 4, 0.0, 1), answer(5, 4, 0.8, 2), answer(20, 1, 1.0, 3)]
    save_answers(tmp_path / "a.npz", answers)
    found = load_answers(tmp_path / "a.npz")
    assert len(found) == 3
    assert answer_tokens(found) == 5 + 1 + 19
    for one, other in zip(answers, found, strict=True):
        assert (one.prompt_tokens, one.temperature) == (other.prompt_tokens, other.temperature)
        for name in ("ids", "shallow", "final", "top_ids", "top_shares"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
