"""The lines in the log: figures in fields of their own, silence by default, and never a word of anybody's."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import httpx2
import pytest
from opentelemetry.trace import StatusCode
from scripted_server import chunk, scripted_server, sse, stream
from watched import CANARY, answer, endpoint, preset

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind


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
    route = live.record
    assert json.loads(json.dumps(fields(line))) == {
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
    ("fault", "leave_after", "outcome", "error"),
    [
        (Fault(3, kind=FailureKind.CRASHED), None, "failed", "LocalModelError"),
        (Fault(0, kind=FailureKind.CRASHED), None, "failed", "LocalModelError"),
        (None, 3, "cancelled", None),
    ],
)
def test_an_answer_that_failed_or_was_left_says_so(caplog, otel, fault, leave_after, outcome, error):
    with caplog.at_level(logging.INFO, logger="disco"):
        answer(endpoint("device", fault=fault), None, preset("device_only"), leave_after=leave_after)
    (line,) = lines(caplog, "disco.route", logging.INFO)
    assert line.getMessage().startswith(f"answer {outcome}: ")
    assert (fields(line)["outcome"], fields(line).get("error_type")) == (outcome, error)
    whole, (attempt,) = otel.answer(), otel.attempts()
    ((counted, duration),) = otel.points("gen_ai.client.operation.duration")
    for attributes in (whole.attributes, counted):
        assert (attributes["disco.outcome"], attributes.get("error.type")) == (outcome, error)
    assert duration.count == 1
    expected = StatusCode.ERROR if error else StatusCode.UNSET
    assert (whole.status.status_code, whole.status.description) == (expected, None)
    assert attempt.status.status_code is expected
    assert "gen_ai.response.finish_reasons" not in whole.attributes


def test_at_debug_level_it_says_how_the_answer_came_about(caplog):
    device = endpoint("device", ttft_s=0.8, answer=None, answer_tokens=400)
    server = endpoint("server", answer=None, answer_tokens=400)
    with caplog.at_level(logging.DEBUG, logger="disco"):
        live = answer(device, server, preset(moves=True, pace_tps=10.0))
    plan, *attempts, move = lines(caplog, "disco.route", logging.DEBUG)
    assert "start device after 0 s, server after 0 s" in plan.getMessage()
    assert "move server to device" in plan.getMessage()
    told = [(fields(a)["endpoint"], fields(a)["outcome"]) for a in attempts]
    assert told == [(t.endpoint, t.outcome) for t in live.record.attempts]
    assert fields(move) == {"source": "server", "target": "device", "outcome": "switched"}
    assert caplog.records.index(plan) == 0
    assert lines(caplog, "disco.route", logging.INFO) == caplog.records[-1:]


def test_nothing_is_computed_for_lines_that_nobody_wants(monkeypatch):
    monkeypatch.setattr("disco.telemetry.reporter.facts", None)
    assert answer(endpoint("device"), None, preset("device_only")).record.finish_reason == "stop"


PROGRAM = """
import logging, sys, anyio
from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
async def main():
    def fails(route):
        raise RuntimeError
    device = SimulatedEndpoint("device", place="device")
    async with AsyncDisco(local=device, policy="balanced", api_key="x", base_url="http://127.0.0.1:9/v1",
                          on_route=fails) as client:
        ask = {"model": sys.argv.pop(), "messages": [{"role": "user", "content": "?"}], "max_tokens": 3}
        await client.chat.completions.create(**ask)
anyio.run(main)
logging.basicConfig(format="%(levelname)s:%(name)s:%(message)s")
logging.getLogger("disco").setLevel(logging.INFO)
print("set up", file=sys.stderr)
anyio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "disco.telemetry.otel_setup"))])
"""


def test_only_a_program_that_sets_up_logging_is_told_of_what_went_wrong():
    """And OpenTelemetry is not loaded for one that does not use it."""
    command = [sys.executable, "-c", PROGRAM, "unpriced", "also unpriced"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert ran.stdout == "[]\n"
    first, *said = ran.stderr.splitlines()
    assert first == "set up"
    expected = [
        "ERROR:disco:on_route callback ",
        "INFO:disco.route:answer ",
        "WARNING:disco:No price is known",
    ]
    assert all(map(str.startswith, sorted(said), expected)), ran.stderr
    assert len(said) == 3


@pytest.mark.real
@pytest.mark.anyio
async def test_spans_name_the_servers_address_and_a_probe_is_a_line(caplog, otel):
    """That neither quotes prompts, answers or keys: tests/security/test_canary.py."""
    asked = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}
    async with scripted_server(stream(sse(chunk("It is."), chunk(finish="stop")))) as server:
        with caplog.at_level(logging.DEBUG, logger="disco"):
            async with AsyncDisco(api_key="k", base_url=server.base_url, max_retries=0) as client:
                await client.warm_up("gpt-4o-mini")
                await client.chat.completions.create(**asked)
    (attempt,) = otel.attempts()
    assert attempt.attributes["server.address"] == "127.0.0.1"
    assert attempt.attributes["server.port"] == httpx2.URL(server.base_url).port
    (probed,) = lines(caplog, "disco.probe", logging.DEBUG)
    assert fields(probed)["model"] == "gpt-4o-mini"
