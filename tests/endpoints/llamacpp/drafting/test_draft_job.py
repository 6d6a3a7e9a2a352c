"""The job that drafts, with a model that only counts: what it computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.drafter import DraftOrder
from disco.endpoints.llamacpp.drafting.draft_job import DraftJob
from disco.endpoints.llamacpp.drafting.short_reads import ShortReads
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.request_params import Sampling
from disco.errors import EndpointFailure, FailureKind
from disco.events import Parked, Usage
from tests.endpoints.llamacpp.drafting.counting_model import (
    CONTEXT,
    END,
    PROMPT,
    VOCABULARY,
    Model,
    Sampler,
    written,
)

pytestmark = pytest.mark.usefixtures("counting")


class Mail:
    abandoned = False

    def __init__(self):
        self.items = []

    def put(self, item):
        self.items.append(item)

    def close(self):
        pass


def begun(model=None, prompt=PROMPT):
    job, model = DraftJob(Mail(), prompt, Sampling(), seed=1, name="m"), model or Model()
    assert job.run(model) is False
    assert job.mail.items.pop() == Parked(Usage(len(prompt)), ())
    return job, model


def drafts(job, model, *order, **more):
    job.give(DraftOrder(*order, **more))
    assert job.run(model) is False
    return job.mail.items.pop()


def test_a_round_computes_only_what_the_cache_lacks():
    job, model = begun()
    assert model.computed == [8, 2]
    first = drafts(job, model, 0, 0, (), 4)
    assert first.ids == written(PROMPT, 4)
    assert (sum(model.computed), first.read_tokens) == (10 + 3, 0)  # the last drafted token is not computed
    # Going on costs what drafting eight at once would have cost.
    second = drafts(job, model, 1, 4, (), 4)
    assert (first.ids + second.ids, sum(model.computed)) == (written(PROMPT, 8), 10 + 7)
    # All eight were right: the eighth and the one behind it are read.
    answer = [*first.ids, *second.ids, 7]
    third = drafts(job, model, 2, 8, (7,), 2)
    assert third.ids == written(PROMPT + answer, 2)
    assert (sum(model.computed), third.read_tokens) == (10 + 7 + 2 + 1, 1)
    # The first was right, and the second not.
    answer = [*answer, third.ids[0], 8]
    fourth = drafts(job, model, 3, 10, (8,), 2)
    assert fourth.ids == written(PROMPT + answer, 2)
    assert (sum(model.computed), fourth.read_tokens) == (20 + 2, 0)
    assert job.usage == Usage(10 + 1, 12)
    # Tokens are read, and nothing is drafted.
    fifth = drafts(job, model, 4, 11, (9, 9), 0)
    assert (fifth.ids, fifth.read_tokens, model.cached) == ((), 2, PROMPT + answer + [9, 9])
    assert drafts(job, model, 5, 13, (), 1).ids == written(model.cached, 1)
    assert sum(model.computed) == 24


def test_the_sampler_counts_the_settled_tokens_alone():
    job, model = begun()
    ids = drafts(job, model, 0, 0, (7,), 3).ids
    assert job._sampler.settled == [7]
    drafts(job, model, 1, 4, (), 2)
    assert job._sampler.settled == [7]  # nobody has judged the draft yet
    drafts(job, model, 2, 2, (8,), 2)
    assert job._sampler.settled == [7, ids[0], 8]
    drafts(job, model, 3, 4, (), 1)
    assert job._sampler.settled == [7, ids[0], 8, *written([*PROMPT, 7, ids[0], 8], 1)]


ORDERS = st.lists(
    st.tuples(
        st.integers(0, 8),  # tokens taken back
        st.lists(st.integers(1, VOCABULARY - 1), max_size=3),  # appended
        st.integers(0, 6),  # drafted
        st.integers(0, 25),  # the computation at which it is broken off; high: it is not
        st.booleans(),  # whether the newest logits are lost
    ),
    max_size=12,
)


@given(ORDERS)
def test_drafts_are_the_models_own_whatever_is_taken_back_or_broken_off(orders):
    job, model = begun()
    answer, paid = [], sum(model.computed)
    for number, (back, appended, count, breaks_at, lost) in enumerate(orders):
        keep = max(0, len(answer) - back)
        if lost:
            model.fresh = False
        answer = answer[:keep] + appended
        calls = 0

        def at_decode(number=number, breaks_at=breaks_at):
            nonlocal calls
            calls += 1
            if calls > breaks_at:
                job.break_off(number)

        model.on_decode = at_decode
        before = sum(model.computed)
        found = drafts(job, model, number, keep, tuple(appended), count)
        assert found.ids == written(PROMPT + answer, len(found.ids))
        if calls <= breaks_at:
            assert len(found.ids) == count
        answer += found.ids
        assert job._tokens == PROMPT + answer
        assert model.cached == job._tokens[: model.length]
        assert found.read_tokens == max(0, sum(model.computed) - before - len(found.ids))
        paid += found.read_tokens
    assert job.usage.prompt_tokens == paid


def test_a_draft_ends_with_an_end_of_answer_an_unsure_token_and_the_context():
    job, model = begun()
    model.special[12] = END
    assert drafts(job, model, 0, 0, (), 6).ids == (*written(PROMPT, 2), END)
    model.special.clear()
    model.sure[11] = 0.4
    for stop_below, drafted in ((0.0, 4), (0.3, 4), (0.5, 2)):
        assert (
            len(drafts(job, model, round(10 * stop_below) + 1, 0, (), 4, stop_below=stop_below).ids)
            == drafted
        )
    room = CONTEXT - len(PROMPT)
    assert len(drafts(job, model, 20, 0, tuple([5] * (room - 2)), 4).ids) == 2
    assert drafts(job, model, 21, room, (), 4).ids == ()
    assert drafts(job, model, 22, room, (1, 2, 3), 4).ids == ()  # the other model's context is longer
    assert len(drafts(job, model, 23, 2, (), 4).ids) == 4


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ((0, 1, (), 1), "has fewer"),
        ((0, 0, (VOCABULARY,), 1), "vocabulary"),
        ((0, 0, (-1,), 1), "vocabulary"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(order, says):
    job, model = begun()
    with pytest.raises(EndpointFailure) as caught:
        drafts(job, model, *order)
    assert (caught.value.kind, says in str(caught.value.error)) == (FailureKind.BAD_REQUEST, True)
    assert not Sampler.open


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [([], "BAD_REQUEST"), ([VOCABULARY], "BAD_REQUEST"), ([1] * CONTEXT, "CONTEXT_LENGTH")],
)
def test_a_prompt_that_cannot_be_read_is_refused(prompt, kind):
    with pytest.raises(EndpointFailure) as caught:
        begun(prompt=prompt)
    assert caught.value.kind is FailureKind[kind]


def test_cancelling_ends_the_job_in_the_middle_of_a_draft():
    job, model = begun()
    model.on_decode = job.flag.set
    job.give(DraftOrder(0, 0, (), 5))
    with pytest.raises(Aborted):
        job.run(model)
    assert (job.mail.items, Sampler.open) == ([], set())


def test_a_draft_that_is_broken_off_ends_behind_the_pass_that_is_computed():
    job, model = begun()
    model.on_decode = lambda: job.break_off(0)
    assert drafts(job, model, 0, 0, (), 9).ids == written(PROMPT, 2)
    model.on_decode = lambda: job.break_off(1)
    assert drafts(job, model, 1, 0, tuple(range(1, 20)), 9).ids == ()
    assert (model.length, model.batch_tokens) == (16, 8)  # of what was appended, one batch was read


def test_an_order_that_was_broken_off_before_it_began_is_answered_and_its_tokens_are_taken():
    job, model = begun()
    job.break_off(0)
    assert drafts(job, model, 0, 0, (7, 8), 4).ids == ()
    assert sum(model.computed) == len(PROMPT)
    assert drafts(job, model, 1, 2, (9,), 2).ids == written([*PROMPT, 7, 8, 9], 2)


def test_a_few_tokens_are_read_as_it_was_faster():
    reads = ShortReads()
    assert reads.together(2)
    reads.took(1, 0.010)
    assert reads.together(2)
    reads.took(2, 0.030)
    assert not reads.together(2)
    for _ in range(30):
        reads.took(1, 0.016)
    assert reads.together(2)
    reads.took(100, 9.0)
    assert reads.together(100)
