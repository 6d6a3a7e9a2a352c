"""How drafts share a model with other requests; the model only counts."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager

import anyio
import pytest

from disco.endpoints.contract import PAUSE_HOLD_S
from disco.endpoints.drafter import DraftOrder
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafter
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import Job
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.llamacpp.runtime.worker import ModelWorker
from disco.errors import EndpointFailure, FailureKind
from tests.endpoints.llamacpp.drafting.counting_model import (
    PROMPT,
    Model,
    Sampler,
    written,
)

pytestmark = pytest.mark.usefixtures("counting")


class Other(Job):
    """Another request's: holds the model until it is let go, and leaves its own text in the cache."""

    def __init__(self, mail):
        super().__init__(mail)
        self.runs, self.goes = threading.Event(), threading.Event()

    def order(self):
        return None

    def run(self, model):
        self.runs.set()
        assert self.goes.wait(10)
        model.keep(0)
        model.cached, model.fresh = [8, 8, 8], True
        return True


@asynccontextmanager
async def worker_with(model):
    worker = ModelWorker(lambda _keep: model, name="m", max_queue=4)

    async def warm_up():
        pass

    try:
        yield worker, LlamaCppDrafter(worker, name="m", warm_up=warm_up)
    finally:
        await worker.aclose()


async def until(what, within_s=10.0):
    with anyio.fail_after(within_s):
        while not what():  # noqa: ASYNC110 - it is another thread's state
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_others_use_the_model_between_two_drafts_and_a_draft_waits_for_them():
    model = Model()
    async with worker_with(model) as (worker, drafter), drafter.open(seed=1, sampling={}) as drafting:
        assert (drafter.ready, drafter.vocabulary) == (False, None)
        await drafting.read(PROMPT)
        assert (drafter.ready, drafter.vocabulary) == (True, "counting")
        assert (await drafting.draft(DraftOrder(0, 0, (), 2))).ids == written(PROMPT, 2)
        await until(lambda: worker.waiting == 0, within_s=PAUSE_HOLD_S / 2)  # it does not hold the model
        assert not drafting.busy
        other = Other(Mailbox())
        worker.submit(other)
        await until(other.runs.is_set)
        assert drafting.busy
        found = []

        async def draft():
            found.append(await drafting.draft(DraftOrder(1, 2, (7,), 2)))

        async with anyio.create_task_group() as group:
            group.start_soon(draft)
            await until(lambda: drafting._job.ready)
            await anyio.sleep(0.01)
            assert found == []
            # A request that came later goes first all the same: a draft is only a help.
            later = Other(Mailbox())
            worker.submit(later)
            other.goes.set()
            await until(later.runs.is_set)
            assert found == []
            later.goes.set()
        answer = [*written(PROMPT, 2), 7]
        assert found[0].ids == written(PROMPT + answer, 2)
        assert found[0].read_tokens == len(PROMPT) + 3 + 1 - 2  # all was read again
        await until(lambda: not drafting.busy)


@pytest.mark.anyio
async def test_a_stop_breaks_the_draft_off_and_the_next_one_begins():
    model = Model()
    computing, goes_on = threading.Event(), threading.Event()
    async with worker_with(model) as (_, drafter), drafter.open(seed=1, sampling={}) as drafting:
        await drafting.read(PROMPT)
        drafting.stop()  # there is none yet

        def at_decode():
            if model.length == len(PROMPT) + 2:
                computing.set()
                assert goes_on.wait(10)

        model.on_decode = at_decode
        found = []

        async def draft():
            found.append(await drafting.draft(DraftOrder(0, 0, (), 9)))

        async with anyio.create_task_group() as group:
            group.start_soon(draft)
            await until(computing.is_set)
            drafting.stop()
            goes_on.set()
        assert found[0].ids == written(PROMPT, 3)  # the third was chosen, and not computed
        model.on_decode = lambda: None
        assert (await drafting.draft(DraftOrder(1, 1, (9,), 2))).ids == written(
            [*PROMPT, found[0].ids[0], 9], 2
        )
        # Cancelling does the same; what the cancelled draft would have said is dropped.
        model.on_decode, _, _ = at_decode, computing.clear(), goes_on.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(drafting.draft, DraftOrder(2, 0, (), 9))
            await until(computing.is_set)
            group.cancel_scope.cancel()
        goes_on.set()
        assert (await drafting.draft(DraftOrder(3, 0, (9,), 2))).ids == written([*PROMPT, 9], 2)


@pytest.mark.anyio
async def test_the_second_answer_is_told_that_the_model_is_taken():
    async with worker_with(Model()) as (_, drafter):
        first, second = (drafter.open(seed=1, sampling={}) for _ in range(2))
        await first.read(PROMPT)
        await second.read(PROMPT[:5])
        await until(lambda: not first.busy)
        assert second.busy
        for number, (one, prompt) in enumerate([(first, PROMPT), (second, PROMPT[:5])] * 2):
            assert (await one.draft(DraftOrder(number, 0, (7,), 2))).ids == written([*prompt, 7], 2)
        await first.aclose()
        await until(lambda: not second.busy)
        await second.aclose()
        await until(lambda: Sampler.open == 0)


@pytest.mark.anyio
async def test_a_draft_that_fails_ends_the_drafting_and_nothing_hangs():
    model = Model()

    def fails():
        raise OSError("secret")

    async with worker_with(model) as (worker, drafter), drafter.open(seed=1, sampling={}) as drafting:
        with pytest.raises(EndpointFailure):  # it has read nothing
            await drafting.draft(DraftOrder(0, 0, (), 1))
        await drafting.read(PROMPT)
        model.on_decode = fails
        for number in range(2):
            with pytest.raises(EndpointFailure) as caught:
                await drafting.draft(DraftOrder(number, 0, (), 3))
            assert caught.value.kind is FailureKind.CRASHED
            assert "secret" not in str(caught.value.error)
        await until(lambda: worker.model is None)
        assert Sampler.open == 0


@pytest.mark.anyio
async def test_closing_the_endpoint_ends_a_drafting_that_rests():
    async with worker_with(Model()) as (worker, drafter), drafter.open(seed=1, sampling={}) as drafting:
        await drafting.read(PROMPT)
        await worker.aclose()
        with anyio.fail_after(10), pytest.raises(EndpointFailure):
            await drafting.draft(DraftOrder(0, 0, (), 1))
        late = drafter.open(seed=1, sampling={})
        with pytest.raises(EndpointFailure):
            await late.read(PROMPT)
        await late.aclose()
    assert Sampler.open == 0


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
