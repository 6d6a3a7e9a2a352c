"""`disco serve --verify` as a process, with the real model."""

from __future__ import annotations

import json
import secrets

import httpx2
import pytest
from command_process import CHAT, CHATS, KEY, LONG, WITHIN_S, running, signals, tell_to_end, what_it_said
from fake_engine import ROUNDS, VERIFIER

from disco.endpoints.event_coding import delta_of
from disco.speculate.messages import Verdict, VerifierFacts

pytestmark = pytest.mark.real


def by_rounds(
    http: httpx2.Client, opening: dict, guess: list[int], window: int
) -> tuple[list[int], str, list[int]]:
    """An answer, drafted from `guess`, of which every fifth token is wrong: ids, text, and what was accepted."""
    key, ids, text, accepted, number = secrets.token_hex(16), [], "", [], 0
    while True:
        at = len(ids)
        draft = [token + (place % 5 == 4) for place, token in enumerate(guess)][at : at + window]
        body = {
            "key": key,
            "number": number,
            "at": at,
            "draft": draft,
            **({} if number else {"opening": opening}),
        }
        verdict = Verdict.from_json(http.post(ROUNDS, json=body).raise_for_status().json())
        assert (verdict.number, verdict.at) == (number, at)
        ids += verdict.ids
        text += "".join(delta_of(delta, delta).text for delta in verdict.deltas)
        accepted.append(verdict.accepted)
        number += 1
        if verdict.finish_reason is not None:
            assert verdict.finish_reason == "length"
            return ids, text, accepted


@pytest.mark.slow
@signals
def test_a_verify_server_gives_one_answer_by_rounds_alone_and_as_a_chat():
    options = (
        "--verify",
        "smollm2-135m",
        "--slots",
        "2",
        "--context",
        "512",
        "--threads",
        "1",
        "--preset",
        "private",
    )
    asked = {"max_tokens": 12, "temperature": 0.8}
    opening = {"messages": CHAT["messages"], "params": asked, "seed": 11}
    with (
        running(*options, "--grace", "600", DISCO_SERVER_KEY=KEY) as (process, address),
        httpx2.Client(base_url="http://{}:{}".format(*address), timeout=WITHIN_S) as http,
    ):
        assert http.get(VERIFIER).status_code == http.post(ROUNDS, json={}).status_code == 401
        http.headers["authorization"] = f"Bearer {KEY}"
        facts = VerifierFacts.from_json(http.get(VERIFIER).json())
        assert (facts.model, facts.slots, facts.context_tokens) == ("smollm2-135m", 2, 512)
        assert len(facts.verify_s) > 2

        def alone(**more) -> list[Verdict]:
            body = {
                "key": secrets.token_hex(16),
                "number": 0,
                "at": 0,
                "alone": 400,
                "opening": {**opening, **more},
            }
            with http.stream("POST", ROUNDS, json={**body, "at": len(more.get("ids", ()))}) as lines:
                assert lines.headers["content-type"] == "application/x-ndjson"
                return [Verdict.from_json(json.loads(line)) for line in lines.iter_lines()]

        verdicts = alone()
        ids = [token for verdict in verdicts for token in verdict.ids]
        text = "".join(delta_of(delta, delta).text for verdict in verdicts for delta in verdict.deltas)
        assert (len(ids), verdicts[-1].finish_reason) == (12, "length")
        for window, best in ((0, 0), (1, 1), (7, 4)):
            assert (drafted := by_rounds(http, opening, ids, window))[:2] == (ids, text), window
            assert max(drafted[2]) == best
        taken_up = alone(ids=ids[:7])
        assert [token for verdict in taken_up for token in verdict.ids] == ids[7:]
        chat = http.post(CHATS, json={**CHAT, **asked, "seed": 11}).json()
        assert chat["choices"][0]["message"]["content"] == text
        assert by_rounds(http, {**opening, "seed": 12}, ids, 4)[0] != ids, "else this test says nothing"

        lost = http.post(ROUNDS, json={"key": "0" * 32, "number": 1, "at": 1})
        assert (lost.status_code, lost.json()["error"]["code"]) == (409, "answer_lost")
        first = {"key": "1" * 32, "number": 0, "at": 0, "opening": opening}
        for wrong in ({"draft": [2**31 - 1]}, {"opening": {**opening, "ids": [2**31 - 1]}}):
            assert http.post(ROUNDS, json={**first, **wrong}).status_code == 400
        long = {"role": "user", "content": "sea " * 600}
        refused = http.post(ROUNDS, json={**first, "opening": {**opening, "messages": [long]}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        page = http.get("/metrics").text
        assert 'disco_verify_drafted_tokens_total{verdict="accepted"}' in page
        # The process ends once the answer in progress has been written.
        last = {**opening, "params": {"max_tokens": 20, "logit_bias": LONG["logit_bias"]}}
        body = {"key": "2" * 32, "number": 0, "at": 0, "alone": 400, "opening": last}
        with http.stream("POST", ROUNDS, json=body) as streaming:
            lines = streaming.iter_lines()
            said = [next(lines)]
            tell_to_end(process, address)
            said += lines
        assert Verdict.from_json(json.loads(said[-1])).finish_reason == "length"
        log = what_it_said(process)
    assert "verifies drafts: 2 slots of 512 tokens; tokens of a batch: 1 in " in log
    assert "CANARYPROMPT" not in log + page
