"""Scores of classes: teacher forcing behind the prompt, whatever the labels share; the prompt stays in the cache."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.output.label_scoring import score_labels
from disco.endpoints.llamacpp.prompting.prompt_tokens import answer_ids, build_prompt
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Prefix, Request, check_classes
from tests.endpoints.llamacpp.answers import NOTHING, ask, complete

MESSAGES = [{"role": "user", "content": "Is this film good or bad? It is a wonderful film."}]
CLASSES = ("very good indeed", "very bad indeed", "very good", "bad", "good")
WANTS = frozenset({"label_scores"})


class TableModel:
    """A model whose logits are a fixed random function of all tokens before."""

    vocabulary_tokens, ready = 7, True

    def __init__(self, prompt, batch_tokens, *, drops_parts):
        self.batch_tokens, self._drops_parts = batch_tokens, drops_parts
        self.cached, self._rows = list(prompt), [self.row(prompt)]

    def row(self, before):
        draw = random.Random(repr(list(before)))
        return np.array([draw.gauss(0, 3) for _ in range(self.vocabulary_tokens)], np.float32)

    def keep(self, length):
        if length < len(self.cached):
            del self.cached[length if self._drops_parts else 0 :]
        return len(self.cached)

    def decode(self, ids, *, logits_from=None):
        assert logits_from == 0
        assert 0 < len(ids) <= self.batch_tokens
        before = len(self.cached)
        self.cached += ids
        self._rows = [self.row(self.cached[: before + place + 1]) for place in range(len(ids))]

    def logits(self, place=-1):
        return self._rows[place]


@settings(max_examples=40)
@given(
    labels=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=2, max_size=8),
    batch_tokens=st.integers(1, 4),
    drops_parts=st.booleans(),
)
def test_every_label_is_scored_token_by_token_behind_the_prompt(labels, batch_tokens, drops_parts):
    prompt = [3, 1, 4]
    model = TableModel(prompt, batch_tokens, drops_parts=drops_parts)
    read = []
    with pytest.raises(StopIteration) as scored:  # it gives the model up nowhere
        next(score_labels(model, prompt, labels, on_read=read.append))
    scores = scored.value.value
    for label, score in zip(labels, scores, strict=True):
        expected = 0.0
        for place, token in enumerate(label):
            logits = model.row([*prompt, *label[:place]]).astype(float)
            expected += logits[token] - np.log(np.exp(logits).sum())
        assert score == pytest.approx(expected, abs=1e-4)
    assert model.cached == (prompt if drops_parts or not read else [])
    if drops_parts:  # what labels share is read once
        assert sum(read) == len({tuple(label[:n]) for label in labels for n in range(1, len(label))})


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        (("spam",), "at least 2"),
        (tuple(map(str, range(257))), "at most 256"),
        (("spam", " "), "empty"),
        (("spam", "ham", "spam"), "equal"),
        (("spam", "spam "), "equal"),
    ],
)
def test_classes_that_cannot_be_told_apart_are_refused(classes, says):
    with pytest.raises(ValueError, match=says):
        check_classes(classes)


async def scored(endpoint, classes=CLASSES, prefix=NOTHING, **params):
    events = []
    request = Request(MESSAGES, "m", params, classes=classes)
    async with endpoint.open(request, prefix, wants=WANTS) as attempt:
        async for event in attempt:
            events.append(event)  # noqa: PERF401
        assert events[-1].usage == attempt.usage
    return events


class PlainScores(Stepwise):
    """The same by the plainest way: the whole text of each class from an empty cache, one token at a time."""

    def __init__(self, mail, renderer):
        super().__init__(mail)
        self._renderer = renderer
        self.scores = []

    def steps(self, model):
        prompt = build_prompt(model, self._renderer(MESSAGES).text, Prefix(), opening="", name="device").ids
        end = model.tokenize("<|im_end|>", special=True)
        model.prepare(prompt)
        yield from when_ready(model)
        for text in CLASSES:
            model.keep(0)
            for at in range(0, len(prompt), model.batch_tokens):
                model.decode(prompt[at : at + model.batch_tokens])
                yield from when_ready(model)
            score = 0.0
            for token in [*answer_ids(model, text, name="here"), *end]:
                logits = model.logits().astype(float)
                score += logits[token] - np.log(np.exp(logits).sum())
                model.decode([token])
                yield from when_ready(model)
            self.scores.append(score)
        model.keep(0)


@pytest.mark.real
@pytest.mark.anyio
async def test_the_model_scores_as_plain_teacher_forcing_does_also_in_a_host(thread_model, engine_host):
    mail = Mailbox()
    plain = PlainScores(mail, thread_model.engine.renderer())
    await thread_model._run(plain, mail)
    for endpoint in (thread_model, engine_host):
        assert endpoint.capabilities().label_scores
        await endpoint.measure(prompt_tokens=(1,), depths=())  # empties the cache
    started, (delta,), ended = events = await scored(thread_model)
    assert await scored(engine_host) == events
    np.testing.assert_allclose(delta.label_scores, plain.scores, atol=0.15)  # the model computes in 8 bits
    best = int(np.argmax(plain.scores))
    assert (started, delta.text, ended.finish_reason) == (Started(0), CLASSES[best], "stop")
    assert ended.usage.completion_tokens == delta.tokens == len(delta.ids)

    # Single tokens need nothing beyond the prompt, of which the last token is computed for each answer.
    _, (delta,), ended = await scored(thread_model, ("good", "bad"))
    again, (same,), _ = await scored(thread_model, ("bad", "good"))
    assert delta.label_scores == same.label_scores[::-1]
    assert again.cached_tokens == ended.usage.prompt_tokens - 1

    # Half an answer is written to its end.
    _, *written, _ = await scored(thread_model, ("good", "bad"), Prefix("It is"), max_tokens=3)
    assert written
    assert all(delta.label_scores is None for deltas in written for delta in deltas)


@pytest.mark.real
@pytest.mark.anyio
async def test_the_prompt_stays_in_the_cache_and_the_next_answer_is_right(thread_model):
    request = ask(MESSAGES[0]["content"], max_tokens=8)
    await thread_model.measure(prompt_tokens=(1,), depths=())
    text, _, cold = await complete(thread_model, request)
    await scored(thread_model)
    after, _, warm = await complete(thread_model, request)
    assert after == text
    assert warm.usage.cached_tokens == cold.usage.prompt_tokens - 1
    assert isinstance(cold, Ended)


@pytest.mark.real
@pytest.mark.anyio
async def test_classes_are_scored_beside_an_answer_that_is_written(slots_model, thread_model):
    # Of an empty cache: else the numbers differ in their last digits.
    await thread_model.measure(prompt_tokens=(1,), depths=())
    _, (alone,), _ = await scored(thread_model)
    request = ask("Count to a thousand.", max_tokens=300, logit_bias={"2": -100, "0": -100})
    async with slots_model.open(request) as attempt:
        await anext(attempt)
        _, (beside,), _ = await scored(slots_model)
        assert attempt.usage.completion_tokens < 300  # it did not have to end first
        written = [event async for event in attempt]
    assert written[-1].usage.completion_tokens == 300
    assert beside.label_scores == alone.label_scores


@pytest.mark.real
@pytest.mark.anyio
async def test_what_cannot_be_scored_is_refused_with_the_reason(thread_model):
    async def failure(*asked, **more):
        with pytest.raises(EndpointFailure) as raised:
            await scored(thread_model, *asked, **more)
        return raised.value.kind, str(raised.value.error)

    two = ("good", "bad")
    cases = [
        (FailureKind.BAD_REQUEST, "equal", await failure(("good", "good"))),
        (FailureKind.UNSERVED, "logprobs", await failure(two, logprobs=True)),
        (FailureKind.CONTEXT_LENGTH, "longest class", await failure(("good " * 2030, "bad"))),
    ]
    for kind, says, found in cases:
        assert found[0] is kind
        assert says in found[1]
