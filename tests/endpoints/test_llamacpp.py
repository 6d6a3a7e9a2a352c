"""The llama.cpp endpoint with a real model, beyond what the conformance suite asks of every endpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import anyio
import anyio.lowlevel
import openai
import pytest
from loops import mostly
from promptly import promptly

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError, ModelFileError
from disco.events import Ended, Started, Usage
from disco.request import Prefix, Request
from tests.endpoints.conformance import next_event

pytest.importorskip("llama_cpp")

pytestmark = pytest.mark.anyio

NOTHING = Prefix()
PARIS = "Write two sentences about Paris."


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def endpoint():
    endpoint = LlamaCppEndpoint(context_tokens=2048, threads=1)
    anyio.run(endpoint.warm_up)
    yield endpoint
    anyio.run(endpoint.aclose)


def ask(content=PARIS, max_tokens=20, **params):
    params = {"temperature": 0, "max_tokens": max_tokens, **params}
    return Request(messages=[{"role": "user", "content": content}], model="server-model", params=params)


async def complete(endpoint, request, prefix=NOTHING):
    """Text, deltas and the end of one attempt."""
    deltas = []
    async with endpoint.open(request, prefix) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                assert event.usage == attempt.usage
                return "".join(delta.text for delta in deltas), deltas, event
            if not isinstance(event, Started):
                deltas += event
    raise AssertionError("no Ended")


async def drain(attempt):
    async for _ in attempt:
        pass


async def first_delta(attempt):
    (delta, *_) = await next_event(attempt)
    return delta


# Writing


@mostly("trio")
async def test_one_delta_per_token_with_ids_that_spell_it(endpoint, anyio_backend):
    text, deltas, ended = await complete(endpoint, ask(max_tokens=12))
    assert text
    assert [delta.tokens for delta in deltas] == [1] * 12
    spell = endpoint._worker.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    assert ended.finish_reason == "length"
    assert ended.usage.completion_tokens == 12


async def test_the_same_seed_gives_the_same_answer_and_another_one_another(endpoint):
    texts = [
        (await complete(endpoint, ask(max_tokens=10, temperature=1.5, seed=seed)))[0] for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


async def test_characters_of_several_tokens_arrive_whole(endpoint):
    request = ask("Repeat: 🎉🦜🎉🦜🎉🦜🎉🦜🎉🦜", max_tokens=16)
    text, deltas, _ = await complete(endpoint, request, Prefix("🎉🦜🎉🦜🎉🦜🎉", tokens=2))
    several = [delta for delta in deltas if delta.tokens > 1]
    assert several, f"the model wrote no such character: {text!r}"
    for delta in several:
        assert endpoint._worker.model.spell(delta.ids) == delta.text.encode()


async def test_a_stop_string_across_token_borders_is_never_shown(endpoint):
    whole, deltas, _ = await complete(endpoint, ask())
    at = len("".join(delta.text for delta in deltas[:6])) - 2
    stop = whole[at : at + 5]  # from inside one token to inside another
    text, _, ended = await complete(endpoint, ask(stop=[stop, "\x00"]))
    assert text == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"
    # Also where it begins in what somebody else wrote.
    text, _, ended = await complete(endpoint, ask(stop=stop), Prefix(whole[: at + 2], tokens=6))
    assert (text, ended.finish_reason) == ("", "stop")


async def test_penalties_look_at_the_prefix_too(endpoint):
    prefix = Prefix("one two one two one two one two one", tokens=9)
    free, _, _ = await complete(endpoint, ask("Count.", max_tokens=12), prefix)
    assert free.startswith(" two")
    text, _, _ = await complete(endpoint, ask("Count.", max_tokens=12, frequency_penalty=2.0), prefix)
    assert not text.startswith(" two")


async def test_logit_bias_bans_and_log_probabilities_are_the_models(endpoint):
    _, (delta,), _ = await complete(endpoint, ask(max_tokens=1, logprobs=True, top_logprobs=3))
    (entry,) = delta.logprobs["content"]
    assert entry["token"] == delta.text == entry["top_logprobs"][0]["token"]
    assert bytes(entry["bytes"]) == delta.text.encode()
    values = [one["logprob"] for one in entry["top_logprobs"]]
    assert values[0] == entry["logprob"]
    assert 0 > values[0] >= values[1] >= values[2]
    (token,) = delta.ids
    openai.types.chat.chat_completion_chunk.ChoiceLogprobs.model_validate(delta.logprobs)
    _, (other,), _ = await complete(
        endpoint, ask(max_tokens=1, logit_bias={str(token): -100}, logprobs=True, top_logprobs=2)
    )
    assert other.text == entry["top_logprobs"][1]["token"]


async def test_a_json_schema_shapes_the_answer(endpoint):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    text, _, ended = await complete(endpoint, ask("A number?", max_tokens=40, response_format=form))
    assert ended.finish_reason == "stop"
    assert isinstance(json.loads(text)["n"], int)


# Continuing


async def test_with_its_own_ids_and_a_warm_cache_a_continuation_is_the_same_answer(endpoint):
    whole, deltas, _ = await complete(endpoint, ask(max_tokens=20))
    before = deltas[:8]
    prefix = Prefix(
        "".join(delta.text for delta in before),
        tokens=8,
        ids=tuple(token for delta in before for token in delta.ids),
        vocabulary=endpoint.capabilities().vocabulary,
    )
    rest, _, ended = await complete(endpoint, ask(max_tokens=20), prefix)
    assert prefix.text + rest == whole
    assert ended.usage.completion_tokens == 12
    assert ended.usage.cached_tokens == ended.usage.prompt_tokens - 1


async def test_ids_that_do_not_spell_the_text_are_not_believed(endpoint):
    vocabulary = endpoint.capabilities().vocabulary
    expected, _, _ = await complete(endpoint, ask(max_tokens=12), Prefix("Paris is the", tokens=3))
    for ids in ((5, 6, 7), (10**9,)):
        prefix = Prefix("Paris is the", tokens=3, ids=ids, vocabulary=vocabulary)
        assert (await complete(endpoint, ask(max_tokens=12), prefix))[0] == expected


async def test_a_control_token_written_as_text_stays_text(endpoint):
    _, _, plain = await complete(endpoint, ask(max_tokens=3), Prefix("It is ", tokens=1))
    _, _, quoted = await complete(endpoint, ask(max_tokens=3), Prefix("It is <|im_end|>", tokens=1))
    # As a control token it would be a single one.
    assert quoted.usage.prompt_tokens - plain.usage.prompt_tokens > 2
    assert quoted.usage.completion_tokens == 2


CUT = "Paris's café—naïve, 漢字 and 🎉 too—is beauti\n\n  lit; x=f(3)"


async def test_it_continues_exactly_wherever_the_text_is_cut(endpoint):
    model = endpoint._worker.model
    for at in range(1, len(CUT) + 1):
        text = CUT[:at]
        word_at = max((i for i, c in enumerate(text) if c.isspace()), default=0)
        withheld = text[word_at:]
        rest, deltas, ended = await complete(
            endpoint, ask(max_tokens=3), Prefix(text, tokens=1, budget_cuts=withheld)
        )
        # What is in the cache is what the model was made to write: exactly the text and the first token
        # after it; the second one was never computed.
        written = b"".join(model.piece(token) for token in model._cached)
        answer = written[written.rindex(b"assistant\n") + len(b"assistant\n") :]
        delivered = (text + rest).encode()
        assert len(answer) >= len(text.encode())
        common = min(len(answer), len(delivered))  # the end may be an unfinished character
        assert answer[:common] == delivered[:common]
        if deltas:
            first = deltas[0]
            assert first.ids is None or model.spell(first.ids) == first.text.encode()
        assert ended.usage.completion_tokens <= 2


async def test_healing_may_run_past_what_was_withheld(endpoint):
    request = ask("What is the capital of France?", max_tokens=12)
    rest, deltas, _ = await complete(
        endpoint, request, Prefix("The capital of France is Par", tokens=6, withheld=" Par")
    )
    assert rest.startswith("is")
    assert deltas[0].ids is None  # its token also spells what was withheld


# Limits


async def test_max_tokens_counts_the_prefix(endpoint):
    for limit, tokens in ((7, 2), (6, 1)):
        _, deltas, ended = await complete(
            endpoint, ask(max_tokens=limit), Prefix("Paris is a city", tokens=5)
        )
        assert sum(delta.tokens for delta in deltas) == ended.usage.completion_tokens == tokens
        assert ended.finish_reason == "length"
    text, _, ended = await complete(endpoint, ask(max_tokens=5), Prefix("Paris is a city", tokens=5))
    assert (text, ended) == ("", Ended("length", Usage()))


async def test_the_context_ends_the_answer_and_refuses_what_does_not_fit():
    endpoint = LlamaCppEndpoint(context_tokens=64, threads=1)
    try:
        _, _, ended = await complete(endpoint, ask(max_tokens=None, logit_bias={"2": -100, "0": -100}))
        assert ended.finish_reason == "length"
        assert ended.usage.prompt_tokens + ended.usage.completion_tokens == 64
        with pytest.raises(EndpointFailure) as caught:
            await complete(endpoint, ask("word " * 100))
        assert caught.value.kind is FailureKind.CONTEXT_LENGTH
        assert "64" in str(caught.value.error)
        assert "word word" not in str(caught.value.error)
        text, _, _ = await complete(endpoint, ask(max_tokens=2))
        assert text
    finally:
        await endpoint.aclose()


# Stopping


async def cold(endpoint):
    """Fill the cache with something else, so that two runs begin alike."""
    await complete(endpoint, ask("Something else.", max_tokens=1))


@mostly("trio")
async def test_stopping_while_it_decodes(endpoint, anyio_backend):
    await cold(endpoint)
    whole, _, _ = await complete(endpoint, ask(max_tokens=10))
    await cold(endpoint)
    async with endpoint.open(ask(max_tokens=1000)) as attempt:
        await first_delta(attempt)
        with promptly(1.0):  # a token takes some milliseconds
            await attempt.aclose()
        usage = attempt.usage
        assert usage.completion_tokens >= 1
        await anyio.sleep(0.1)
        assert attempt.usage == usage  # nothing of it runs any more
        with pytest.raises(StopAsyncIteration):
            await next_event(attempt)
    await cold(endpoint)
    assert (await complete(endpoint, ask(max_tokens=10)))[0] == whole


async def read_in_part(attempt, more_than=0):
    """Have some more of a prompt read, and leave it there."""
    async with anyio.create_task_group() as group:
        group.start_soon(next_event, attempt)
        with anyio.fail_after(60):
            while attempt.usage.prompt_tokens <= more_than:  # noqa: ASYNC110 - it is another thread's state
                await anyio.sleep(0.005)
        group.cancel_scope.cancel()


@mostly("asyncio")
async def test_stopping_while_it_prefills(endpoint, anyio_backend):
    long = ask("river " * 1500, max_tokens=5)
    await cold(endpoint)
    async with endpoint.open(long) as attempt:
        await read_in_part(attempt)
        with promptly(1.0):
            await attempt.aclose()
        done = attempt.usage
    assert 0 < done.prompt_tokens < 1500
    assert done.completion_tokens == 0
    # Whole batches of it are kept, and the next request is right.
    async with endpoint.open(long) as attempt:
        await read_in_part(attempt, more_than=done.prompt_tokens)
    assert attempt.usage.cached_tokens == done.prompt_tokens
    await cold(endpoint)
    whole, _, _ = await complete(endpoint, ask(max_tokens=6))
    await cold(endpoint)
    async with endpoint.open(long) as attempt:
        await read_in_part(attempt)
    await cold(endpoint)
    assert (await complete(endpoint, ask(max_tokens=6)))[0] == whole


async def test_what_waits_in_the_queue_is_cancelled_without_touching_the_model(endpoint):
    async with endpoint.open(ask(max_tokens=1000)) as running, anyio.create_task_group() as group:
        await first_delta(running)
        waiting = endpoint.open(ask("Another question."))
        with anyio.move_on_after(0.2):
            await next_event(waiting)
        with promptly(1.0):
            await waiting.aclose()
        assert waiting.usage == Usage()
        assert isinstance(await next_event(running), list)  # undisturbed
        group.cancel_scope.cancel()


async def test_two_at_once_take_turns(endpoint):
    order = []

    async def one(name):
        async with endpoint.open(ask(max_tokens=6)) as attempt:
            async for event in attempt:
                order.append(name)
                assert event

    async with anyio.create_task_group() as group:
        group.start_soon(one, "a")
        group.start_soon(one, "b")
    assert sorted(order) == order or sorted(order, reverse=True) == order


async def test_a_full_queue_refuses_and_says_so():
    endpoint = LlamaCppEndpoint(model="nowhere.gguf", max_queue=1)
    endpoint._worker._thread = threading.current_thread()  # nobody works on the queue
    waiting = endpoint.open(ask())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.__anext__)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(EndpointFailure) as caught:
                await next_event(endpoint.open(ask()))
            assert caught.value.kind is FailureKind.RATE_LIMIT
            assert "max_queue" in str(caught.value.error)
            group.cancel_scope.cancel()
    # Cancelling freed its place.
    with anyio.move_on_after(0.01) as scope:
        await next_event(endpoint.open(ask()))
    assert scope.cancelled_caught


async def test_parking_keeps_the_prefill_for_the_next_attempt(endpoint):
    await cold(endpoint)
    request = ask("Tell me about the river Seine, its bridges and its islands.", max_tokens=3)
    attempt = endpoint.open(request)
    assert attempt.park()
    assert (parked := await next_event(attempt)).finish_reason == "parked"
    assert parked.usage.completion_tokens == 0
    assert parked.usage.prompt_tokens > 40
    await attempt.aclose()
    assert not attempt.park()
    _, _, ended = await complete(endpoint, request)
    assert ended.usage.cached_tokens == ended.usage.prompt_tokens == parked.usage.prompt_tokens


async def test_closing_while_it_works_leaves_no_thread():
    before = set(threading.enumerate())
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1, name="closing")
    attempt, waiting = endpoint.open(ask(max_tokens=400)), endpoint.open(ask())
    await first_delta(attempt)
    errors = []

    async def wait():
        with pytest.raises(EndpointFailure) as caught:
            await next_event(waiting)
        errors.append(caught.value)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.sleep(0.05)
        with promptly():
            await endpoint.aclose()
    assert set(threading.enumerate()) <= before
    assert "closed" in str(errors[0].error)
    with pytest.raises(EndpointFailure):
        await drain(attempt)
    with pytest.raises(EndpointFailure, match="crashed"):
        await next_event(endpoint.open(ask()))
    await endpoint.aclose()
    assert not endpoint.capabilities().ready


def test_the_worker_outlives_an_event_loop(endpoint):
    attempts = []

    async def leave_it_running():
        attempts.append(endpoint.open(ask(max_tokens=2000)))
        await first_delta(attempts[0])

    async def next_one():
        with anyio.fail_after(60):
            return await complete(endpoint, ask(max_tokens=3))

    anyio.run(leave_it_running, backend="trio")
    assert anyio.run(next_one)[2].usage.completion_tokens == 3
    assert attempts[0].usage.completion_tokens < 1900


FORGETFUL = """
import anyio
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.request import Request

async def main():
    endpoint = LlamaCppEndpoint(context_tokens=512, threads=1)
    attempt = endpoint.open(Request([{"role": "user", "content": "Hello."}], "m", {"max_tokens": 400}))
    print(bool(await anext(attempt)))

anyio.run(main)
"""


def test_a_program_that_forgets_to_close_ends_quietly():
    done = subprocess.run(
        [sys.executable, "-c", FORGETFUL],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# Failing


@mostly("trio")
async def test_what_is_wrong_with_a_file_reaches_everybody_who_waits(tmp_path, anyio_backend):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but not really")
    endpoint = LlamaCppEndpoint(model=path)
    failures = []

    async def one():
        with pytest.raises(EndpointFailure) as caught:
            await complete(endpoint, ask())
        failures.append(caught.value)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(one)
    assert [failure.kind for failure in failures] == [FailureKind.CRASHED] * 3
    assert all(isinstance(failure.error, ModelFileError) for failure in failures)
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        await endpoint.warm_up()
    assert endpoint.capabilities().context_tokens is None
    await endpoint.aclose()


async def test_a_model_that_llama_cpp_refuses_says_why(tmp_path, endpoint, capfd):
    whole = bytearray(endpoint._worker.model.path.read_bytes())
    at = whole.index(b"llama", whole.index(b"general.architecture"))
    whole[at : at + 5] = b"lxama"
    path = tmp_path / "unknown.gguf"
    path.write_bytes(whole)
    other = LlamaCppEndpoint(model=path)
    with pytest.raises(LocalModelError, match="lxama"):
        await other.warm_up()
    await other.aclose()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # llama.cpp has a lot to say about it


async def test_a_chat_template_can_be_given_and_must_be_one():
    endpoint = LlamaCppEndpoint(chat_template="{% for")
    with pytest.raises(ConfigurationError, match="chat_template"):
        await endpoint.warm_up()
    await endpoint.aclose()


@pytest.mark.parametrize("option", ["context_tokens", "threads", "batch_tokens", "max_queue"])
async def test_numbers_out_of_range_are_refused_at_once(option):
    with pytest.raises(ConfigurationError, match=option):
        LlamaCppEndpoint(**{option: 0})


async def test_after_a_crash_the_model_is_loaded_again(monkeypatch):
    endpoint = LlamaCppEndpoint(context_tokens=256, threads=1)
    await endpoint.warm_up()
    with monkeypatch.context() as patch:

        def crash(self, ids):
            raise OSError("secret")

        patch.setattr(NativeModel, "decode", crash)
        with pytest.raises(EndpointFailure) as caught:
            await complete(endpoint, ask())
        assert caught.value.kind is FailureKind.CRASHED
        assert isinstance(caught.value.error, LocalModelError)
        assert "secret" not in str(caught.value.error)
    assert not endpoint.capabilities().ready
    try:
        text, _, _ = await complete(endpoint, ask(max_tokens=2))
        assert text
    finally:
        await endpoint.aclose()


async def test_the_template_refusing_messages_is_a_bad_request():
    endpoint = LlamaCppEndpoint(
        context_tokens=256, threads=1, chat_template="{{ raise_exception(messages[0].content) }}"
    )
    try:
        with pytest.raises(EndpointFailure) as caught:
            await complete(endpoint, ask("my secret"))
        assert caught.value.kind is FailureKind.BAD_REQUEST
        assert "secret" not in str(caught.value.error)
    finally:
        await endpoint.aclose()


# Measuring


async def test_measuring_gives_times_and_rates(endpoint):
    steps = []
    measured = await endpoint.measure(
        prompt_tokens=(8, 16, 10**6), depths=(8,), decode_tokens=4, progress=lambda *step: steps.append(step)
    )
    assert [one.tokens for one in measured.prefill] == [8, 16]
    assert all(one.seconds_s > 0 for one in measured.prefill)
    assert measured.decode[0].depth_tokens == 8
    assert measured.decode[0].tps > 0
    assert measured.load_s > 0
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert measured.batch_tokens == 64
