"""The lines in the log: figures in fields of their own, silence by default, and never a word of anybody's."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import httpx2
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from scripted_server import chunk, scripted_server, sse, stream
from watched import CANARY, answer, ask, endpoint, preset

from disco import AsyncDisco
from disco.dispatch.presets import CascadeSection
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind


def lines(caplog, name, level):
    return [r for r in caplog.records if r.name == name and r.levelno == level]


def fields(record):
    return {k.removeprefix("disco_"): v for k, v in vars(record).items() if k.startswith("disco_")}


def events(span):
    return [event.name for event in span.events]


def test_an_answer_is_one_line_and_one_span_with_its_figures_and_its_attempts_are_siblings_below_it(
    caplog, otel
):
    device, server = endpoint("device"), endpoint("server", ttft_s=0.3)
    with caplog.at_level(logging.INFO, logger="disco"):
        route = answer(device, server, preset(pace_tps=40.0), request=ask(temperature=0.5)).record
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("disco.route", logging.INFO)
    assert line.getMessage().startswith("answer finished: device, ")
    figures = {
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
        "bill_usd": pytest.approx(route.bill_usd, abs=1e-9),
        "policy_cost": pytest.approx(route.policy_cost, abs=1e-9),
    }
    assert json.loads(json.dumps(fields(line))) == figures
    whole, (device, server) = otel.answer(), otel.attempts()
    assert len(otel.spans) == 3
    assert (whole.name, whole.kind, whole.parent) == ("chat gpt-4o-mini", SpanKind.CLIENT, None)
    assert whole.status.status_code is StatusCode.UNSET
    ids = (whole.context.trace_id, whole.context.span_id)
    assert {(a.context.trace_id, a.parent.span_id) for a in (device, server)} == {ids}
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "disco",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": figures["ttft_released_s"],
        "gen_ai.usage.input_tokens": figures["input_tokens"],
        "gen_ai.usage.output_tokens": figures["output_tokens"],
        **{f"disco.{n}": figures[n] for n in ("preset", "winner", "outcome", "attempts", "bill_usd")},
    }
    assert {name: whole.attributes[name] for name in expected} == expected
    assert "error.type" not in whole.attributes
    for name, values in {
        "disco.endpoint": ("device", "server"),
        "disco.outcome": ("finished", "lost"),
        "disco.role": ("starter", "starter"),
        "gen_ai.provider.name": ("local", "openai"),
        "gen_ai.request.model": ("local/device", "gpt-4o-mini"),
    }.items():
        assert (device.attributes[name], server.attributes[name]) == values
    assert (device.kind, server.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    first_s = (device.events[0].timestamp - whole.start_time) / 1e9
    assert (events(device), first_s) == (["disco.first_token"], pytest.approx(0.1, abs=1e-5))
    assert (events(server), events(whole)) == ([], ["disco.first_token", "disco.first_release"])
    assert whole.events[0].attributes["disco.endpoint"] == "device"


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


UNITS = {
    "gen_ai.client.operation.duration": "s",
    "gen_ai.client.operation.time_to_first_chunk": "s",
    "gen_ai.client.operation.time_per_output_chunk": "s",
    "gen_ai.client.token.usage": "{token}",
    "disco.generation.time_to_first_chunk": "s",
    "disco.generation.time_per_output_chunk": "s",
    "disco.bill": "{USD}",
    "disco.device_energy": "J",
    "disco.policy_cost": "{USD}",
    "disco.attempts": "{attempt}",
    "disco.migrations": "{move}",
    "disco.failovers": "{failover}",
}


SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple(4**n for n in range(14))


def test_at_debug_level_the_log_and_always_spans_and_metrics_say_how_the_answer_came_about(caplog, otel):
    dies = endpoint("server", fault=Fault(5, kind=FailureKind.SERVER))
    answer(endpoint("device", ttft_s=0.4), dies, preset("server_only"))
    otel.exporter.clear()
    caplog.clear()
    long = {"answer": None, "answer_tokens": 400}
    device, server = endpoint("device", ttft_s=0.8, **long), endpoint("server", **long)
    with caplog.at_level(logging.DEBUG, logger="disco"):
        route = answer(device, server, preset(moves=True, pace_tps=10.0)).record
    plan, *attempts, move = lines(caplog, "disco.route", logging.DEBUG)
    assert "start device after 0 s, server after 0 s" in plan.getMessage()
    assert "move server to device" in plan.getMessage()
    told = [(fields(a)["endpoint"], fields(a)["outcome"]) for a in attempts]
    assert told == [(t.endpoint, t.outcome) for t in route.attempts]
    assert fields(move) == {"source": "server", "target": "device", "outcome": "switched"}
    assert caplog.records.index(plan) == 0
    assert lines(caplog, "disco.route", logging.INFO) == caplog.records[-1:]

    whole = otel.answer()
    assert (whole.attributes["disco.migrations"], whole.attributes["disco.last_writer"]) == (1, "device")
    assert events(whole)[-2:] == ["disco.migration.decided", "disco.migration.switched"]
    decided, switched = whole.events[-2:]
    way = {"disco.source": "server", "disco.target": "device"}
    moved = {**way, "disco.outcome": "switched"}
    assert decided.attributes.items() >= moved.items()
    assert switched.attributes.items() >= way.items()
    took_s = (switched.timestamp - decided.timestamp) / 1e9
    assert switched.attributes["disco.took_s"] == pytest.approx(took_s, abs=1e-5)
    for name, value in {"disco.role": "target", "disco.outcome": "handed_over"}.items():
        assert value in {a.attributes[name] for a in otel.attempts()}

    assert [(a, point.value) for a, point in otel.points("disco.migrations")] == [(moved, 1)]
    found = otel.metrics()
    assert {name: metric.unit for name, metric in found.items()} == UNITS
    for metric in found.values():
        for point in metric.data.data_points:
            if bounds := {"s": SECONDS, "{token}": TOKENS}.get(metric.unit):
                assert point.explicit_bounds == bounds


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


def test_a_program_that_sets_up_no_logging_sees_only_what_concerns_a_person():
    """And OpenTelemetry is not loaded for one that does not use it."""
    command = [sys.executable, "-c", PROGRAM, "unpriced", "also unpriced"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert ran.stdout == "[]\n"
    price, first, *said = ran.stderr.splitlines()
    assert price.startswith("disco:1: DiscoWarning: No price is known for the model 'also unpriced'")
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


def test_a_judged_answer_says_what_was_judged_and_what_followed(caplog, otel):
    surely_up = preset("cascade").model_copy(update={"cascade": CascadeSection(beta=0.99)})
    with caplog.at_level(logging.DEBUG, logger="disco"):
        device, server = endpoint("device", mean_logp=-1.0), endpoint("server")
        (judgement,) = answer(device, server, surely_up, stream=False).record.judgements
    *_, detail = lines(caplog, "disco.route", logging.DEBUG)
    (line,) = lines(caplog, "disco.route", logging.INFO)
    assert "judged device by " in detail.getMessage()
    assert "handed_up, score " in detail.getMessage()
    assert fields(detail)["score"] == judgement.score
    assert "migrations 0, judged 1, handed up 1; " in line.getMessage()
    counts = {"judged": 1, "handed_up": 1, "stood": 0}
    assert {name: fields(line)[name] for name in counts} == counts
    whole = otel.answer()
    assert {name: whole.attributes[f"disco.{name}"] for name in counts} == counts
    (event,) = (event for event in whole.events if event.name == "disco.judged")
    assert dict(event.attributes) == {
        "disco.endpoint": "device",
        "disco.task": "default",
        "disco.confidence": judgement.kind,
        "disco.outcome": "handed_up",
        "disco.score": judgement.score,
    }
    assert CANARY not in caplog.text
