"""What the real model writes: tokens and ids, sampling, going on with a text, limits, measurements."""

from __future__ import annotations

import openai
import pytest
from loops import mostly

from disco.errors import FailureKind
from disco.events import Ended, Usage
from disco.request import Prefix
from tests.endpoints.llamacpp.answers import ask, complete, fails, fresh

pytestmark = [pytest.mark.real, pytest.mark.anyio]


# ---------------------------------------------------------------- writing


@mostly("trio")
async def test_one_delta_per_token_with_ids_that_spell_it(thread_model, anyio_backend):
    text, deltas, ended = await complete(thread_model, ask(max_tokens=12))
    assert text
    assert [delta.tokens for delta in deltas] == [1] * 12
    spell = thread_model._worker.model.spell
    assert all(spell(delta.ids) == delta.text.encode() for delta in deltas)
    assert ended.finish_reason == "length"
    assert ended.usage.completion_tokens == 12


async def test_the_same_seed_gives_the_same_answer_and_another_one_another(thread_model):
    asked = [ask(max_tokens=10, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    texts = [(await complete(thread_model, one))[0] for one in asked]
    assert texts[0] == texts[1] != texts[2]


async def test_characters_of_several_tokens_arrive_whole(thread_model):
    request = ask("Repeat: 🎉🦜🎉🦜🎉🦜🎉🦜🎉🦜", max_tokens=16)
    text, deltas, _ = await complete(thread_model, request, Prefix("🎉🦜🎉🦜🎉🦜🎉", tokens=2))
    several = [delta for delta in deltas if delta.tokens > 1]
    assert several, f"the model wrote no such character: {text!r}"
    for delta in several:
        assert thread_model._worker.model.spell(delta.ids) == delta.text.encode()


async def test_a_stop_string_across_token_borders_is_never_shown(thread_model):
    whole, deltas, _ = await complete(thread_model, ask())
    at = len("".join(delta.text for delta in deltas[:6])) - 2
    stop = whole[at : at + 5]  # from inside one token to inside another
    text, _, ended = await complete(thread_model, ask(stop=[stop, "\x00"]))
    assert text == whole[: whole.index(stop)]
    assert ended.finish_reason == "stop"
    # Also where it begins in what another endpoint wrote.
    text, _, ended = await complete(thread_model, ask(stop=stop), Prefix(whole[: at + 2], tokens=6))
    assert (text, ended.finish_reason) == ("", "stop")


async def test_penalties_look_at_the_prefix_too(thread_model):
    prefix = Prefix("one two one two one two one two one", tokens=9)
    free, _, _ = await complete(thread_model, ask("Count.", max_tokens=12), prefix)
    assert free.startswith(" two")
    text, _, _ = await complete(thread_model, ask("Count.", max_tokens=12, frequency_penalty=2.0), prefix)
    assert not text.startswith(" two")


async def test_logit_bias_bans_and_log_probabilities_are_the_models(thread_model):
    _, (delta,), _ = await complete(thread_model, ask(max_tokens=1, logprobs=True, top_logprobs=3))
    openai.types.chat.chat_completion_chunk.ChoiceLogprobs.model_validate(delta.logprobs)
    (entry,) = delta.logprobs["content"]
    assert entry["token"] == delta.text == entry["top_logprobs"][0]["token"]
    assert bytes(entry["bytes"]) == delta.text.encode()
    values = [one["logprob"] for one in entry["top_logprobs"]]
    assert values[0] == entry["logprob"]
    assert 0 > values[0] >= values[1] >= values[2]
    (token,) = delta.ids
    banned = ask(max_tokens=1, logit_bias={str(token): -100}, logprobs=True, top_logprobs=2)
    _, (other,), _ = await complete(thread_model, banned)
    assert other.text == entry["top_logprobs"][1]["token"]


# ---------------------------------------------------------------- going on


async def test_with_its_own_ids_and_a_warm_cache_a_continuation_is_the_same_answer(thread_model):
    whole, deltas, _ = await complete(thread_model, ask(max_tokens=20))
    prefix = Prefix(
        "".join(delta.text for delta in deltas[:8]),
        tokens=8,
        ids=tuple(token for delta in deltas[:8] for token in delta.ids),
        vocabulary=thread_model.capabilities().vocabulary,
    )
    rest, _, ended = await complete(thread_model, ask(max_tokens=20), prefix)
    assert prefix.text + rest == whole
    assert ended.usage.completion_tokens == 12
    assert ended.usage.cached_tokens == ended.usage.prompt_tokens - 1


async def test_ids_that_do_not_spell_the_text_are_not_believed(thread_model):
    vocabulary = thread_model.capabilities().vocabulary
    expected, _, _ = await complete(thread_model, ask(max_tokens=12), Prefix("Paris is the", tokens=3))
    for ids in ((5, 6, 7), (10**9,)):
        prefix = Prefix("Paris is the", tokens=3, ids=ids, vocabulary=vocabulary)
        assert (await complete(thread_model, ask(max_tokens=12), prefix))[0] == expected


async def test_a_control_token_written_as_text_stays_text(thread_model):
    _, _, plain = await complete(thread_model, ask(max_tokens=3), Prefix("It is ", tokens=1))
    _, _, quoted = await complete(thread_model, ask(max_tokens=3), Prefix("It is <|im_end|>", tokens=1))
    # As a control token it would be a single one.
    assert quoted.usage.prompt_tokens - plain.usage.prompt_tokens > 2
    assert quoted.usage.completion_tokens == 2


CUT = "Paris's café—漢字 🎉 beauti\n\n  lit; x=f(3)"


async def test_it_continues_exactly_wherever_the_text_is_cut(thread_model):
    model = thread_model._worker.model
    for at in range(1, len(CUT) + 1):
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
        if deltas:
            first = deltas[0]
            assert first.ids is None or model.spell(first.ids) == first.text.encode()
        assert ended.usage.completion_tokens <= 2


async def test_healing_may_run_past_what_was_withheld(thread_model):
    prefix = Prefix("The capital of France is Par", tokens=6, withheld=" Par")
    rest, deltas, _ = await complete(thread_model, ask("What is the capital of France?"), prefix)
    assert rest.startswith("is")
    assert deltas[0].ids is None  # its token also spells what was withheld


# ---------------------------------------------------------------- limits


async def test_max_tokens_counts_the_prefix(thread_model):
    prefix = Prefix("Paris is a city", tokens=5)
    _, deltas, ended = await complete(thread_model, ask(max_tokens=7), prefix)
    assert sum(delta.tokens for delta in deltas) == ended.usage.completion_tokens == 2
    text, _, ended = await complete(thread_model, ask(max_tokens=5), prefix)
    assert (text, ended) == ("", Ended("length", Usage()))


async def test_the_context_ends_the_answer_and_refuses_what_does_not_fit():
    unending = {"2": -100, "0": -100}
    async with fresh(context_tokens=64) as endpoint:
        _, _, ended = await complete(endpoint, ask(max_tokens=None, logit_bias=unending))
        assert ended.finish_reason == "length"
        assert ended.usage.prompt_tokens + ended.usage.completion_tokens == 64
        failure = await fails(endpoint, ask("secret " * 100))
        assert failure.kind is FailureKind.CONTEXT_LENGTH
        assert "64" in str(failure.error)
        assert (await complete(endpoint, ask(max_tokens=2)))[0]


# ---------------------------------------------------------------- measuring


@pytest.fixture(params=["thread_model", "process_model"])
def either_model(request):
    return request.getfixturevalue(request.param)


async def test_measuring_gives_times_and_rates(either_model):
    steps = []
    measured = await either_model.measure(
        prompt_tokens=(8, 16, 10**6), depths=(8,), decode_tokens=4, progress=lambda *step: steps.append(step)
    )
    assert [one.tokens for one in measured.prefill] == [8, 16]
    assert all(one.seconds_s > 0 for one in measured.prefill)
    assert measured.decode[0].depth_tokens == 8
    assert measured.decode[0].tps > 0
    # To start an interpreter takes that long.
    assert measured.load_s > (0 if either_model.process_id is None else 0.1)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert measured.batch_tokens == 64
