"""What the server says of an answer arrives as with the SDK, with the server alone and with a local model behind."""

from __future__ import annotations

import pytest
from sdk_parity.side_by_side import CHAT, SAID, answering, ask, behind, both, documents, facts, taken, text_of

pytestmark = pytest.mark.anyio

COUNTED = {"include_usage": True}
CALLS = {
    "whole": lambda c: c.chat.completions.create(**CHAT),
    "streamed": lambda c: c.chat.completions.create(**CHAT, stream=True, stream_options=COUNTED),
    "parsed": lambda c: c.chat.completions.parse(**CHAT),
    "response": lambda c: c.responses.create(model="m", input="x"),
    "streamed response": lambda c: c.responses.create(model="m", input="x", stream=True),
    "next response": lambda c: one_after_another(c),  # noqa: PLW0108 - defined below
}


async def one_after_another(client):
    first = await taken(client.responses.create(model="m", input="x"))
    return await taken(client.responses.create(model="m", input="y", previous_response_id=first.id))


@pytest.mark.parametrize("name", CALLS)
async def test_with_the_server_alone_all_of_it_is_as_the_sdk_has_it(kinds, name):
    """S2, S5, S6, S9, S17: results, fields set, extra fields, requests; documents to streamed requests, too."""
    for answer in (answering, documents):
        plain, ours = await both(kinds, CALLS[name], answer)
        assert (plain.error, ours.error) == (None, None)
        assert facts(ours.value) == facts(plain.value)
        assert ours.sent() == plain.sent()
        if not isinstance(plain.value, list):
            assert ours.value.model_dump() == plain.value.model_dump()
            assert ours.value.to_json() == plain.value.to_json()
            assert ours.value._request_id == plain.value._request_id == "req_1"


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_details_of_the_usage_are_not_lost(kinds, alone):
    """S2: cached and reasoning tokens."""
    more = {} if alone else behind()
    whole, streamed, response, events = [
        (await ask(kinds[1], CALLS[name], **more)).value
        for name in ("whole", "streamed", "response", "streamed response")
    ]
    for usage in (whole.usage, streamed[-1].usage):
        assert usage.prompt_tokens_details.cached_tokens == 12
        assert usage.completion_tokens_details.reasoning_tokens == 5
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (20, 9, 29)
    for usage in (response.usage, events[-1].response.usage):
        assert usage.input_tokens_details.cached_tokens == 12
        assert usage.output_tokens_details.reasoning_tokens == 5


@pytest.mark.parametrize("name", ["response", "streamed response", "next response"])
async def test_responses_are_the_servers_own_where_a_local_model_is_behind(kinds, name):
    """S9: ids, usage, extra fields; the next one may refer to the first."""
    plain, ours = await both(kinds, CALLS[name], ours=behind())
    assert facts(ours.value) == facts(plain.value)


@pytest.mark.parametrize("name", ["whole", "streamed"])
async def test_a_document_is_an_answer_to_a_streamed_request_where_a_local_model_is_behind(kinds, name):
    """S5: the server, or a mock of it, does not stream."""
    ours = await ask(kinds[1], CALLS[name], documents, **behind())
    assert ours.error is None
    if name == "streamed":
        assert text_of(ours.value) == SAID
        assert ours.value[-1].usage.completion_tokens == 9
        assert [c.finish_reason for chunk in ours.value for c in chunk.choices][-1] == "stop"
    else:
        assert (ours.value.choices[0].message.content, ours.value.usage.completion_tokens) == (SAID, 9)
        assert ours.value.route.winner == "server"
    assert len(ours.requests) == 1


@pytest.mark.parametrize("answer", [answering, documents], ids=["as asked", "documents only"])
async def test_fields_of_a_whole_answer_are_not_lost_where_a_local_model_is_behind(kinds, answer):
    """S6: those of the API, and those of a provider."""
    plain, ours = await both(kinds, CALLS["whole"], answer, ours=behind())
    assert (
        facts(ours.value)["extra"]
        == facts(plain.value)["extra"]
        == {"provider": "P", "citations": ["http://a"]}
    )
    assert (ours.value.service_tier, ours.value.system_fingerprint) == ("flex", "fp")
    assert ours.value.choices[0].model_extra == plain.value.choices[0].model_extra == {"stop_reason": 7}
    if answer is documents:  # a stream has no annotations
        assert ours.value.choices[0].message.annotations == []


async def test_fields_of_a_streamed_answer_are_not_lost_where_a_local_model_is_behind(kinds):
    """S6."""
    plain, ours = await both(kinds, CALLS["streamed"], ours=behind())
    first, last = (next(chunks) for chunks in (iter(ours.value), (c for c in ours.value if _finish(c))))
    assert first.model_extra == plain.value[0].model_extra
    assert (first.service_tier, first.system_fingerprint) == ("flex", "fp")
    assert last.choices[0].model_extra == {"stop_reason": 7}


def _finish(chunk):
    return chunk.choices and chunk.choices[0].finish_reason


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_chunk_has_no_usage_where_none_was_asked_for(kinds, alone):
    """S17: not even as a field that is None."""
    more = {} if alone else behind()
    outcome = await ask(kinds[1], lambda c: c.chat.completions.create(**CHAT, stream=True), **more)
    assert text_of(outcome.value) == SAID
    assert [chunk for chunk in outcome.value if "usage" in chunk.model_fields_set] == []
