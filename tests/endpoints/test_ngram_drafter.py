"""Drafts that are copied from the text so far."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.drafter import DraftOrder, NgramDrafter, NgramIndex
from disco.errors import EndpointFailure, FailureKind
from disco.events import Usage

TOKENS = st.integers(0, 3)


def guessed(tokens: list[int], count: int, longest: int, shortest: int) -> tuple[int, ...]:
    """By its definition: the last earlier place at which the longest end of the text occurs, and what follows it."""
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                copy = list(tokens)
                for place in range(end, end + count):
                    copy.append(copy[place])
                return tuple(copy[len(tokens) :])
    return ()


@given(
    st.lists(st.tuples(st.integers(0, 30), st.lists(TOKENS, max_size=12)), max_size=8),
    st.integers(0, 9),
    st.integers(1, 5),
    st.data(),
)
def test_it_finds_the_longest_and_last_place_whatever_was_added_and_removed(steps, count, longest, data):
    index, tokens = NgramIndex(longest), []
    for removed, added in steps:
        tokens = tokens[: max(0, len(tokens) - removed)] + added
        index.keep(min(len(index.tokens), max(0, len(index.tokens) - removed)))
        index.extend(added)
        assert index.tokens == tokens
        shortest = data.draw(st.integers(1, longest))
        assert index.next_tokens(count, shortest) == (
            guessed(tokens, count, longest, shortest) if count else ()
        )


def test_what_is_removed_leaves_nothing_behind():
    index = NgramIndex(4)
    index.extend([1, 2, 3, 1, 2])
    known = [dict(last) for last in index._last], [list(before) for before in index._before]
    index.extend([3, 1, 2, 9])
    index.keep(5)
    assert ([dict(last) for last in index._last], [list(before) for before in index._before]) == known
    with pytest.raises(ValueError, match="6 tokens cannot be kept of 5"):
        index.keep(6)


@pytest.mark.anyio
async def test_a_quotation_is_drafted_to_its_end_and_a_wrong_guess_taken_back():
    prompt = [10, 11, 12, 13, 14, 15, 7, 8]
    async with NgramDrafter().open() as drafting:
        await drafting.read(prompt)
        assert (await drafting.draft(DraftOrder(0, 0, (), 4))).ids == ()
        assert (await drafting.draft(DraftOrder(1, 0, (10, 11), 3))).ids == (12, 13, 14)
        # In parallel: it goes on behind its own guess.
        assert (await drafting.draft(DraftOrder(2, 5, (), 2))).ids == (15, 7)
        # One of three was right.
        assert (await drafting.draft(DraftOrder(3, 3, (7,), 2))).ids == (8, 10)
        assert (drafting.usage, drafting.busy) == (Usage(), False)
        with pytest.raises(EndpointFailure) as caught:
            await drafting.draft(DraftOrder(4, 7, (), 1))
        assert caught.value.kind is FailureKind.BAD_REQUEST


@pytest.mark.anyio
async def test_too_short_a_match_drafts_nothing():
    drafter = NgramDrafter(longest=3, shortest=2, name="copies")
    assert (drafter.name, drafter.vocabulary, drafter.ready) == ("copies", None, True)
    async with drafter.open(seed=3, sampling={"temperature": 0}) as drafting:
        await drafting.read([1, 2, 3, 4, 1])
        assert (await drafting.draft(DraftOrder(0, 0, (), 4))).ids == ()
        assert (await drafting.draft(DraftOrder(1, 0, (2,), 4))).ids == (3, 4, 1, 2)
    with pytest.raises(ValueError, match="shortest"):
        NgramDrafter(longest=1, shortest=2)
