"""What was read before a restart is not read again, and nothing else changes."""

from __future__ import annotations

import logging
import sys
import time
from array import array
from math import inf
from types import SimpleNamespace

import pytest

from disco.candidate import PromptSize
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.runtime import upkeep as upkeep_module
from disco.endpoints.llamacpp.runtime import worker as worker_module
from disco.endpoints.llamacpp.runtime.upkeep import Upkeep
from disco.endpoints.llamacpp.saving import prompt_keeper
from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper, keeper_of, shared_tokens
from disco.endpoints.llamacpp.saving.saving_job import SavePrompts
from disco.endpoints.saved_prompts import PromptCache, saved_prompts
from disco.endpoints.saved_prompts.prompt_file import read_all
from disco.request import Request
from tests.endpoints.llamacpp.answers import complete, fresh, until

pytestmark = [pytest.mark.real, pytest.mark.anyio]

RULES = " ".join(f"Rule {n}: of tool {n} say that it costs {7 * n} euros." for n in range(12))
SYSTEM = {"role": "system", "content": f"You sell garden tools. {RULES}"}
ISOLATIONS = pytest.mark.parametrize(
    "isolation",
    [
        "thread",
        pytest.param(
            "process",
            marks=[pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals")],
        ),
    ],
)


def ask(question, *history, may_be_saved=True, max_tokens=8):
    messages = [SYSTEM, *history, {"role": "user", "content": question}]
    return Request(messages, "m", {"temperature": 0, "max_tokens": max_tokens}, may_be_saved=may_be_saved)


def opened(folder, **options):
    return fresh(context_tokens=1024, prompt_cache=folder, **options)


@pytest.fixture(scope="module")
def loaded():
    path = resolve_model("smollm2-135m")
    sizes = {"context_tokens": 1024, "threads": 1, "batch_tokens": 64, "gpu_layers": 0}
    model = NativeModel(path, **sizes, keep_loading=lambda: True)
    yield model
    model.close()


@pytest.fixture
def model(loaded):
    """A model with an empty cache."""
    loaded.forget()
    return loaded


def read(model, ids):
    done = model.reuse(ids)
    while done < len(ids):
        end = min(len(ids), (done // 64 + 1) * 64)
        model.decode(ids[done:end])
        done = end
    return model.logits().copy()


def test_a_state_that_is_taken_back_gives_the_same_numbers(model):
    ids = model.tokenize(RULES * 2, special=False)[:260]
    before = read(model, ids)
    part, whole = bytearray(model.state(200)), bytearray(model.state(260))
    assert (model.logits() == before).all()  # saving has changed nothing
    model.decode([5])
    behind = model.logits().copy()
    model.keep(200)
    live = read(model, ids)
    assert model.put_state(ids[:200], part)
    assert model.cached == ids[:200]
    assert (read(model, ids) == live).all()
    assert model.put_state(ids, whole)
    model.decode([5])
    assert (model.logits() == behind).all()
    # What does not belong together is refused, and leaves an empty cache.
    for wrong in (whole[:-1], bytearray(b"x" * 50), whole):
        assert not model.put_state(ids[:-1], wrong)
        assert (model.cached, model.reuse(ids)) == ([], 0)


def test_a_saving_for_which_there_is_no_memory_leaves_the_cache_as_it_was(model, monkeypatch):
    ids = model.tokenize(RULES, special=False)[:100]
    before = read(model, ids)
    states = iter([model._state()])  # of all; for that of a part there is no memory

    def state():
        found = next(states, None)
        if found is None:
            raise MemoryError
        return found

    monkeypatch.setattr(model, "_state", state)
    with pytest.raises(MemoryError):
        model.state(60)
    assert model.cached == ids
    assert (model.logits() == before).all()
    model.decode([5])
    behind = model.logits().copy()
    model.forget()
    read(model, ids)
    model.decode([5])
    assert (model.logits() == behind).all()


@ISOLATIONS
async def test_a_restart_costs_only_what_is_new_and_the_answer_is_the_same(isolation, tmp_path):
    async with opened(tmp_path, isolation=isolation) as endpoint:
        await complete(endpoint, ask("What is a spade?"))
        text, _, live = await complete(endpoint, ask("How much is tool 3?"))
    (saved,) = saved_prompts(tmp_path)
    assert saved.tokens == live.usage.cached_tokens > 128
    async with opened(tmp_path, isolation=isolation) as endpoint:
        await endpoint.warm_up()
        if isolation == "thread":
            size = await endpoint.prompt_size(ask("How much is tool 3?"), 10)
            assert size == PromptSize(live.usage.prompt_tokens, saved.tokens)
        again, _, ended = await complete(endpoint, ask("How much is tool 3?"))
        assert (again, ended.usage) == (text, live.usage)
    assert [one.file for one in saved_prompts(tmp_path)] == [saved.file]


@pytest.mark.slow
@ISOLATIONS
async def test_it_is_saved_while_the_model_idles_and_a_damaged_file_costs_a_warning(
    isolation, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(upkeep_module, "IDLE_S", 0.05)
    caplog.set_level(logging.WARNING, "disco")
    async with opened(tmp_path, isolation=isolation) as endpoint:
        text, _, _ = await complete(endpoint, ask("What is a spade?"))
        await until(lambda: len(saved_prompts(tmp_path)) == 1)
        assert endpoint.capabilities().waiting == 0
        (path,) = tmp_path.iterdir()
        data = bytearray(path.read_bytes())
        data[-1000] ^= 1
        path.write_bytes(data)
    assert caplog.records == []
    async with opened(tmp_path, isolation=isolation) as endpoint:
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


def test_what_is_worth_saving(tmp_path, model, monkeypatch):
    """Few-shot examples that several prompts begin with count as a system message does; a repeated prompt does not."""
    cache = PromptCache(folder=tmp_path)
    keeper = keeper_of(model, cache, print)
    ids = model.tokenize(RULES * 3, special=False)
    shots, tails = ids[:150], ([1000] * 30, [2000] * 30)

    def noted(prompt, leading=0):
        keeper.note(prompt, lambda: leading, read_tokens=len(prompt), prefill_tps=100.0)
        read(model, prompt)
        keeper.save(model, lambda: True)
        return sorted(one.tokens for one in saved_prompts(tmp_path))

    assert noted(shots[:100], 90) == []  # too short
    assert noted(shots + tails[0]) == []
    assert noted(shots + tails[0]) == []  # the same again is no beginning of others
    assert noted(shots + tails[1]) == [150]
    assert noted(shots + tails[0], 140) == [150]
    assert noted(ids[50:], 0) == [150, len(ids) - 50]
    # The keeper knows how long reading takes, and does not take back what is read sooner.
    model.forget()
    keeper.restore(model, shots + tails[0])
    assert model.length == 150
    model.forget()
    monkeypatch.setattr(keeper, "_byte_s", 1.0)
    keeper.restore(model, shots + tails[0])
    assert (model.length, keeper.reusable(model, shots + tails[0])) == (0, 0)
    # Another model, or another context, finds nothing.
    other = PromptKeeper(cache, b"another model's.", print)
    other.restore(model, shots + tails[0])
    assert model.length == 0


def test_a_model_that_keeps_no_part_saves_only_all_of_it(tmp_path, model, monkeypatch):
    monkeypatch.setattr(prompt_keeper, "CONVERSATION_TOKENS", 100)
    keeper = keeper_of(model, PromptCache(folder=tmp_path), print)
    ids = model.tokenize(RULES * 3, special=False)[:290]
    read(model, ids)
    monkeypatch.setattr(model._lib, "llama_memory_seq_rm", lambda *_: False)
    keeper.note(ids, lambda: 140, read_tokens=290, prefill_tps=100.0)
    keeper.save(model, lambda: True)
    assert [one.tokens for one in saved_prompts(tmp_path)] == [290]


def test_shared_tokens():
    ids = array("i", range(1000))
    for at in (0, 1, 255, 256, 257, 999):
        other = ids[:]
        other[at] = -1
        assert shared_tokens(ids, other) == shared_tokens(other, ids) == at
    assert shared_tokens(ids, ids[:300]) == 300
    assert shared_tokens(ids, array("i")) == 0


def test_upkeep_comes_once_after_work_and_again_if_it_gave_way():
    upkeep = Upkeep(SavePrompts)
    assert upkeep.due_in_s(0) == inf
    work = SavePrompts()
    upkeep.served(work, 10)
    assert (upkeep.due_in_s(10), upkeep.due_in_s(11.5), upkeep.due_in_s(20)) == (2.0, 0.5, 0)
    job = upkeep.begin()
    assert upkeep.due_in_s(20) == inf
    job.flag.set()
    upkeep.served(job, 21)
    assert (upkeep.due_in_s(21), upkeep.running) == (2.0, None)
    upkeep.served(upkeep.begin(), 30)
    assert upkeep.due_in_s(30) == inf
    assert not upkeep.may_go_on(40)
    assert upkeep.last(40).order() == ("save_prompts", {"within_s": 5.0})
    assert (upkeep.may_go_on(44.9), upkeep.may_go_on(45)) == (True, False)
    none = Upkeep(None)
    none.served(work, 0)
    assert (none.due_in_s(9), none.last(9)) == (inf, None)


def test_the_interpreter_waits_longer_at_its_exit_than_a_saving_may_take(monkeypatch):
    waits = []
    worker = SimpleNamespace(close_now=waits.append)
    monkeypatch.setattr(worker_module, "_workers", [worker])
    worker_module._close_all()
    assert waits[0] > upkeep_module.LAST_S


@pytest.mark.slow
async def test_saving_gives_way_to_a_request(tmp_path, monkeypatch):
    """A request that comes while a prompt is saved waits for one chunk at most, and the prompt is saved later."""
    monkeypatch.setattr(upkeep_module, "IDLE_S", 0.05)
    entered, gave_way, save = [], [], PromptKeeper._save

    def slow(keeper, model, keeps_going):
        if gave_way:
            return save(keeper, model, keeps_going)
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
