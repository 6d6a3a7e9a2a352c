"""How a prompt is divided into batches, and when a short one is filled up."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.llamacpp.model.batch_costs import BatchCosts
from disco.endpoints.llamacpp.output.text_scoring import TextScoring

BATCH = 64


class Model:
    """Notes the places at which batches begin and end; the costs are those of a model that hates short batches."""

    batch_tokens = BATCH
    ready, took_s = True, 0.0

    def __init__(self, cached: int, *, hates: bool = False) -> None:
        self.batch_costs = BatchCosts(BATCH)
        for depth in (0, *(2**power for power in range(11))) if hates else ():
            self.batch_costs.took(BATCH, depth, 0.1)
            self.batch_costs.took(8, depth, 0.5)
        self.batches: list[tuple[int, int]] = []
        self._cached = cached

    def prepare(self, ids: list[int]) -> None:
        pass

    def reuse(self, ids: list[int]) -> int:
        self._cached = min(self._cached, len(ids) - 1)
        return self._cached

    def keep(self, length: int) -> int:
        self._cached = length
        return length

    def decode(self, ids: list[int], *, logits_from: int | None = None) -> None:
        assert ids == list(range(self._cached, self._cached + len(ids)))
        self.batches.append((self._cached, self._cached + len(ids)))
        self._cached += len(ids)


class Mail:
    abandoned = False

    def put(self, item: object) -> None:
        pass

    def close(self) -> None:
        pass


def batches(
    tokens: int, cached: int, *, fills_up: bool = False, hates: bool = False
) -> list[tuple[int, int]]:
    model = Model(cached, hates=hates)
    job = TextScoring(Mail(), [], [], renderer=lambda: None, name="m")
    assert not list(
        job._prefill(model, list(range(tokens)), fills_up=fills_up)
    )  # it gives up control nowhere
    return model.batches


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_batches_end_at_the_same_places_with_any_cache(tokens, cached):
    found, cold = batches(tokens, cached), batches(tokens, 0)
    assert found[0][0] == min(cached, tokens - 1)
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    assert [end for _, end in found] == [end for _, end in cold][len(cold) - len(found) :]


@given(st.integers(1, 1000), st.integers(0, 1000))
def test_the_short_batch_comes_first_where_the_numbers_may_differ(tokens, cached):
    found = batches(tokens, cached, fills_up=True)
    assert found[0][0] == min(cached, tokens - 1)
    assert found[-1][1] == tokens
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    assert all(end - start == BATCH for start, end in found[1:])


@given(st.integers(BATCH, 1000), st.integers(1, 1000))
def test_a_short_batch_is_filled_up_where_that_is_faster_and_there_is_enough_to_read_again(tokens, cached):
    found = batches(tokens, cached, fills_up=True, hates=True)
    assert found[-1][1] == tokens
    short = (tokens - min(cached, tokens - 1)) % BATCH
    enough = min(cached, tokens - 1) + short >= BATCH
    if short >= 8 and enough:
        assert all(end - start == BATCH for start, end in found)


@pytest.mark.parametrize(("short_s", "fills_up"), [(0.2, True), (0.02, False)])
def test_what_was_measured_of_smaller_batches_and_depths_stands_for_others(short_s, fills_up):
    costs = BatchCosts(BATCH)
    assert not costs.fills_up(40, 1500)
    costs.took(BATCH, 1000, 0.1)
    assert not costs.fills_up(40, 1500)
    costs.took(10, 700, short_s)
    assert costs.fills_up(40, 1500) is fills_up
    assert not costs.fills_up(9, 300)  # no full batch was measured there
    for _ in range(20):
        costs.took(40, 1500, 0.05)  # what is known of this very size counts more
    assert not costs.fills_up(40, 1500)
