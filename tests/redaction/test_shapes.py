"""What comes back with originals besides plain text: events, calls, reasoning, JSON, log probabilities, classes."""

from __future__ import annotations

import json

import pytest
from client.test_native_responses import MESSAGE, written
from defects.asking import MODEL, client, create, device, preset
from faults.in_memory import RESET, MemoryServer, Reply, spoken
from scripted_server import chunk, sse

from disco.errors import NoEndpointError
from redaction.hooks import MAIL, hook, leaks
from redaction.test_moves import ASKED

pytestmark = pytest.mark.anyio

INPUT = ASKED[0]["content"]


def saying(*events):
    return Reply([sse(event, done=False) for event in events] + [b"data: [DONE]\n\n"])


async def test_the_servers_own_events_of_a_response_have_the_originals_everywhere():
    words = ["Ask", "[PERSON", "_1],", "not", "[PERSON_2].", "At", "[EMAIL_1]"]
    joined = f"Ask [PERSON _1], not Zora. At {MAIL}"  # the server's words have spaces between them
    events = written(words)
    events[0]["response"]["instructions"] = "Be kind to [PERSON_1]."
    for stream in (False, True):
        server = MemoryServer(Reply([sse(event, done=False) for event in events]))
        async with client(server, redact=hook) as one:
            asked = {"model": "m", "input": INPUT, "instructions": "Be kind to Zora Quill."}
            got = await one.responses.create(**asked, stream=stream)
            if not stream:
                assert got.output_text == joined
                continue
            seen = [event async for event in got]
            pieces = [e.delta for e in seen if e.type == "response.output_text.delta"]
            assert "".join(pieces) == joined
            assert [e.text for e in seen if e.type == "response.output_text.done"] == [joined]
            assert seen[0].response.instructions == "Be kind to Zora Quill."
            assert seen[-1].response.output_text == joined
            assert [e.sequence_number for e in seen] == sorted({e.sequence_number for e in seen})
        assert server.requests[0]["input"].startswith("Write to [PERSON_1] at [EMAIL_1]")
        assert not leaks(server.requests)


@pytest.mark.parametrize("cut", range(1, 10))
async def test_a_placeholder_in_two_events_comes_as_one_text_and_the_rest_where_the_text_ends(cut):
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    whole = "[EMAIL_1] [EM"
    deltas = [{"type": "response.output_text.delta", **place, "delta": t} for t in (whole[:cut], whole[cut:])]
    events = [e for e in written([]) if not e["type"].endswith("delta")]
    part = {**events[4], "text": whole, "logprobs": []}
    events = [*events[:4], *deltas, part, *events[5:]]
    server = MemoryServer(saying(*[{**e, "sequence_number": n} for n, e in enumerate(events)]))
    async with client(server, redact=hook) as one:
        stream = await one.responses.create(model="m", input=INPUT, stream=True)
        seen = [event async for event in stream]
    kinds = [e.type for e in seen]
    texts = [e.delta for e in seen if e.type == "response.output_text.delta"]
    assert "".join(texts) == f"{MAIL} [EM"
    last = max(at for at, kind in enumerate(kinds) if kind == "response.output_text.delta")
    assert last < kinds.index("response.output_text.done")


async def test_the_device_goes_on_with_a_response_of_the_server():
    events = [
        e for e in written(["To", "[PERSON_1]", "at", "[EM"]) if not e["type"].endswith(("done", "completed"))
    ]
    server = MemoryServer(Reply([*(sse(event, done=False) for event in events), RESET]))
    local = device(answer=f"To Zora Quill at {MAIL}, I say.")
    async with client(server, local=local, policy=preset("server_only"), redact=hook) as one:
        got = await one.responses.create(model="m", input=INPUT)
        assert got.output_text == f"To Zora Quill at {MAIL}, I say."
        assert got.output[0].id == MESSAGE["id"]


def calling(pieces):
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "mail", "arguments": ""}}
    parts = [chunk(tool_calls=[first])]
    parts += [chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
    return saying(*parts, chunk(finish="tool_calls"))


QUOTED = 'Zora "Z" Quill\\'
TOOLS = [{"type": "function", "function": {"name": "mail", "description": f"Mails {MAIL}."}}]


def quoting(text):
    return {QUOTED: "PERSON"} if QUOTED in text else hook(text)


@pytest.mark.parametrize("stream", [True, False])
async def test_arguments_of_calls_are_json_with_the_originals_both_ways(stream):
    server = MemoryServer(calling(['{"to": "[PER', 'SON_1]", "cc": ["[EMAIL', '_1]"]}']))
    before = {
        "id": "c0",
        "type": "function",
        "function": {"name": "mail", "arguments": json.dumps({"to": QUOTED})},
    }
    messages = [
        {"role": "user", "content": f"{QUOTED} is who to write to."},
        {"role": "assistant", "content": None, "tool_calls": [before]},
        {"role": "tool", "tool_call_id": "c0", "content": json.dumps({"cc": MAIL})},
    ]
    async with client(server, redact=quoting) as one:
        got = await create(one, messages, stream=stream, tools=TOOLS)
        if stream:
            calls = [c.choices[0].delta.tool_calls async for c in got if c.choices]
            arguments = "".join(call.function.arguments for each in calls for call in each or ())
        else:
            (call,) = got.choices[0].message.tool_calls
            assert (call.id, call.function.name) == ("c1", "mail")
            arguments = call.function.arguments
    assert json.loads(arguments) == {"to": QUOTED, "cc": [MAIL]}
    (sent,) = server.requests
    assert not leaks(sent)
    assert sent["messages"][1]["tool_calls"][0]["function"] == {
        "name": "mail",
        "arguments": '{"to": "[PERSON_1]"}',
    }


async def test_reasoning_has_the_originals_also_where_it_ends_within_a_placeholder():
    pieces = [chunk(reasoning_content=text) for text in ("Is [EMA", "IL_1] of [PERSON", "_2]? [PER")]
    async with client(MemoryServer(saying(*pieces, chunk("Yes."), chunk(finish="stop"))), redact=hook) as one:
        got = await create(one, ASKED)
        assert got.choices[0].message.reasoning_content == f"Is {MAIL} of Zora? [PER"
        assert got.choices[0].message.content == "Yes."


async def test_an_answer_in_json_stays_json():
    schema = {"type": "object", "properties": {"who": {"enum": [QUOTED]}}}
    form = {"type": "json_schema", "json_schema": {"name": "who", "schema": schema}}
    server = MemoryServer(spoken(['{"who": "[PERS', 'ON_1]"}']))
    async with client(server, redact=quoting) as one:
        got = await create(one, [{"role": "user", "content": "Who?"}], response_format=form)
        assert json.loads(got.choices[0].message.content) == {"who": QUOTED}
    sent = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert sent["properties"]["who"]["enum"] == ["[PERSON_1]"]


async def test_log_probabilities_are_those_of_the_tokens_that_the_server_wrote():
    pieces = []
    for text in ("To ", "[EMAIL", "_1]", "."):
        made = chunk(text)
        made["choices"][0]["logprobs"] = {
            "content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]
        }
        pieces.append(made)
    async with client(MemoryServer(saying(*pieces, chunk(finish="stop"))), redact=hook) as one:
        for stream in (False, True):
            got = await create(one, ASKED, logprobs=True, stream=stream)
            if stream:
                choices = [c.choices[0] async for c in got if c.choices]
                entries = [e for c in choices if c.logprobs for e in c.logprobs.content]
                assert "".join(c.delta.content or "" for c in choices) == f"To {MAIL}."
            else:
                entries = got.choices[0].logprobs.content
                assert got.choices[0].message.content == f"To {MAIL}."
            assert [e.token for e in entries] == ["To ", "[EMAIL", "_1]", "."]


async def test_only_texts_of_a_message_with_a_picture_are_redacted():
    server = MemoryServer(spoken(["Nice."]))
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,Zora"}}
    content = [{"type": "text", "text": f"Is this Zora Quill, {MAIL}?"}, picture]
    async with client(server, redact=hook) as one:
        await create(
            one, [{"role": "user", "content": content, "name": "Zora"}], user=MAIL, metadata={"who": "Zora"}
        )
    (sent,) = server.requests
    assert sent["messages"][0]["content"] == [
        {"type": "text", "text": "Is this [PERSON_1], [EMAIL_1]?"},
        picture,
    ]
    assert (sent["user"], sent["metadata"]) == ("[EMAIL_1]", {"who": "[PERSON_2]"})
    assert sent["messages"][0]["name"] == "[PERSON_2]"


async def test_classes_are_chosen_by_their_placeholders():
    server = MemoryServer(spoken(["[PERSON_2]"]))
    settings = {"policy": "cascade", "tiers": [], "redact": hook}
    async with client(server, **settings) as one:
        got = await create(one, ASKED, disco={"task": "who", "classes": ["Zora", "Zora Quill"]})
        assert got.choices[0].message.content == "Zora"
    assert not leaks(server.requests)


async def test_a_copy_may_redact_in_another_way_or_not_at_all():
    server = MemoryServer(spoken(["Oh."]))
    async with client(server, redact=hook) as one:
        for copy, says in (
            (one.with_options(timeout=9), "To [PERSON_1]."),
            (one.with_options(redact=lambda text: {"To": "WORD"} if "To" in text else {}), "[WORD_1] Zora."),
            (one.with_options(redact=None), "To Zora."),
        ):
            await copy.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "To Zora."}]
            )
            assert server.requests[-1]["messages"][0]["content"] == says
        assert "invalid" in str(one.with_options(timeout=9).websocket_base_url)
        assert one.with_options(redact=None).websocket_base_url is None


async def test_what_the_hook_cannot_read_is_refused():
    server = MemoryServer(spoken(["Oh."]))
    async with client(server, redact=hook) as one:
        for refused in (
            lambda: create(one, ASKED, modalities=["text", "audio"]),
            lambda: one.embeddings.create(model="m", input=MAIL),
            lambda: one.responses.create(model="m", input=MAIL, previous_response_id="resp_1"),
            lambda: one.post("/chat", cast_to=object, body={"x": MAIL}),
            lambda: one.files.create(file=b"x", purpose="batch"),
        ):
            with pytest.raises(NoEndpointError, match="redact"):
                await refused()
    assert server.requests == []
