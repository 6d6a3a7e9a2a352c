"""What was read before a restart is not read again, and nothing else changes."""

from __future__ import annotations

import logging
import time
from array import array
from functools import partial
from math import inf
from types import SimpleNamespace

import pytest

from disco.candidate import PromptSize
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.batching import engine
from disco.endpoints.llamacpp.batching.slots import Slots
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.saving import idle_saving, prompt_keeper
from disco.endpoints.llamacpp.saving.idle_saving import IdleSaving
from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper, keeper_of, shared_tokens
from disco.endpoints.llamacpp.saving.slot_cache import SlotCache
from disco.endpoints.saved_prompts import PromptCache, saved_prompts
from disco.endpoints.saved_prompts.prompt_file import read_all
from disco.errors import LocalModelError
from disco.request import Request
from tests.endpoints.llamacpp.answers import complete, fresh, until

pytestmark = [pytest.mark.real, pytest.mark.anyio]

RULES = " ".join(f"Rule {n}: of tool {n} say that it costs {7 * n} euros." for n in range(12))
SYSTEM = {"role": "system", "content": f"You sell garden tools. {RULES}"}
KINDS = pytest.mark.parametrize(
    "kind", [EngineEndpoint, pytest.param(partial(HostEndpoint, runtime="engine"), marks=pytest.mark.slow)]
)


def ask(question, *history, may_be_saved=True, max_tokens=8):
    messages = [SYSTEM, *history, {"role": "user", "content": question}]
    return Request(messages, "m", {"temperature": 0, "max_tokens": max_tokens}, may_be_saved=may_be_saved)


def opened(folder, **options):
    return fresh(context_tokens=1024, prompt_cache=folder, **options)


class Place(SlotCache):
    """A slot that is read into directly."""

    def __init__(self, model, slot):
        super().__init__(model, slot)
        self.model, self.slot = model, slot

    def keep(self, length):
        del self.slot.ids[length:]
        self.model.cut(self.slot.number, length)

    def read(self, ids):
        """Read what is not there of `ids`; return the logits behind the last one."""
        self.keep(self.reusable(ids))
        while self.slot.ids != ids:
            at = len(self.slot.ids)
            rows = ids[at : (at // 64 + 1) * 64]
            (place,) = self.model.compute([Rows(self.slot.number, at, rows, len(rows) - 1)])
            self.slot.ids.extend(rows)
        return self.model.logits(place + len(rows) - 1).copy()

    def write(self, token):
        return self.read([*self.slot.ids, token])


@pytest.fixture(scope="module")
def loaded():
    path = resolve_model("smollm2-135m")
    sizes = {"context_tokens": 1024, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
    model = SequenceModel(path, **sizes, slots=2, keep_loading=lambda: True)
    yield model
    model.close()


def no_memory(*_):
    raise LocalModelError("no memory")


@pytest.fixture
def model(loaded):
    """A model with empty caches."""
    loaded.forget()
    return loaded


@pytest.fixture
def places(model):
    return [Place(model, slot) for slot in Slots(2).all]


def test_a_state_that_is_taken_back_gives_the_same_numbers_in_any_slot(model, places):
    first, second = places
    ids = model.tokenize(RULES * 2, special=False)[:260]
    beside = model.tokenize("Something else is in the other slot.", special=False)
    second.read(beside)
    before = first.read(ids)
    part, whole = bytearray(first.state(200)), bytearray(first.state(260))
    assert first.cached == ids
    behind = first.write(5)
    first.keep(200)
    live = first.read(ids)
    for place in (second, first):
        assert place.put_state(ids[:200], part)
        assert place.cached == ids[:200]
        assert (place.read(ids) == live).all()
        assert place.put_state(ids, whole)
        assert (place.write(5) == behind).all()
        # What does not belong together is refused, and leaves an empty slot; the other one has what it had.
        other = first if place is second else second
        for wrong in (whole[:-1], bytearray(b"x" * 50), whole):
            assert not place.put_state(ids[:-1], wrong)
            assert (place.cached, model.sequence_tokens(place.slot.number)) == ([], 0)
        assert model.sequence_tokens(other.slot.number) == len(other.cached)
    assert (first.read(ids) == before).all()


def test_a_saving_for_which_there_is_no_memory_leaves_the_slot_as_it_was(model, places, monkeypatch):
    place = places[1]
    ids = model.tokenize(RULES, special=False)[:100]
    place.read(ids)
    states = iter([model._state(1)])  # of all; for that of a part there is no memory

    def state(_):
        found = next(states, None)
        if found is None:
            raise MemoryError
        return found

    monkeypatch.setattr(model, "_state", state)
    with pytest.raises(MemoryError):
        place.state(60)
    assert (place.cached, model.sequence_tokens(1)) == (ids, 100)
    behind = place.write(5)
    place.keep(0)
    place.read(ids)
    assert (place.write(5) == behind).all()


@KINDS
async def test_a_restart_costs_only_what_is_new_and_the_answer_is_the_same(kind, tmp_path):
    async with opened(tmp_path, kind=kind) as endpoint:
        await complete(endpoint, ask("What is a spade?"))
        text, _, live = await complete(endpoint, ask("How much is tool 3?"))
    (saved,) = saved_prompts(tmp_path)
    assert saved.tokens == live.usage.cached_tokens > 128
    async with opened(tmp_path, kind=kind) as endpoint:
        await endpoint.warm_up()
        size = await endpoint.prompt_size(ask("How much is tool 3?"), 10)
        assert size == PromptSize(live.usage.prompt_tokens, saved.tokens)
        again, _, ended = await complete(endpoint, ask("How much is tool 3?"))
        assert (again, ended.usage) == (text, live.usage)
    assert [one.file for one in saved_prompts(tmp_path)] == [saved.file]


@pytest.mark.slow
@KINDS
async def test_it_is_saved_while_the_model_idles_and_a_damaged_file_costs_a_warning(
    kind, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(idle_saving, "IDLE_S", 0.05)
    caplog.set_level(logging.WARNING, "disco")
    async with opened(tmp_path, kind=kind) as endpoint:
        text, _, _ = await complete(endpoint, ask("What is a spade?"))
        await until(lambda: len(saved_prompts(tmp_path)) == 1)
        assert endpoint.capabilities().waiting == 0
        (path,) = tmp_path.iterdir()
        data = bytearray(path.read_bytes())
        data[-1000] ^= 1
        path.write_bytes(data)
    assert caplog.records == []
    async with opened(tmp_path, kind=kind) as endpoint:
        again, _, ended = await complete(endpoint, ask("What is a spade?"))
        assert (again, ended.usage.cached_tokens) == (text, 0)
        await until(lambda: len(saved_prompts(tmp_path)) == 1)
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert "damaged" in record.getMessage()
    read_all(path)  # saved anew


@pytest.mark.slow
async def test_a_conversation_takes_the_place_of_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_keeper, "CONVERSATION_TOKENS", 40)
    story = "Once upon a time there was a gardener who had a spade, a rake and a hoe. " * 4
    async with opened(tmp_path) as endpoint:
        text, _, _ = await complete(endpoint, ask(story))
    first = saved_prompts(tmp_path)
    assert len(first) == 2  # the system message, for other conversations, and this one
    history = ({"role": "user", "content": story}, {"role": "assistant", "content": text})
    async with opened(tmp_path) as endpoint:
        _, _, ended = await complete(endpoint, ask(story, *history))
        assert ended.usage.cached_tokens >= max(one.tokens for one in first) - 2
    second = saved_prompts(tmp_path)
    assert len(second) == 2
    assert max(one.tokens for one in second) > max(one.tokens for one in first)
    assert {one.tokens for one in first} & {one.tokens for one in second} == {
        min(one.tokens for one in first)
    }


async def test_what_is_private_is_not_saved_not_even_behind_what_is_not(tmp_path, model, monkeypatch):
    monkeypatch.setattr(prompt_keeper, "CONVERSATION_TOKENS", 40)
    secret = "My password is heron-4471 and I have told nobody else about it. " * 8
    common = {"role": "user", "content": secret}

    def saved_text():
        heads = [read_all(path)[0] for path in tmp_path.iterdir()]
        return b"".join(model.spell(head.ids.tolist()) for head in heads).decode()

    async with opened(tmp_path) as endpoint:
        await complete(endpoint, ask("What is a spade?"))
        await complete(endpoint, ask(secret, may_be_saved=False))
    assert "Rule 3" in saved_text()
    assert "heron" not in saved_text()
    async with opened(tmp_path) as endpoint:
        await complete(endpoint, ask("And a rake?", common, may_be_saved=False))
    assert "heron" not in saved_text()
    async with opened(PromptCache(folder=tmp_path, private=True)) as endpoint:
        await complete(endpoint, ask(secret, may_be_saved=False))
    assert saved_text().count("heron") == 8


def test_what_is_worth_saving(tmp_path, model, places, monkeypatch):
    """Few-shot examples that several prompts begin with count as a system message does; a repeated prompt does not."""
    cache, place = PromptCache(folder=tmp_path), places[1]
    keeper = keeper_of(model, cache, print)
    ids = model.tokenize(RULES * 3, special=False)
    shots, tails = ids[:150], ([1000] * 30, [2000] * 30)

    def noted(prompt, leading=0):
        keeper.note(prompt, lambda: leading, read_tokens=len(prompt), prefill_tps=100.0)
        place.read(prompt)
        keeper.save(places, lambda: True)
        return sorted(one.tokens for one in saved_prompts(tmp_path))

    assert noted(shots[:100], 90) == []  # too short
    assert noted(shots + tails[0]) == []
    assert noted(shots + tails[0]) == []  # the same again is no beginning of others
    assert noted(shots + tails[1]) == [150]
    assert noted(shots + tails[0], 140) == [150]
    assert noted(ids[50:], 0) == [150, len(ids) - 50]
    # The keeper knows how long reading takes, and does not take back what is read sooner.
    place.keep(0)
    keeper.restore(place, shots + tails[0])
    assert len(place.cached) == 150
    place.keep(0)
    monkeypatch.setattr(keeper, "_byte_s", 1.0)
    keeper.restore(place, shots + tails[0])
    assert (place.cached, keeper.reusable(place, shots + tails[0])) == ([], 0)
    # Where there is no memory for all that was saved, the prompt is read.
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(model, "put_sequence_state", no_memory)
        keeper.restore(place, shots + tails[0])
    assert (place.cached, len(saved_prompts(tmp_path))) == ([], 2)
    # Another model, or another context, finds nothing.
    other = PromptKeeper(cache, b"another model's.", print)
    other.restore(place, shots + tails[0])
    assert place.cached == []


def test_of_several_conversations_each_is_saved_from_its_slot(tmp_path, model, places, monkeypatch):
    monkeypatch.setattr(prompt_keeper, "CONVERSATION_TOKENS", 40)
    keeper = keeper_of(model, PromptCache(folder=tmp_path), print)
    ids = model.tokenize(RULES * 3, special=False)
    prompts = [ids[:200], ids[:150] + [1000] * 80]
    for place, prompt in zip(places, prompts, strict=True):
        keeper.note(prompt, lambda: 0, read_tokens=len(prompt), prefill_tps=100.0)
        place.read(prompt)
    places[0].write(7)
    keeper.wrote([*prompts[0], 7])  # the one that was noted first has ended last
    keeper.save(places, lambda: False)
    assert saved_prompts(tmp_path) == []  # somebody wanted the model
    keeper.save(places, lambda: True)
    assert sorted(one.tokens for one in saved_prompts(tmp_path)) == [150, 201, 230]
    keeper.save(places, lambda: True)
    # What a later one goes on from has no file of its own.
    longer = [*prompts[0], 7, *ids[300:360]]
    for prompt in (longer[:240], longer):
        keeper.note(prompt, lambda: 0, read_tokens=len(prompt), prefill_tps=100.0)
    places[0].read(longer)
    keeper.save(places, lambda: True)
    assert sorted(one.tokens for one in saved_prompts(tmp_path)) == [150, 230, len(longer)]


def test_a_model_that_keeps_no_part_saves_only_all_of_it(tmp_path, model, places, monkeypatch):
    monkeypatch.setattr(prompt_keeper, "CONVERSATION_TOKENS", 100)
    keeper = keeper_of(model, PromptCache(folder=tmp_path), print)
    ids = model.tokenize(RULES * 3, special=False)[:290]
    places[0].read(ids)
    monkeypatch.setattr(model._lib, "llama_memory_seq_rm", lambda *_: False)
    keeper.note(ids, lambda: 140, read_tokens=290, prefill_tps=100.0)
    keeper.save(places, lambda: True)
    assert [one.tokens for one in saved_prompts(tmp_path)] == [290]


def test_shared_tokens():
    ids = array("i", range(1000))
    for at in (0, 1, 255, 256, 257, 999):
        other = ids[:]
        other[at] = -1
        assert shared_tokens(ids, other) == shared_tokens(other, ids) == at
    assert shared_tokens(ids, ids[:300]) == 300
    assert shared_tokens(ids, array("i")) == 0


def test_saving_comes_once_after_work_and_again_if_it_gave_way():
    class Keeper:
        found = ()

        def save(self, caches, keeps_going):
            self.found = (caches, keeps_going())

    wanted, keeper = [], Keeper()
    saving = IdleSaving(keeper, lambda: ["a slot"], lambda: bool(wanted))
    assert saving.due_at == inf
    saving.worked(10.0)
    assert saving.due_at == 12.0
    wanted.append("an answer")
    saving.save(12.0)
    assert (keeper.found, saving.due_at) == ((["a slot"], False), 14.0)
    wanted.clear()
    saving.save(14.0)
    assert (keeper.found, saving.due_at) == ((["a slot"], True), inf)
    wanted.append("an answer")
    saving.last()  # before the model is freed nobody is asked
    assert keeper.found == (["a slot"], True)


def test_the_interpreter_waits_longer_at_its_exit_than_a_saving_may_take(monkeypatch):
    waits = []
    monkeypatch.setattr(engine, "_engines", [SimpleNamespace(close_now=waits.append)])
    engine._close_all()
    assert waits[0] > idle_saving.LAST_S


@pytest.mark.slow
async def test_saving_gives_way_to_a_request(tmp_path, monkeypatch):
    """A request that comes while a prompt is saved waits for one chunk at most, and the prompt is saved later."""
    monkeypatch.setattr(idle_saving, "IDLE_S", 0.05)
    entered, gave_way, save = [], [], PromptKeeper._save

    def slow(keeper, *given):
        if gave_way:
            return save(keeper, *given)
        keeps_going = given[-1]
        entered.append(True)
        while keeps_going():
            time.sleep(0.001)
        gave_way.append(True)
        return False

    monkeypatch.setattr(PromptKeeper, "_save", slow)
    async with opened(tmp_path) as endpoint:
        await complete(endpoint, ask("What is a spade?"))
        await until(lambda: entered)
        assert endpoint.capabilities().waiting == 0
        await complete(endpoint, ask("What is a rake?"))
        assert gave_way == [True]
        await until(lambda: len(saved_prompts(tmp_path)) == 1)
