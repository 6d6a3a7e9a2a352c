"""Drafts of the real model: they are what the same model writes alone, in one slot, in several, and in a host."""

from __future__ import annotations

import os
import signal
import sys

import anyio
import pytest

from disco.endpoints.drafter import DraftOrder
from disco.endpoints.llamacpp.model.sampler import Keyed, Sampler
from disco.endpoints.llamacpp.prompting.prompt_tokens import build_prompt
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import EndpointFailure, FailureKind
from disco.request import Prefix
from tests.endpoints.llamacpp.answers import ask, complete, until

pytestmark = [pytest.mark.real, pytest.mark.anyio]

# A few rows at once and one by one differ in the last bits, and which of them a draft reads is a matter of speed. So no
# two tokens may come close here: the two best scores are at least 0.29 apart everywhere.
SEED = 26
ASKED = ask("Tell me about rivers.", max_tokens=16)
WAYS = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.8},
    "penalised": {"temperature": 0.8, "frequency_penalty": 1.5, "logit_bias": {"260": -100}},
}


class Alone(Stepwise):
    """The target without drafts: the prompt's ids, then the answer's."""

    def __init__(self, mail, renderer, sampling, count):
        super().__init__(mail, Keyed(SEED))
        self._renderer, self._sampling, self._count = renderer, sampling, count

    def steps(self, model):
        conversation = self._renderer()(ASKED.messages)
        prompt = build_prompt(model, conversation.text, Prefix(), opening="", name="m").ids
        model.prepare(prompt)
        yield from when_ready(model)
        done = model.reuse(prompt)
        while done < len(prompt):
            batch = prompt[done : (done // model.batch_tokens + 1) * model.batch_tokens]
            model.decode(batch)
            yield from when_ready(model)
            done += len(batch)
        self.mail.put(tuple(prompt))
        ids = []
        with Sampler(model, self._sampling, (), keyed=self.keyed) as sampler:
            while len(ids) < self._count:
                ids.append(sampler.sample(model.length))
                model.decode(ids[-1:])
                yield from when_ready(model)
        self.mail.put(tuple(ids))


ANSWERS = {}


async def alone(endpoint, way):
    """Prompt and answer of the model itself, with keyed noise; each is made once."""
    if way not in ANSWERS:
        ANSWERS[way] = await made_alone(endpoint, way, 12)
    return ANSWERS[way]


async def made_alone(endpoint, way, count):
    params = dict(WAYS[way])
    bias = tuple((int(token), value) for token, value in params.pop("logit_bias", {}).items())
    mail = Mailbox()
    job = Alone(mail, endpoint.engine.renderer, Sampling(**params, logit_bias=bias), count)
    return await endpoint._run(job, mail)


@pytest.fixture
def model(request):
    return request.getfixturevalue(request.param)


BOTH = pytest.mark.parametrize("model", ["thread_model", "slots_model", "engine_host"], indirect=True)


@pytest.mark.parametrize(
    ("model", "way"),
    [
        *(("thread_model", way) for way in WAYS),
        ("slots_model", "penalised"),
        ("engine_host", "penalised"),
    ],
    indirect=["model"],
)
async def test_drafts_are_what_the_model_writes_alone_also_behind_a_wrong_guess(thread_model, model, way):
    prompt, answer = await alone(thread_model, way)
    async with model.drafter().open(seed=SEED, sampling=WAYS[way]) as drafting:
        await drafting.read(prompt)
        assert drafting.usage.prompt_tokens == len(prompt) == drafting.progress.tokens_done
        first = await drafting.draft(DraftOrder(0, 0, (), 4))
        assert first.ids == answer[:4]
        # In parallel: it goes on behind its own guess.
        assert (await drafting.draft(DraftOrder(1, 4, (), 3))).ids == answer[4:7]
        # Two of these were right; the verdict then has a token that it would never write, and takes that back.
        wrong = await drafting.draft(DraftOrder(2, 2, (300,), 2))
        right = await drafting.draft(DraftOrder(3, 2, answer[2:8], 4))
        assert right.ids == answer[8:]
        assert (len(wrong.ids), drafting.usage.completion_tokens) == (2, 13)
        # Six tokens were given, and the last of them begins the draft.
        assert (right.read_tokens, drafting.usage.prompt_tokens) == (5, len(prompt) + 5)


async def test_an_answer_in_between_displaces_the_text_and_the_next_draft_reads_it_again(thread_model):
    prompt, answer = await alone(thread_model, "greedy")
    async with thread_model.drafter().open(seed=SEED, sampling=WAYS["greedy"]) as drafting:
        await drafting.read(prompt)
        assert (await drafting.draft(DraftOrder(0, 0, answer[:4], 2))).ids == answer[4:6]
        text, _, _ = await complete(thread_model, ask("Count to ten.", max_tokens=2))
        assert text
        found = await drafting.draft(DraftOrder(1, 6, (), 4))
        assert found.ids == answer[6:10]
        # What both conversations begin with stays.
        assert len(found.ids) < found.read_tokens < len(prompt) + 5


async def test_several_answers_are_drafted_at_once_beside_one_that_is_written(thread_model, slots_model):
    expected = {way: await alone(thread_model, way) for way in WAYS}
    request = ask("Count to ten.", max_tokens=40, logit_bias={"2": -100, "0": -100})
    found, all_have_read, written = {}, anyio.Event(), None

    async def draft(way):
        prompt, _ = expected[way]
        async with slots_model.drafter().open(seed=SEED, sampling=WAYS[way]) as drafting:
            await drafting.read(prompt)
            found[way] = []
            if len(found) == len(WAYS):
                all_have_read.set()
            await all_have_read.wait()
            for number in range(3):
                found[way].append(await drafting.draft(DraftOrder(number, 4 * number, (), 4)))

    async def write():
        nonlocal written
        written = await complete(slots_model, request)

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        for way in WAYS:
            group.start_soon(draft, way)
    for way, (_, answer) in expected.items():
        assert sum((one.ids for one in found[way]), ()) == answer
        assert [one.read_tokens for one in found[way]] == [0, 0, 0]  # each kept its slot
    assert written[2].usage.completion_tokens == 40


@BOTH
async def test_when_the_other_model_fails_the_answer_goes_on_here_and_reads_nothing_again(
    thread_model, model
):
    prompt, answer = await alone(thread_model, "greedy")
    spell = thread_model.engine.model.spell
    async with model.drafter().open(seed=SEED, sampling=WAYS["greedy"]) as drafting:
        await drafting.read(prompt)
        await drafting.draft(DraftOrder(0, 0, answer[:6], 5))
    known = {"tokens": 9, "vocabulary": model.capabilities().vocabulary}
    prefix = Prefix(spell(answer[:9]).decode(), ids=answer[:9], **known)
    rest, deltas, ended = await complete(model, ask(ASKED.messages[-1]["content"], max_tokens=12), prefix)
    assert tuple(token for delta in deltas for token in delta.ids) == answer[9:12]
    assert prefix.text + rest == spell(answer[:12]).decode()
    # Only the newest token: the drafter has read it, but needs what the model says behind it.
    assert ended.usage.prompt_tokens - ended.usage.cached_tokens == 1


@BOTH
async def test_a_stop_ends_a_draft_within_a_token(thread_model, model):
    prompt, _ = await alone(thread_model, "greedy")
    async with model.drafter().open(seed=SEED, sampling={"logit_bias": {"2": -100, "0": -100}}) as drafting:
        await drafting.read(prompt)
        found = []

        async def draft():
            found.append(await drafting.draft(DraftOrder(0, 0, (), 1900)))

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(draft)
                await anyio.sleep(0.15)
                assert found == []
                drafting.stop()
        assert len(found[0].ids) < 200
        # Reading can be cancelled, too.
        async with model.drafter().open(seed=1, sampling={}) as long:
            with anyio.move_on_after(0.1) as scope:
                await long.read([(7 * place) % 40000 + 100 for place in range(1900)])
            assert scope.cancelled_caught
            assert long.usage.prompt_tokens < 1900
        following = await drafting.draft(DraftOrder(1, 0, found[0].ids[:1], 1))
        assert following.ids == found[0].ids[1:2]


async def test_it_stops_where_the_model_is_unsure(thread_model):
    prompt, _ = await alone(thread_model, "greedy")
    for way in ("greedy", "warm"):
        async with thread_model.drafter().open(seed=SEED, sampling=WAYS[way]) as drafting:
            await drafting.read(prompt)
            longer = (await drafting.draft(DraftOrder(0, 0, (), 8, stop_below=1e-6))).ids
            surer = (await drafting.draft(DraftOrder(1, 0, (), 8, stop_below=0.6))).ids
            assert (len(longer), 1 <= len(surer) < 8) == (8, True)
            assert surer == longer[: len(surer)]
            assert len((await drafting.draft(DraftOrder(2, 0, (), 8, stop_below=1.1))).ids) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="it is killed by signals here")
async def test_killing_the_process_in_mid_draft_is_a_failure_and_nothing_hangs(thread_model, engine_host):
    prompt, _ = await alone(thread_model, "greedy")
    drafter = engine_host.drafter()
    with anyio.fail_after(30):
        for when in ("drafting", "resting"):
            await until(lambda: engine_host.capabilities().ready)
            async with drafter.open(seed=SEED, sampling={"logit_bias": {"2": -100, "0": -100}}) as drafting:
                await drafting.read(prompt)
                pid = engine_host.process_id
                if when == "drafting":
                    async with anyio.create_task_group() as group:
                        group.start_soon(kill_soon, pid)
                        with pytest.raises(EndpointFailure) as caught:
                            await drafting.draft(DraftOrder(0, 0, (), 1900))
                else:
                    os.kill(pid, signal.SIGKILL)
                    await until(lambda: not drafter.ready)
                    with pytest.raises(EndpointFailure) as caught:
                        await drafting.draft(DraftOrder(0, 0, (), 4))
                assert caught.value.kind is FailureKind.CRASHED
                with pytest.raises(EndpointFailure):
                    await drafting.draft(DraftOrder(1, 0, (), 4))


async def kill_soon(pid):
    await anyio.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
