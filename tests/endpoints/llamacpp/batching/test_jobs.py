"""Jobs over slots: whoever else writes, pauses, leaves or waits, each is written as alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.runtime.job import Job
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.errors import EndpointFailure, FailureKind, LocalModelError
from tests.endpoints.llamacpp.batching.fakes import END, Bench, FakeModel, whole_answer

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]  # longer than a batch
LIMIT = 30


def prompt_of(number):
    return [1 + number % 40, *PROMPT, 1 + number // 40]


class Mail:
    abandoned = False

    def __init__(self):
        self.items, self.closed = [], False

    def put(self, item):
        assert not self.closed
        self.items.append(item)

    def close(self):
        self.closed = True


class Writing(Stepwise):
    """Reads a prompt and writes, as a `Generation` does; its mail has the tokens, then how it ended."""

    def __init__(self, prompt, limit=LIMIT):
        super().__init__(Mail())
        self._prompt, self._limit = list(prompt), limit
        self.read, self.again = 0, 0

    def read_again(self, tokens):
        self.again += tokens

    def steps(self, model):
        model.prepare(self._prompt)
        yield from when_ready(model)
        done = self.cached = model.reuse(self._prompt)
        while done < len(self._prompt):
            self.check()
            end = min(len(self._prompt), (done // model.batch_tokens + 1) * model.batch_tokens)
            model.decode(self._prompt[done:end])
            yield from when_ready(model)
            self.read += end - done
            done = end
        for _ in range(self._limit):
            while self.paused:
                yield
                self.check()
            if self.park:
                self.mail.put("parked")
                return
            token = int(np.argmax(model.logits()))
            self.keyed.chosen.append(token)
            if token == END:
                self.mail.put("stop")
                return
            self.mail.put(token)
            self.check()
            model.decode((token,))
            yield from when_ready(model)
        self.mail.put("length")


class Orders(Stepwise):
    """Writes one token for each order, and is only a help to others."""

    resident = True

    def __init__(self, prompt):
        super().__init__(Mail())
        self._prompt, self.orders = list(prompt), 0

    @property
    def ready(self):
        return self.orders > 0

    def steps(self, model):
        model.prepare(self._prompt)
        yield from when_ready(model)
        model.keep(model.reuse(self._prompt))
        model.decode(self._prompt[model.length :])
        yield from when_ready(model)
        while True:
            while self.orders:
                self.orders -= 1
                token = int(np.argmax(model.logits()))
                self.mail.put(token)
                model.decode((token,))
                yield from when_ready(model)
            yield


def alone(prompt, limit=LIMIT):
    ids, reason = whole_answer(prompt, limit)
    return [*ids, reason]


@pytest.fixture
def bench():
    return Bench(FakeModel(slots=2, batch_tokens=16), Limits(hold_s=2.0))


def begun(bench, *jobs):
    for job in jobs:
        bench.scheduler.begin(job, bench.now)
    return jobs


def told(bench, job, **flags):
    for name, value in flags.items():
        setattr(job, name, value)
    bench.scheduler.tell(job)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=9),
    st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(["pause", "resume", "cancel", "wait"])), max_size=40
    ),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_whatever_happens_to_some_all_others_are_written_as_alone(numbers, events, slots, holds, cuts):
    """Also where the model can drop no end of a cache: then nothing is computed together."""
    model = FakeModel(slots=slots)
    model.cuts = cuts
    bench = Bench(model, Limits(hold_s=2.0 if holds else 0.0))
    jobs = begun(bench, *(Writing(prompt_of(number)) for number in numbers))
    left = set()
    for at, what in events:
        job = jobs[at % len(jobs)]
        for _ in range(3):
            bench.scheduler.step(bench.now)
        if what == "cancel":
            left.add(job)
            job.flag.set()
            bench.scheduler.cancel(job, bench.now)
            assert job.mail.closed
        elif what == "wait":
            bench.now += 1.5
        else:
            told(bench, job, paused=what == "pause")
    for job in jobs:
        told(bench, job, paused=False)
    for _ in range(3 * len(jobs)):
        bench.wait(3.0)
    for number, job in zip(numbers, jobs, strict=True):
        assert job.mail.closed
        expected = alone(prompt_of(number))
        assert (
            job.mail.items == expected
            if job not in left
            else job.mail.items == expected[: len(job.mail.items)]
        )
    assert (bench.scheduler.waiting, bench.scheduler.slots.held, bench.scheduler.queued) == (0, 0, 0)
    assert bench.scheduler.wake_at == float("inf")


def test_answers_share_passes_and_one_more_waits_for_a_slot(bench):
    jobs = begun(bench, *(Writing(prompt_of(number)) for number in range(3)))
    assert (bench.scheduler.queued, bench.scheduler.ahead(0.0)) == (0, 0)
    bench.scheduler.step(0.0)
    assert (bench.scheduler.queued, bench.scheduler.ahead(0.0)) == (1, 2)
    bench.run()
    assert [job.mail.items for job in jobs] == [alone(prompt_of(number)) for number in range(3)]
    assert sum(len(parts) == 2 for parts in bench.model.passes) > LIMIT / 2


def test_a_paused_answer_keeps_its_slot_for_a_while_and_then_reads_again_what_others_took(bench):
    first, second = begun(bench, *(Writing(prompt_of(number)) for number in range(2)))
    for _ in range(12):
        bench.scheduler.step(0.0)
    told(bench, first, paused=True)
    bench.run()
    written = len(first.mail.items)
    assert 2 < written < LIMIT
    assert second.mail.closed
    third, fourth = begun(bench, *(Writing(prompt_of(number)) for number in (7, 8)))
    bench.run()
    assert third.mail.closed  # in the slot that is free; the fourth goes there next
    assert fourth.mail.closed
    (other,) = begun(bench, Writing(prompt_of(9)))
    bench.scheduler.step(0.0)
    (waits,) = begun(bench, Writing(prompt_of(10)))
    bench.scheduler.step(0.0)
    assert (bench.scheduler.queued, bench.scheduler.wake_at) == (1, 2.0)
    bench.now = 2.0
    bench.scheduler.step(2.0)
    assert bench.scheduler.queued == 0
    assert len(first.mail.items) == written
    told(bench, first, paused=False)
    bench.run()
    assert first.mail.items == alone(prompt_of(0))
    assert first.again >= len(prompt_of(0)) + written - 1
    assert (second.again, other.again, waits.again) == (0, 0, 0)


def test_a_paused_answer_whose_slot_nobody_wanted_reads_nothing_again(bench):
    first, second = begun(bench, *(Writing(prompt_of(number)) for number in range(2)))
    for _ in range(10):
        bench.scheduler.step(0.0)
    for _ in range(3):
        told(bench, first, paused=True)
        for _ in range(3):
            bench.scheduler.step(0.0)
        bench.now += 100.0  # the other one writes on beside it
        told(bench, first, paused=False)
        bench.scheduler.step(bench.now)
    bench.run()
    assert [job.mail.items for job in (first, second)] == [alone(prompt_of(number)) for number in range(2)]
    assert first.again == 0


def test_a_paused_answer_is_parked_and_its_prompt_stays_for_whoever_goes_on(bench):
    (job,) = begun(bench, Writing(prompt_of(0)))
    for _ in range(8):
        bench.scheduler.step(0.0)
    told(bench, job, paused=True)
    bench.run()
    told(bench, job, park=True, paused=False)
    bench.run()
    assert job.mail.items[-1] == "parked"
    (other,) = begun(bench, Writing([30] * 40))  # takes the other slot, which has nothing
    bench.run()
    (again,) = begun(bench, Writing(prompt_of(0)))
    bench.run()
    assert again.cached == len(prompt_of(0)) - 1
    assert again.mail.items == alone(prompt_of(0))
    assert other.mail.closed


def test_a_helper_that_rests_keeps_no_slot_from_others_and_comes_last(bench):
    helper, first, second = begun(bench, Orders(prompt_of(0)), *(Writing(prompt_of(n)) for n in (1, 2)))
    bench.run()
    assert not bench.scheduler.lacks_slot(helper)
    jobs = begun(bench, *(Writing(prompt_of(n)) for n in (3, 4)))
    for _ in range(3):
        bench.scheduler.step(0.0)
    assert bench.scheduler.lacks_slot(helper)
    helper.orders = 5
    bench.scheduler.tell(helper)
    bench.scheduler.step(0.0)
    (late,) = begun(bench, Writing(prompt_of(5)))
    assert bench.scheduler.lacks_slot(late)
    while bench.scheduler.lacks_slot(late):  # it came later, and goes first
        assert bench.scheduler.lacks_slot(helper)
        bench.scheduler.step(0.0)
    assert any(job.mail.closed for job in jobs)
    bench.run()
    assert late.mail.items == alone(prompt_of(5))
    assert helper.mail.items == whole_answer(prompt_of(0), 5)[0]
    assert first.mail.closed
    assert second.mail.closed


class Stopping(FakeModel):
    """Stops in the middle of a pass when it is told to, with some of the rows in its caches."""

    stop_at = -1

    def compute(self, parts):
        if len(self.passes) == self.stop_at:
            self.stop_at = -1
            for part in parts:
                self.caches[part.slot].extend(part.ids[: len(part.ids) // 2])
            raise Aborted
        return super().compute(parts)


@pytest.mark.parametrize("stop_at", range(12))
def test_a_pass_that_is_stopped_for_one_that_left_is_computed_again_for_the_others(stop_at):
    model = Stopping(slots=3)
    bench = Bench(model)
    model.stop_at = stop_at
    jobs = begun(bench, *(Writing(prompt_of(number)) for number in range(3)))
    bench.run()
    assert model.stop_at == -1
    assert [job.mail.items for job in jobs] == [alone(prompt_of(number)) for number in range(3)]


def test_a_job_that_was_cancelled_has_no_further_pass_and_only_its_own_pass_may_be_stopped(bench):
    first, second = begun(bench, *(Writing(prompt_of(number)) for number in range(2)))
    seen = []
    compute = bench.model.compute

    def watched(parts):
        seen.append((len(parts), [bench.scheduler.computes_only(job) for job in (first, second)]))
        return compute(parts)

    bench.model.compute = watched
    for _ in range(8):
        bench.scheduler.step(0.0)
    assert all(sum(alone) == (count == 1) for count, alone in seen)
    assert {count for count, _ in seen} == {1, 2}
    second.flag.set()  # its cancelling is on its way
    first.flag.set()
    passes = len(bench.model.passes)
    bench.scheduler.step(0.0)
    assert len(bench.model.passes) == passes
    for job in (first, second):
        bench.scheduler.cancel(job, 0.0)
        bench.scheduler.cancel(job, 0.0)
    assert bench.scheduler.slots.held == 0


def test_a_job_that_fails_harms_no_other(bench):
    class Broken(Writing):
        def steps(self, model):
            yield from super().steps(model) if self._limit else ()
            raise ValueError("secret")

    class Refused(Writing):
        def steps(self, model):
            yield from ()
            raise EndpointFailure(FailureKind.BAD_REQUEST, ValueError())

    broken, refused, whole = begun(
        bench, Broken(prompt_of(0), 3), Refused(prompt_of(1)), Writing(prompt_of(2))
    )
    bench.run()
    assert broken.mail.items[-1].kind is FailureKind.CRASHED
    assert "secret" not in str(broken.mail.items[-1].error)
    assert [one.kind for one in refused.mail.items] == [FailureKind.BAD_REQUEST]
    assert whole.mail.items == alone(prompt_of(2))
    jobs: list[Job] = list(begun(bench, *(Writing(prompt_of(number)) for number in range(3))))
    bench.scheduler.step(0.0)
    bench.scheduler.fail_all(EndpointFailure(FailureKind.CRASHED, ValueError()))
    assert all(job.mail.closed and job.mail.items[-1].kind is FailureKind.CRASHED for job in jobs)
    assert (bench.scheduler.waiting, bench.scheduler.slots.held) == (0, 0)


def test_what_measures_the_model_has_it_alone(bench):
    class Measuring(Writing):
        alone = True

    first, measuring, later = begun(
        bench, Writing(prompt_of(0)), Measuring(prompt_of(1)), Writing(prompt_of(2))
    )
    ended = []
    while not later.mail.closed:
        bench.scheduler.step(0.0)
        ended += [job for job in (first, measuring, later) if job.mail.closed and job not in ended]
    assert measuring.mail.items == alone(prompt_of(1))
    own = [
        i for i, parts in enumerate(bench.model.passes) if any(list(part.ids)[:1] == [2] for part in parts)
    ]
    assert own  # its prompt begins with a 2
    assert ended.index(measuring) != 1 or ended[0] in (first, later)
    assert all(len(parts) == 1 for parts in bench.model.passes[own[0] : own[0] + len(measuring.mail.items)])


def test_a_short_question_leaves_the_cache_of_a_long_conversation_alone(bench):
    (long,) = begun(bench, Writing([1, 2, 3, 4, 5] * 20, 5))
    bench.run()
    (short,) = begun(bench, Writing([1, 2, 3, 4, 9], 5))
    bench.run()
    (again,) = begun(bench, Writing([1, 2, 3, 4, 5] * 20 + [6], 5))
    bench.run()
    assert (long.cached, short.cached) == (0, 0)
    assert again.cached >= 96


class Cramped(FakeModel):
    """Begins with little room, which doubles as far as there is memory."""

    def __init__(self, memory, **sizes):
        super().__init__(**sizes)
        self.room_tokens, self._memory, self.grown = 16, memory, []

    def make_room(self, tokens):
        if tokens > self._memory:
            raise LocalModelError("no memory")
        while self.room_tokens < tokens:
            self.room_tokens *= 2
            self.grown.append(tokens)

    def compute(self, parts):
        assert all(part.at + len(part.ids) <= self.room_tokens for part in parts)
        return super().compute(parts)


def test_an_answer_for_which_there_is_no_memory_fails_and_all_others_are_written():
    bench = Bench(Cramped(64, slots=3))
    short = [Writing(prompt_of(number), limit=20) for number in range(2)]
    long, later = Writing([*prompt_of(2), *[7] * 60]), Writing(prompt_of(3), limit=20)
    begun(bench, short[0], long, short[1])
    bench.run()
    (failure,) = long.mail.items
    assert isinstance(failure, EndpointFailure)
    assert failure.kind is FailureKind.CRASHED
    begun(bench, later)
    bench.run()
    assert [job.mail.items for job in [*short, later]] == [alone(prompt_of(n), 20) for n in (0, 1, 3)]


def test_rows_that_nobody_reads_get_no_larger_cache():
    bench = Bench(Cramped(200, slots=3, batch_tokens=16))
    first, middle, last = (Orders(prompt_of(number)[:length]) for number, length in enumerate((4, 12, 4)))
    begun(bench, first, middle, last)
    middle.orders = 4
    told(bench, middle)
    bench.run()
    assert len(bench.model.caches[1]) == 16  # all the room that there is, and nobody wants more
    first.orders = last.orders = 4
    told(bench, first), told(bench, last)
    bench.run()
    assert (len(first.mail.items), len(last.mail.items)) == (4, 4)
    assert bench.model.grown == []
