"""How drafts share a model with answers and with each other; the model's next token depends on what its caches hold."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.drafter import Drafted, DraftOrder
from disco.endpoints.llamacpp.batching import engine as engine_module
from disco.endpoints.llamacpp.batching.engine import Engine
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.drafting.draft_job import DraftJob
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafter
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.errors import EndpointFailure, FailureKind
from disco.events import Parked
from tests.endpoints.llamacpp.batching.fakes import END, Bench, FakeModel, behind
from tests.endpoints.llamacpp.drafting.counting_model import Sampler

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


class Choosing(Sampler):
    """Chooses what the model says; it must be asked where the sequence ends."""

    def draft(self, position):
        assert position == self.model.length
        return int(np.argmax(self.model.logits()))

    def top_probability(self):
        return 1.0


@pytest.fixture(autouse=True)
def choosing(monkeypatch):
    monkeypatch.setattr("disco.endpoints.llamacpp.drafting.draft_job.DraftSampler", Choosing)
    monkeypatch.setattr(Sampler, "open", set())


class Mail:
    abandoned = False

    def __init__(self):
        self.items, self.closed = [], False

    def put(self, item):
        self.items.append(item)

    def close(self):
        self.closed = True


class Writing(Stepwise):
    """Another request's answer: its prompt, then so many tokens."""

    def __init__(self, prompt, count):
        super().__init__(Mail())
        self.prompt, self.count, self.ids = prompt, count, []

    def steps(self, model):
        model.prepare(self.prompt)
        yield from when_ready(model)
        done = model.reuse(self.prompt)
        while done < len(self.prompt):
            batch = self.prompt[done : (done // model.batch_tokens + 1) * model.batch_tokens]
            model.decode(batch)
            yield from when_ready(model)
            done += len(batch)
        while len(self.ids) < self.count:
            self.ids.append(int(np.argmax(model.logits())))
            model.decode(self.ids[-1:])
            yield from when_ready(model)


def written(tokens, count):
    """What the model writes behind these tokens, up to its end."""
    ids = []
    while len(ids) < count:
        ids.append(behind([*tokens, *ids]))
        if ids[-1] == END:
            break
    return tuple(ids)


def drafting(bench, prompt=PROMPT):
    job = DraftJob(Mail(), prompt, Sampling(), seed=1, name="m")
    bench.scheduler.begin(job, bench.now)
    return job


def order(bench, job, *given):
    job.give(DraftOrder(*given))
    bench.scheduler.tell(job)


def newest(job):
    return job.mail.items[-1]


def test_several_answers_are_drafted_beside_one_that_is_written_each_in_a_slot_of_its_own():
    model = FakeModel(slots=4)
    bench = Bench(model)
    prompts = [[*PROMPT, n] for n in (7, 8)]
    jobs = [drafting(bench, prompt) for prompt in prompts]
    bench.run()
    for job, prompt in zip(jobs, prompts, strict=True):
        assert isinstance(newest(job), Parked)
        assert job.usage.prompt_tokens == len(prompt)
    writing = Writing([9, *PROMPT], 12)
    bench.scheduler.begin(writing, bench.now)
    for number in range(2):
        for job in jobs:
            order(bench, job, number, 3 * number, (), 3)
        bench.run()
    for job, prompt in zip(jobs, prompts, strict=True):
        first, second = (one for one in job.mail.items if isinstance(one, Drafted))
        assert first.ids + second.ids == written(prompt, 6)
        assert (first.read_tokens, second.read_tokens) == (0, 0)  # nobody has displaced anything
    assert tuple(writing.ids) == written(writing.prompt, 12)
    assert max(len(parts) for parts in model.passes) == 3  # all of them in one pass


ORDERS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which drafting
        st.integers(0, 8),  # tokens taken back
        st.lists(st.integers(1, 49), max_size=3),  # appended
        st.integers(0, 6),  # drafted
        st.integers(0, 12),  # passes behind which it is broken off; high: it is not
        st.booleans(),  # whether others answer meanwhile
    ),
    max_size=15,
)


@given(ORDERS, st.integers(1, 3))
def test_drafts_are_the_models_own_whoever_displaces_them_and_wherever_they_are_broken_off(orders, slots):
    bench = Bench(FakeModel(slots=slots), Limits(hold_s=0.0))
    prompts = [[*PROMPT, n] for n in range(1, 4)]
    jobs = [drafting(bench, prompt) for prompt in prompts]
    bench.run()
    answers = [[] for _ in jobs]
    for number, (which, back, appended, count, breaks_at, others) in enumerate(orders):
        job, answer = jobs[which], answers[which]
        keep = max(0, len(answer) - back)
        answer[keep:] = appended
        if others:
            bench.scheduler.begin(Writing([10 + number, *PROMPT], 3), bench.now)
        order(bench, job, number, keep, tuple(appended), count)
        for _ in range(breaks_at):
            bench.scheduler.step(bench.now)
        job.break_off(number)
        bench.scheduler.tell(job)
        bench.run()
        bench.now += 1.0
        found = newest(job)
        assert found.number == number
        assert found.ids == written(prompts[which] + answer, len(found.ids))
        answer += found.ids
        if END in found.ids:
            break
    assert len(Sampler.open) == len(jobs)
    for job in jobs:
        bench.scheduler.cancel(job, bench.now)
        assert job.mail.closed
    assert not Sampler.open
    assert bench.scheduler.slots.held == 0


def test_an_answer_takes_the_slot_of_a_drafting_that_rests_and_the_next_draft_reads_its_text_again():
    model = FakeModel(slots=1)
    bench = Bench(model)
    job = drafting(bench)
    order(bench, job, 0, 0, (), 2)
    bench.run()
    assert not bench.scheduler.lacks_slot(job)
    writing = Writing([9, 9, 9], 2)
    bench.scheduler.begin(writing, bench.now)
    bench.run()
    assert len(writing.ids) == 2
    assert bench.scheduler.lacks_slot(job)
    order(bench, job, 1, 2, (7,), 2)
    bench.run()
    answer = [*written(PROMPT, 2), 7]
    assert newest(job).ids == written(PROMPT + answer, 2)
    # All that it had read: the prompt and one drafted token; and what is new: a drafted token and the given one.
    assert newest(job).read_tokens == len(PROMPT) + 1 + 2 + 1 - 2


def test_a_draft_that_is_broken_off_ends_behind_the_pass_that_is_computed():
    model = FakeModel()
    bench = Bench(model)
    job = drafting(bench)
    bench.run()
    order(bench, job, 0, 0, (), 9)
    for _ in range(3):
        bench.scheduler.step(bench.now)
    passes = len(model.passes)
    job.break_off(0)
    bench.run()
    assert len(model.passes) == passes + 1  # it was asked for already
    assert 1 < len(newest(job).ids) < 9
    order(bench, job, 1, 1, (), 2)  # goes on behind a part of that
    bench.run()
    assert newest(job).ids == written(PROMPT, 3)[1:]


class EngineModel(FakeModel):
    """The fake model as an engine loads it. `on_compute` is called at each pass."""

    bos_text = eos_text = ""
    bos_token = 1
    loras = ()
    template = "{{ messages }}"
    on_compute = staticmethod(lambda: None)

    def __init__(self, path, *, slots, keep_loading, **numbers):
        super().__init__(slots)
        self.path, self.threads, self.load_s = path, 1, 0.0

    def begin(self, flag):
        pass

    reserve = close = lambda self: None

    def forget(self):
        self.caches = [[] for _ in self.caches]

    def compute(self, parts):
        type(self).on_compute()
        return super().compute(parts)


@asynccontextmanager
async def drafter_of_engine(monkeypatch):
    monkeypatch.setattr(engine_module, "_measured", lambda _model: Bench().scheduler._curve)
    monkeypatch.setattr(EngineModel, "on_compute", staticmethod(lambda: None))
    engine = Engine("smollm2-135m", name="m", slots=2, open_model=EngineModel)
    try:
        yield engine, LlamaCppDrafter(engine, name="m", warm_up=engine.warm_up)
    finally:
        await engine.aclose()


@pytest.mark.anyio
async def test_a_stop_breaks_the_draft_off_and_the_next_one_begins(monkeypatch):
    computing, goes_on = threading.Event(), threading.Event()

    def on_compute():
        computing.set()
        assert goes_on.wait(10)

    async with drafter_of_engine(monkeypatch) as (_, drafter), drafter.open(seed=1, sampling={}) as drafting:
        assert (drafter.ready, drafter.vocabulary) == (False, None)
        await drafting.read(PROMPT)
        assert (drafter.ready, drafter.vocabulary) == (True, "fake")
        drafting.stop()  # there is none yet
        monkeypatch.setattr(EngineModel, "on_compute", staticmethod(on_compute))
        found = []

        async def draft():
            found.append(await drafting.draft(DraftOrder(0, 0, (), 9)))

        async with anyio.create_task_group() as group:
            group.start_soon(draft)
            await until(computing.is_set)
            drafting.stop()
            goes_on.set()
        assert found[0].ids == written(PROMPT, 2)
        # Cancelling does the same; what the cancelled draft would have said is dropped.
        computing.clear()
        goes_on.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(drafting.draft, DraftOrder(1, 2, (), 9))
            await until(computing.is_set)
            group.cancel_scope.cancel()
        goes_on.set()
        assert (await drafting.draft(DraftOrder(2, 0, (9,), 2))).ids == written([*PROMPT, 9], 2)


async def until(what):
    with anyio.fail_after(10):
        while not what():  # noqa: ASYNC110 - it is another thread's state
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_a_draft_that_fails_ends_the_drafting_and_nothing_hangs(monkeypatch):
    def fails():
        raise OSError("secret")

    async with drafter_of_engine(monkeypatch) as (engine, drafter):
        async with drafter.open(seed=1, sampling={}) as drafting:
            with pytest.raises(EndpointFailure):  # it has read nothing
                await drafting.draft(DraftOrder(0, 0, (), 1))
            await drafting.read(PROMPT)
            monkeypatch.setattr(EngineModel, "on_compute", staticmethod(fails))
            for number in range(2):
                with pytest.raises(EndpointFailure) as caught:
                    await drafting.draft(DraftOrder(number, 0, (), 3))
                assert caught.value.kind is FailureKind.CRASHED
                assert "secret" not in str(caught.value.error)
            await until(lambda: engine.model is None)
        assert not Sampler.open


@pytest.mark.anyio
async def test_closing_the_endpoint_ends_a_drafting_that_rests(monkeypatch):
    async with drafter_of_engine(monkeypatch) as (engine, drafter):
        async with drafter.open(seed=1, sampling={}) as drafting:
            await drafting.read(PROMPT)
            await engine.aclose()
            with anyio.fail_after(10), pytest.raises(EndpointFailure):
                await drafting.draft(DraftOrder(0, 0, (), 1))
            late = drafter.open(seed=1, sampling={})
            with pytest.raises(EndpointFailure):
                await late.read(PROMPT)
            await late.aclose()
        assert not Sampler.open


def test_only_what_chooses_tokens_counts_of_the_parameters():
    drafter = LlamaCppDrafter(None, name="m", warm_up=None)
    given_all = {
        "temperature": 0.5,
        "top_k": 7,
        "frequency_penalty": 1.0,
        "logit_bias": {"5": -100},
        "seed": 4,
    }
    beside = {
        "stop": "x",
        "tools": [{}],
        "response_format": {"type": "json_object"},
        "audio": {},
        "max_tokens": 3,
    }
    drafting = drafter.open(seed=4, sampling={**given_all, **beside, "top_p": None})
    assert drafting._sampling == Sampling(
        temperature=0.5, top_k=7, frequency_penalty=1.0, logit_bias=((5, -100.0),)
    )
