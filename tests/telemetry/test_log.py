"""The lines in the log: figures in fields of their own, silence by default, and never a word of anybody's."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys

import httpx2
import openai
import pytest
from scripted_server import answer as http_answer
from scripted_server import chunk, scripted_server, sse, stream, usage
from watched import CANARY, answer, endpoint, preset

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind

KEY = "sk-canary-4e1b"
ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"What is {CANARY}?"}]}


def lines(caplog, name, level):
    return [r for r in caplog.records if r.name == name and r.levelno == level]


def fields(record):
    return {k.removeprefix("disco_"): v for k, v in vars(record).items() if k.startswith("disco_")}


def test_an_answer_is_one_line_with_its_figures_as_fields(caplog):
    with caplog.at_level(logging.INFO, logger="disco"):
        live = answer(endpoint("device"), endpoint("server", ttft_s=0.3), preset(pace_tps=40.0))
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("disco.route", logging.INFO)
    assert line.getMessage().startswith("answer finished: device, ")
    route, said = live.record, fields(line)
    assert json.loads(json.dumps(said)) == {
        "model": "gpt-4o-mini",
        "preset": "watched",
        "stream": True,
        "outcome": "finished",
        "finish_reason": "stop",
        "winner": "device",
        "last_writer": "device",
        "attempts": 2,
        "migrations": 0,
        "failovers": 0,
        "input_tokens": route.attempts[0].prompt_tokens,
        "output_tokens": route.attempts[0].completion_tokens,
        "ttft_generated_s": pytest.approx(route.pace.ttft_raw_s, abs=1e-6),
        "ttft_released_s": pytest.approx(route.pace.ttft_released_s, abs=1e-6),
        "late_tokens": route.pace.late_tokens,
        "duration_s": pytest.approx(route.duration_s, abs=1e-6),
        "cost_usd": pytest.approx(route.cost, abs=1e-9),
    }


@pytest.mark.parametrize(
    ("fault", "leave_after", "outcome", "error_type"),
    [
        (Fault(3, kind=FailureKind.CRASHED), None, "failed", "LocalModelError"),
        (Fault(0, kind=FailureKind.CRASHED), None, "failed", "LocalModelError"),
        (None, 3, "cancelled", None),
    ],
)
def test_so_is_one_that_failed_or_was_left(caplog, fault, leave_after, outcome, error_type):
    with caplog.at_level(logging.INFO, logger="disco"):
        answer(endpoint("device", fault=fault), None, preset("device_only"), leave_after=leave_after)
    (line,) = lines(caplog, "disco.route", logging.INFO)
    said = fields(line)
    assert said["outcome"] == outcome
    assert said.get("error_type") == error_type
    assert line.getMessage().startswith(f"answer {outcome}: ")


def test_at_debug_level_it_says_how_the_answer_came_about(caplog):
    device = endpoint("device", ttft_s=0.8, answer=None, answer_tokens=400)
    server = endpoint("server", answer=None, answer_tokens=400)
    with caplog.at_level(logging.DEBUG, logger="disco"):
        live = answer(device, server, preset(moves=True, pace_tps=10.0))
    plan, *attempts, move = lines(caplog, "disco.route", logging.DEBUG)
    assert "start device after 0 s, server after 0 s" in plan.getMessage()
    assert "move server to device" in plan.getMessage()
    assert [fields(a)["endpoint"] for a in attempts] == [t.endpoint for t in live.record.attempts]
    assert [fields(a)["outcome"] for a in attempts] == [t.outcome for t in live.record.attempts]
    assert fields(move) == {"source": "server", "target": "device", "outcome": "switched"}
    assert caplog.records.index(plan) == 0
    assert lines(caplog, "disco.route", logging.INFO) == caplog.records[-1:]


def test_nothing_is_computed_for_lines_that_nobody_wants(monkeypatch):
    monkeypatch.setattr("disco.telemetry.reporter.facts", None)
    assert answer(endpoint("device"), None, preset("device_only")).record.finish_reason == "stop"


PROGRAM = """
import sys, anyio
from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
async def main():
    def fails(route):
        raise RuntimeError
    device = SimulatedEndpoint("device", place="device")
    async with AsyncDisco(local=device, policy="balanced", api_key="x", base_url="http://127.0.0.1:9/v1",
                          on_route=fails) as client:
        ask = {"model": "unpriced", "messages": [{"role": "user", "content": "?"}], "max_tokens": 3}
        await client.chat.completions.create(**ask)
anyio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "disco.telemetry.otel_setup"))])
"""


def test_a_program_that_sets_up_nothing_reads_nothing_and_loads_no_opentelemetry():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


@pytest.mark.anyio
async def test_one_that_sets_up_logging_is_told_of_what_went_wrong(caplog):
    def fails(route):
        raise RuntimeError

    nowhere = {"api_key": "x", "base_url": "http://127.0.0.1:9/v1", "policy": "balanced"}
    with caplog.at_level(logging.INFO, logger="disco"):
        async with AsyncDisco(local=endpoint("device", ttft_s=0.01), on_route=fails, **nowhere) as client:
            await client.chat.completions.create(**{**ASK, "model": "unpriced", "max_tokens": 3})
    said = [f"{r.levelname}:{r.name}:{r.getMessage()}" for r in caplog.records]
    for begins in (
        "WARNING:disco:No price is known",
        "ERROR:disco:on_route callback ",
        "INFO:disco.route:answer finished",
    ):
        assert sum(line.startswith(begins) for line in said) == 1


# ---------------------------------------------------------------------- what must never be in it


def own(caplog):
    """Everything our loggers said, messages, fields and tracebacks; who else logs is not ours to silence."""
    ours = [r for r in caplog.records if r.name.split(".")[0] == "disco"]
    return "\n".join(logging.Formatter().format(r) + repr(vars(r)) for r in ours)


@pytest.mark.real
@pytest.mark.anyio
async def test_neither_prompts_answers_nor_keys_even_when_the_server_quotes_them(caplog, otel):
    """A server that answers, one that dies in mid-answer, and one whose refusal repeats key and prompt."""
    written = stream(sse(chunk(f"It is {CANARY}."), chunk(finish="stop"), usage(9, 5)))
    dying = stream(sse(chunk(f"It is {CANARY}."), {"error": {"message": f"{CANARY} {KEY}"}}, done=False))
    error = {"message": f"Incorrect API key {KEY} for {CANARY}", "code": None}
    quoting = http_answer(json.dumps({"error": error}).encode(), status="401 Unauthorized")
    asked = {**ASK, "user": CANARY, "stop": [CANARY * 2], "stream": True, "extra_headers": {"X-Secret": KEY}}
    ports = []
    for script, expected in ((quoting, "failed"), (written, "finished"), (dying, "failed")):
        async with scripted_server(script) as server:
            ports.append(int(httpx2.URL(server.base_url).port))
            with caplog.at_level(logging.DEBUG, logger="disco"):
                async with AsyncDisco(api_key=KEY, base_url=server.base_url, max_retries=0) as client:
                    if script is quoting:
                        await client.warm_up("gpt-4o-mini")
                    fails = expected == "failed"
                    with pytest.raises(openai.OpenAIError) if fails else contextlib.nullcontext():
                        assert [part async for part in await client.chat.completions.create(**asked)]
    assert [s.attributes["disco.outcome"] for s in otel.spans if s.name.startswith("chat")] == [
        "failed",
        "finished",
        "failed",
    ]
    assert [s.attributes["server.address"] for s in otel.attempts()] == ["127.0.0.1"] * 3
    assert [s.attributes["server.port"] for s in otel.attempts()] == ports
    assert len(lines(caplog, "disco.route", logging.INFO)) == 3
    assert len(lines(caplog, "disco.probe", logging.DEBUG)) == 1
    for everything in (own(caplog), otel.text()):
        assert "gpt-4o-mini" in everything
        assert CANARY not in everything
        assert KEY not in everything
