"""Scores of classes from the alternatives to a server's first token."""

from __future__ import annotations

import math

import pytest
from scripted_server import chunk, scripted_server, sse, stream

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.label_scores import label_scores
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.request import Request

LABELS = ("negative", "positive")
LN = math.log


@pytest.mark.parametrize(
    ("listed", "scores"),
    [
        ([("positive", LN(0.6)), ("negative", LN(0.3))], (LN(0.3), LN(0.6))),
        ([("Pos", LN(0.5)), (" positive", LN(0.2)), ("Neg", LN(0.1))], (LN(0.1), LN(0.7))),
        (
            [("positive", LN(0.9)), ("The", LN(0.05))],
            (LN(0.05), LN(0.9)),
        ),  # at most as probable as the least listed
        ([("The", -0.1), ("It", -3.0)], None),
        ([("", -0.1), (" ", -3.0)], None),
        ([("positive", math.nan), ("positively", -1.0)], None),
        ([], None),
    ],
    ids=str,
)
def test_scores_by_what_is_listed(listed, scores):
    assert label_scores(listed, LABELS) == (None if scores is None else pytest.approx(scores))


def test_classes_that_begin_alike_are_not_told_apart():
    assert label_scores([("po", -0.1), ("neg", -3.0)], ("positive", "polite", "negative")) is None
    assert label_scores([("pos", -0.1), ("pol", -3.0)], ("positive", "polite")) == (-0.1, -3.0)


def test_an_improbable_token_that_begins_two_classes_does_not_matter():
    """Of twenty alternatives, one is often a single letter."""
    classes, likely = ("positive", "neutral", "negative"), [("positive", LN(0.7)), ("negative", LN(0.2))]
    scores = label_scores([*likely, ("ne", LN(0.005))], classes)
    assert scores == pytest.approx((LN(0.7), LN(0.005), LN(0.2)))
    assert label_scores([*likely, ("ne", LN(0.05))], classes) is None


async def collect(attempt):
    """All deltas of an attempt."""
    deltas = []
    async for event in attempt:
        if isinstance(event, list):
            deltas.extend(event)
    return deltas


def entry(token: str, logprob: float, **others: float):
    top = [{"token": name, "logprob": value, "bytes": None} for name, value in others.items()]
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": top}


@pytest.mark.real
@pytest.mark.anyio
async def test_a_server_scores_the_classes_of_a_request_with_its_first_token():
    first, second = chunk("Pos"), chunk("itive")
    first["choices"][0]["logprobs"] = {"content": [entry("Pos", -0.1, Pos=-0.1, Neg=-2.5)], "refusal": None}
    second["choices"][0]["logprobs"] = {"content": [entry("itive", -0.01, itive=-0.01)], "refusal": None}
    script = stream(sse(first, second, chunk(finish="stop")))
    asked = Request([{"role": "user", "content": "Good?"}], model="m", classes=LABELS)
    async with (
        scripted_server(script, script) as server,
        PlainClient(base_url=server.base_url, api_key="k") as client,
    ):
        endpoint = OpenAIEndpoint(client=client)
        deltas = await collect(endpoint.open(asked, wants=frozenset({"label_scores"})))
        plain = await collect(endpoint.open(asked))
    assert [(d.text, d.label_scores) for d in deltas] == [("Pos", (-2.5, -0.1)), ("itive", None)]
    assert [d.label_scores for d in plain] == [None, None]
    bodies = [body for _, _, body in server.requests]
    assert [(body.get("logprobs"), body.get("top_logprobs")) for body in bodies] == [(True, 20), (None, None)]
    assert deltas[0].raw.choices[0].logprobs is None, "the application did not ask for log probabilities"
