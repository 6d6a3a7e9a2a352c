"""Mutated streams: an end, an error of the SDK's, no text lost, whatever a server sends. `wall/fuzz.py` says how."""

from __future__ import annotations

import pytest
from wall.fuzz import fuzzed, growth
from wall.mutations import mutated

MEGABYTE = 2**20


def test_no_mutated_stream_breaks_anything() -> None:
    assert fuzzed(range(2_000)) == []


@pytest.mark.slow
def test_nor_do_100_000_and_nothing_grows() -> None:
    found, grown = growth(100_000, after=10_000)
    assert found == []
    assert grown < MEGABYTE


def test_a_seed_makes_one_stream() -> None:
    assert [mutated(seed) for seed in range(200)] == [mutated(seed) for seed in range(200)]
