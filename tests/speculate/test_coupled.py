"""Keyed sampling: a sample from the softmax, the same in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.speculate.coupled import SEEDS, choose, gumbel_noise

TOKENS = np.array([7, 0, 151_935, 42, 3, 100, 2**31 - 1, 9])
SCORES = np.array([2.0, 1.5, 1.0, 0.0, -1.0, 0.5, 0.7, -np.inf])
DRAWS = 4000


def shares() -> np.ndarray:
    weights = np.exp(SCORES - SCORES.max())
    return weights / weights.sum()


def chi_squared_limit(freedom: int, deviations: float = 4.0) -> float:
    """Return the value that chi-squared exceeds as seldom as a normal exceeds so many deviations (Wilson-Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + deviations * spread**0.5) ** 3


def assert_fits(counts: np.ndarray, expected: np.ndarray) -> None:
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < chi_squared_limit(int(possible.sum()) - 1)


def counted(chosen: list[int]) -> np.ndarray:
    counts = Counter(chosen)
    return np.array([counts[int(token)] for token in TOKENS])


@pytest.mark.parametrize("position", [0, 1, 131_071])
def test_over_seeds_the_choice_is_a_sample_of_the_softmax(position):
    chosen = [choose(seed, position, TOKENS, SCORES) for seed in range(DRAWS)]
    assert_fits(counted(chosen), shares() * DRAWS)


@pytest.mark.parametrize("seed", [0, 1, 2**63, SEEDS - 1])
def test_over_positions_of_one_seed_too(seed):
    chosen = [choose(seed, position, TOKENS, SCORES) for position in range(DRAWS)]
    assert_fits(counted(chosen), shares() * DRAWS)


@pytest.mark.parametrize(("first", "second"), [((5, 0), (5, 1)), ((5, 0), (6, 0)), ((5, 1), (6, 0))])
def test_choices_at_different_places_are_independent(first, second):
    """Of pairs of positions of one seed, of seeds at one position, and of both; all pairs of tokens are counted."""
    place = {int(token): number for number, token in enumerate(TOKENS)}
    pairs = np.zeros((len(TOKENS), len(TOKENS)))
    for draw in range(DRAWS):
        one = choose(first[0] + 2 * draw, first[1] + 2 * draw, TOKENS, SCORES)
        other = choose(second[0] + 2 * draw, second[1] + 2 * draw, TOKENS, SCORES)
        pairs[place[one], place[other]] += 1
    assert_fits(pairs.ravel(), np.outer(shares(), shares()).ravel() * DRAWS)


def test_noise_of_neighbours_is_standard_gumbel_and_uncorrelated():
    tokens = np.arange(200)
    noise = np.array([gumbel_noise(11, position, tokens) for position in range(200)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.05)
    along = np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]
    across = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert max(abs(along), abs(across)) < 0.02
    assert len(np.unique(noise)) == noise.size


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.lists(st.integers(0, 2**31 - 1), min_size=1))
def test_noise_is_finite_for_extreme_numbers_and_depends_on_nothing_else(seed, position, tokens):
    ids = np.array(tokens)
    noise = gumbel_noise(seed, position, ids)
    assert np.isfinite(noise).all()
    assert (noise == gumbel_noise(seed + SEEDS, position, ids)).all()
    assert (noise[::-1] == gumbel_noise(seed, position, ids[::-1].astype(np.int32))).all()
    assert noise[0] == gumbel_noise(seed, position, ids[:1])[0]


@given(st.integers(0, 2**64), st.permutations(range(8)))
def test_the_order_of_the_candidates_and_a_constant_do_not_matter(seed, order):
    chosen = choose(seed, 3, TOKENS, SCORES)
    assert choose(seed, 3, TOKENS[order], SCORES[order]) == chosen
    assert choose(seed, 3, TOKENS, SCORES - 4) == chosen
    assert choose(seed, 3, TOKENS, SCORES.astype(np.float32)) == chosen


def test_a_fresh_process_has_the_same_noise():
    """And so does every later version: these numbers must never change, or an answer's two sides would differ."""
    code = (
        "import json, numpy as np; from disco.speculate.coupled import gumbel_noise as g;"
        "print(json.dumps([g(s, p, np.array([0, 1, 151935])).tolist() for s, p in ((0, 0), (-1, 5), (2**64 + 3, 9))]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    here = [
        gumbel_noise(s, p, np.array([0, 1, 151_935])).tolist() for s, p in ((0, 0), (-1, 5), (2**64 + 3, 9))
    ]
    assert json.loads(out) == here
    assert here[0] == pytest.approx(
        [-0.08116903215863956, -0.2719792283174783, -0.10685928119504207], rel=1e-12
    )
