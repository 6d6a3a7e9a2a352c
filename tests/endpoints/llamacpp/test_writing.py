"""The real model: what it writes, how it goes on with a text, is stopped and measured, and what it fails with."""

from __future__ import annotations

import threading
import time

import anyio
import anyio.lowlevel
import openai
import pytest
from loops import mostly

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.errors import ConfigurationError, FailureKind, LocalModelError
from disco.request import Prefix
from tests.endpoints.conformance import next_event
from tests.endpoints.llamacpp.answers import ask, complete, fails, fresh

pytestmark = [pytest.mark.real, pytest.mark.anyio]


@mostly("trio")
async def test_with_its_own_ids_and_a_warm_cache_a_continuation_is_the_same_answer(
    thread_model, anyio_backend
):
    whole, deltas, ended = await complete(thread_model, ask(max_tokens=12))
    assert [delta.tokens for delta in deltas] == [1] * 12
    spell = thread_model._worker.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    assert (ended.finish_reason, ended.usage.completion_tokens) == ("length", 12)
    ids = tuple(token for delta in deltas[:8] for token in delta.ids)
    known = {"tokens": 8, "vocabulary": thread_model.capabilities().vocabulary}
    prefix = Prefix("".join(delta.text for delta in deltas[:8]), ids=ids, **known)
    rest, _, ended = await complete(thread_model, ask(max_tokens=12), prefix)
    assert prefix.text + rest == whole
    assert (ended.usage.completion_tokens, ended.usage.prompt_tokens - ended.usage.cached_tokens) == (4, 1)
    # Ids that do not spell the text are not believed.
    expected, _, _ = await complete(thread_model, ask(max_tokens=12), Prefix("Paris is the", tokens=8))
    for odd in ((5, 6, 7), (10**9,)):
        prefix = Prefix("Paris is the", ids=odd, **known)
        assert (await complete(thread_model, ask(max_tokens=12), prefix))[0] == expected


async def test_a_stop_string_across_token_borders_is_never_shown(thread_model):
    whole, deltas, _ = await complete(thread_model, ask(max_tokens=12))
    at = len("".join(delta.text for delta in deltas[:6])) - 2
    stop = whole[at : at + 5]  # from inside one token to inside another
    text, _, ended = await complete(thread_model, ask(stop=[stop, "\x00"]))
    assert (text, ended.finish_reason) == (whole[: whole.index(stop)], "stop")
    # Also where it begins in what another endpoint wrote.
    text, _, ended = await complete(thread_model, ask(stop=stop), Prefix(whole[: at + 2], tokens=6))
    assert (text, ended.finish_reason) == ("", "stop")


async def test_seeds_penalties_and_biases_hold_and_log_probabilities_are_the_models(thread_model):
    asked = [ask(max_tokens=8, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [(await complete(thread_model, one))[0] for one in asked]
    assert texts[0] == texts[1] != texts[2]
    prefix = Prefix("one two one two one two one two one", tokens=9)  # penalties look at it, too
    for penalty, says_two in ((0.0, True), (2.0, False)):
        text, _, _ = await complete(
            thread_model, ask("Count.", max_tokens=11, frequency_penalty=penalty), prefix
        )
        assert text.startswith(" two") is says_two
    _, (delta,), _ = await complete(thread_model, ask(max_tokens=1, logprobs=True, top_logprobs=3))
    openai.types.chat.chat_completion_chunk.ChoiceLogprobs.model_validate(delta.logprobs)
    (entry,) = delta.logprobs["content"]
    assert entry["token"] == delta.text == entry["top_logprobs"][0]["token"]
    assert bytes(entry["bytes"]) == delta.text.encode()
    values = [one["logprob"] for one in entry["top_logprobs"]]
    assert 0 > entry["logprob"] == values[0] >= values[1] >= values[2]
    banned = {str(delta.ids[0]): -100}
    _, (other,), _ = await complete(thread_model, ask(max_tokens=1, logit_bias=banned))
    assert other.text == entry["top_logprobs"][1]["token"]


CUT = "Paris's café—漢字 🎉 beauti\n\n  lit; x=f(3)"


async def test_it_continues_exactly_wherever_the_text_is_cut(thread_model):
    model = thread_model._worker.model
    for at in range(2, len(CUT) + 1, 3):
        text = CUT[:at]
        word_at = max((i for i, c in enumerate(text) if c.isspace()), default=0)
        prefix = Prefix(text, tokens=1, withheld=text[word_at:])
        rest, deltas, ended = await complete(thread_model, ask(max_tokens=3), prefix)
        # What is in the cache is what the model was made to write: exactly the text and the first token
        # after it; the second one was never computed.
        written = b"".join(model.piece(token) for token in model._cached)
        answer = written[written.rindex(b"assistant\n") + len(b"assistant\n") :]
        delivered = (text + rest).encode()
        assert len(answer) >= len(text.encode())
        common = min(len(answer), len(delivered))  # the end may be an unfinished character
        assert answer[:common] == delivered[:common]
        assert all(one.ids is None or model.spell(one.ids) == one.text.encode() for one in deltas[:1])
        assert ended.usage.completion_tokens <= 2
    prefix = Prefix("The capital of France is Par", tokens=6, withheld=" Par")
    rest, deltas, _ = await complete(
        thread_model, ask("What is the capital of France?", max_tokens=8), prefix
    )
    assert rest.startswith("is")
    assert deltas[0].ids is None  # its token also spells what was withheld
    _, _, plain = await complete(thread_model, ask(max_tokens=2), Prefix("It is ", tokens=1))
    _, _, quoted = await complete(thread_model, ask(max_tokens=2), Prefix("It is <|im_end|>", tokens=1))
    # As a control token it would be a single one.
    assert quoted.usage.prompt_tokens - plain.usage.prompt_tokens > 2


async def test_the_context_ends_the_answer_and_refuses_what_does_not_fit():
    unending = {"2": -100, "0": -100}
    async with fresh(context_tokens=64) as endpoint:
        _, _, ended = await complete(endpoint, ask(max_tokens=None, logit_bias=unending))
        assert ended.finish_reason == "length"
        assert ended.usage.prompt_tokens + ended.usage.completion_tokens == 64
        failure = await fails(endpoint, ask("secret " * 100))
        assert (failure.kind, "64" in str(failure.error)) == (FailureKind.CONTEXT_LENGTH, True)
        assert (await complete(endpoint, ask(max_tokens=2)))[0]


@pytest.mark.parametrize("name", ["thread_model", "process_model"])
async def test_measuring_gives_times_and_rates(name, request):
    model, steps = request.getfixturevalue(name), []
    measured = await model.measure(
        prompt_tokens=(8, 16, 10**6), depths=(8,), decode_tokens=4, progress=lambda *step: steps.append(step)
    )
    assert [one.tokens for one in measured.prefill] == [8, 16]
    assert all(one.seconds_s > 0 for one in measured.prefill)
    assert (measured.decode[0].depth_tokens, measured.decode[0].tps > 0) == (8, True)
    # To start an interpreter takes that long.
    assert measured.load_s > (0 if model.process_id is None else 0.1)
    assert (steps, measured.batch_tokens) == ([(1, 3), (2, 3), (3, 3)], 64)


async def test_a_full_queue_refuses_and_says_so():
    endpoint = LlamaCppEndpoint(model="nowhere.gguf", max_queue=1)
    endpoint._worker._thread = threading.current_thread()  # nothing works on the queue
    waiting = endpoint.open(ask())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.__anext__)
            await anyio.lowlevel.checkpoint()
            failure = await fails(endpoint, ask())
            assert (failure.kind, "max_queue" in str(failure.error)) == (FailureKind.RATE_LIMIT, True)
            group.cancel_scope.cancel()
    # Cancelling freed its place.
    with anyio.move_on_after(0.01) as scope:
        await next_event(endpoint.open(ask()))
    assert scope.cancelled_caught


async def test_a_model_that_llama_cpp_refuses_says_why(tmp_path, thread_model, capfd):
    whole = bytearray(thread_model._worker.model.path.read_bytes())
    at = whole.index(b"llama", whole.index(b"general.architecture"))
    whole[at : at + 5] = b"lxama"
    path = tmp_path / "unknown.gguf"
    path.write_bytes(whole)
    async with fresh(model=path) as endpoint:
        with pytest.raises(LocalModelError, match="lxama"):
            await endpoint.warm_up()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # llama.cpp has a lot to say about it


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_chat_template_that_is_none_is_a_mistake_and_no_crash(isolation):
    async with fresh(chat_template="{% for", isolation=isolation) as endpoint:
        with pytest.raises(ConfigurationError, match="chat_template"):
            await endpoint.warm_up()
        assert endpoint.process_id is None
        assert endpoint._worker._backoff.left_s(time.monotonic()) == 0


async def test_a_chat_template_that_refuses_the_messages_is_a_bad_request(thread_model, monkeypatch):
    refusing = Renderer(thread_model._worker.model, "{{ raise_exception(messages[0].content) }}")
    monkeypatch.setattr(thread_model, "_renderer", refusing)
    assert (await fails(thread_model, ask("my secret"))).kind is FailureKind.BAD_REQUEST


async def test_after_a_crash_the_model_is_loaded_again(monkeypatch):
    def crash(self, ids):
        raise OSError("secret")

    async with fresh() as endpoint:
        await endpoint.warm_up()
        with monkeypatch.context() as patch:
            patch.setattr(NativeModel, "decode", crash)
            failure = await fails(endpoint, ask())
        assert (failure.kind, type(failure.error)) == (FailureKind.CRASHED, LocalModelError)
        assert "failed while it worked" in str(failure.error)
        assert not endpoint.capabilities().ready
        assert (await complete(endpoint, ask(max_tokens=2)))[0]
