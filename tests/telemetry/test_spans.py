"""An answer as spans: what is in them, what hangs below what, and when it was."""

from __future__ import annotations

import subprocess
import sys
import threading

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from playing import run_session
from situations import situations
from watched import CANARY, answer, ask, endpoint, preset

from disco import AsyncDisco, Disco
from disco.cost import Rates
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.plan import Candidate
from disco.playback import Playback
from disco.replay.simulator.reader_columns import _has_failed_over
from disco.request import Request
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.switching.migration_rule import AnswerLengths
from disco.telemetry import RequestFacts
from disco.telemetry.otel_setup import Traced
from disco.telemetry.record_facts import facts

ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}


def events(span):
    return [event.name for event in span.events]


def test_an_answer_is_a_span_and_its_attempts_are_siblings_below_it(otel):
    live = answer(endpoint("device"), endpoint("server", ttft_s=0.3), preset(), request=ask(temperature=0.5))
    whole, attempts = otel.answer(), otel.attempts()
    assert len(otel.spans) == 3
    assert (whole.name, whole.kind, whole.parent) == ("chat gpt-4o-mini", SpanKind.CLIENT, None)
    assert whole.status.status_code is StatusCode.UNSET
    assert {a.parent.span_id for a in attempts} == {whole.context.span_id}
    assert {a.context.trace_id for a in attempts} == {whole.context.trace_id}
    has, route = dict(whole.attributes), live.record
    assert has["gen_ai.operation.name"] == "chat"
    assert has["gen_ai.provider.name"] == "disco"
    assert has["gen_ai.request.model"] == "gpt-4o-mini"
    assert has["gen_ai.request.stream"] is True
    assert has["gen_ai.request.temperature"] == 0.5
    assert has["gen_ai.response.finish_reasons"] == ("stop",)
    assert has["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.1)
    assert has["gen_ai.usage.input_tokens"] == route.attempts[0].prompt_tokens
    assert has["gen_ai.usage.output_tokens"] == route.attempts[0].completion_tokens
    assert has["disco.policy"] == "watched"
    assert (has["disco.winner"], has["disco.outcome"], has["disco.attempts"]) == ("device", "finished", 2)
    assert "error.type" not in has
    assert [a.attributes["disco.endpoint"] for a in attempts] == ["device", "server"]
    assert [a.attributes["disco.outcome"] for a in attempts] == ["finished", "lost"]
    assert [a.attributes["disco.role"] for a in attempts] == ["starter", "starter"]
    assert [a.attributes["gen_ai.provider.name"] for a in attempts] == ["local", "openai"]
    assert [a.attributes["gen_ai.request.model"] for a in attempts] == ["local/device", "gpt-4o-mini"]
    assert [a.kind for a in attempts] == [SpanKind.INTERNAL, SpanKind.CLIENT]
    assert sum(a.attributes["disco.cost_usd"] for a in attempts) == pytest.approx(has["disco.cost_usd"])
    assert has["disco.cost_usd"] == pytest.approx(route.cost)


def test_times_are_those_of_the_record(otel):
    live = answer(endpoint("device"), endpoint("server", ttft_s=0.3), preset())
    whole, (device, server), route = otel.answer(), otel.attempts(), live.record
    begin = route.created_s

    def s(ns):
        return ns / 1e9 - begin

    assert s(whole.start_time) == pytest.approx(0.0, abs=1e-5)
    assert s(whole.end_time) == pytest.approx(route.duration_s, abs=1e-5)
    assert s(device.end_time) == pytest.approx(route.attempts[0].ended_s, abs=1e-5)
    assert s(server.end_time) == pytest.approx(0.1, abs=1e-5)
    assert [(e.name, pytest.approx(s(e.timestamp), abs=1e-5)) for e in device.events] == [
        ("disco.first_token", 0.1)
    ]
    assert events(server) == []
    assert events(whole) == ["disco.first_token", "disco.first_release"]
    assert whole.events[0].attributes["disco.endpoint"] == "device"


def test_a_move_is_two_events_and_the_target_an_attempt(otel):
    device = endpoint("device", ttft_s=0.8, answer=None, answer_tokens=400)
    server = endpoint("server", answer=None, answer_tokens=400)
    live = answer(device, server, preset(moves=True, pace_tps=10.0))
    assert [t.outcome for t in live.record.migrations] == ["switched"]
    whole = otel.answer()
    assert whole.attributes["disco.migrations"] == 1
    assert whole.attributes["disco.last_writer"] == "device"
    assert events(whole)[-2:] == ["disco.move.decided", "disco.move.switched"]
    decided, switched = whole.events[-2:]
    assert decided.attributes["disco.source"] == switched.attributes["disco.source"] == "server"
    assert decided.attributes["disco.target"] == switched.attributes["disco.target"] == "device"
    assert decided.attributes["disco.outcome"] == "switched"
    assert switched.attributes["disco.took_s"] == pytest.approx(
        (switched.timestamp - decided.timestamp) / 1e9, abs=1e-5
    )
    assert "target" in {a.attributes["disco.role"] for a in otel.attempts()}
    assert "handed_over" in {a.attributes["disco.outcome"] for a in otel.attempts()}
    ((attributes, point),) = otel.points("disco.migrations")
    assert point.value == 1
    assert attributes == {"disco.source": "server", "disco.target": "device", "disco.outcome": "switched"}


@pytest.mark.parametrize("after_tokens", [0, 5])
def test_a_failover_is_an_event_and_only_the_attempt_is_an_error(otel, after_tokens):
    dying = endpoint("server", fault=Fault(after_tokens, kind=FailureKind.SERVER))
    live = answer(endpoint("device", ttft_s=0.4), dying, preset("server_only"))
    assert live.error is None
    whole, (server, device) = otel.answer(), otel.attempts()
    assert whole.status.status_code is StatusCode.UNSET
    assert server.status.status_code is StatusCode.ERROR
    assert server.attributes["error.type"] == "server"
    assert device.status.status_code is StatusCode.UNSET
    assert device.attributes["disco.role"] == ("takeover" if after_tokens else "starter")
    (event,) = (e for e in whole.events if e.name == "disco.failover")
    assert dict(event.attributes) == {
        "disco.source": "server",
        "disco.target": "device",
        "error.type": "server",
    }
    assert event.timestamp == device.start_time
    ((attributes, point),) = otel.points("disco.failovers")
    assert (attributes["disco.target"], point.value) == ("device", 1)


def test_a_failed_answer_is_an_error_with_a_class_and_without_a_message(otel):
    dying = endpoint("device", fault=Fault(3, kind=FailureKind.CRASHED))
    live = answer(dying, None, preset("device_only"))
    whole = otel.answer()
    assert whole.status.status_code is StatusCode.ERROR
    assert whole.status.description is None
    assert whole.attributes["error.type"] == type(live.error).__qualname__ == "LocalModelError"
    assert whole.attributes["disco.outcome"] == "failed"
    assert "gen_ai.response.finish_reasons" not in whole.attributes
    (attributes, point) = otel.points("gen_ai.client.operation.duration")[0]
    assert attributes["error.type"] == "LocalModelError"
    assert point.count == 1


def test_an_answer_nobody_wanted_the_rest_of_is_no_error(otel):
    answer(endpoint("device"), None, preset("device_only"), leave_after=4)
    whole, (attempt,) = otel.answer(), otel.attempts()
    assert whole.attributes["disco.outcome"] == "cancelled"
    assert whole.status.status_code is attempt.status.status_code is StatusCode.UNSET
    assert "gen_ai.response.finish_reasons" not in whole.attributes
    assert whole.end_time >= attempt.end_time > attempt.start_time


@pytest.mark.anyio
async def test_an_answer_that_the_client_is_closed_on_ends_when_its_last_event_was(otel):
    client = AsyncDisco(local=endpoint("device", ttft_s=0.01), policy="private")
    stream = await client.chat.completions.create(**ASK, stream=True)
    for _ in range(4):
        await anext(stream)
    await client.close()
    assert stream.route.finish_reason == "cancelled"
    whole, (attempt,) = otel.answer(), otel.attempts()
    assert whole.attributes["disco.outcome"] == "cancelled"
    assert whole.attributes["disco.duration_s"] > 0.01
    assert attempt.start_time < attempt.events[0].timestamp <= attempt.end_time <= whole.end_time


def test_without_streaming_nothing_is_said_about_chunks_the_application_gets(otel):
    answer(endpoint("device"), None, preset("device_only"), stream=False)
    has = otel.answer().attributes
    assert "gen_ai.request.stream" not in has
    assert "gen_ai.response.time_to_first_chunk" not in has
    assert otel.points("gen_ai.client.operation.time_to_first_chunk") == []
    assert otel.points("gen_ai.client.operation.time_per_output_chunk") == []
    ((_, first),) = otel.points("disco.generation.time_to_first_chunk")
    assert first.sum == pytest.approx(0.1)


@pytest.mark.anyio
async def test_each_answer_hangs_below_the_span_of_the_task_that_asked(otel):
    tracer = otel.provider.get_tracer("app")
    parents = {}
    seen = []

    class Curious(type(endpoint("device"))):
        def open(self, *given):
            seen.append(trace.get_current_span().get_span_context().span_id)
            return super().open(*given)

    device = Curious("device", endpoint("device", ttft_s=0.01, decode_tps=1000.0).profile, place="device")
    async with AsyncDisco(local=device, policy="private") as client:

        async def page(number):
            with tracer.start_as_current_span(f"page {number}") as mine:
                parents[f"chat model-{number}"] = mine.get_span_context().span_id
                ask = {**ASK, "model": f"model-{number}", "stream": True}
                stream = await client.chat.completions.create(**ask)
                assert trace.get_current_span() is mine
            # Read outside of the span: where it was asked for is what counts.
            assert [chunk async for chunk in stream]

        async with anyio.create_task_group() as pages:
            for number in range(3):
                pages.start_soon(page, number)
    chats = [s for s in otel.spans if s.name.startswith("chat ")]
    assert {s.name: s.parent.span_id for s in chats} == parents
    assert sorted(seen) == sorted(s.context.span_id for s in chats), (
        "an endpoint works in the span of its answer, so that an instrumented HTTP client's spans hang below it"
    )


def test_the_synchronous_client_does_the_same_from_any_thread(otel):
    tracer = otel.provider.get_tracer("app")
    parents = {}
    with Disco(local=endpoint("device", ttft_s=0.01, decode_tps=1000.0), policy="private") as client:

        def page(number):
            with tracer.start_as_current_span(f"page {number}") as mine:
                parents[f"chat model-{number}"] = mine.get_span_context().span_id
                client.chat.completions.create(**{**ASK, "model": f"model-{number}"})

        threads = [threading.Thread(target=page, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    chats = [s for s in otel.spans if s.name.startswith("chat ")]
    assert {s.name: s.parent.span_id for s in chats} == parents


@pytest.mark.anyio
async def test_what_comes_through_the_other_ways_in_is_a_span_too(otel):
    async with AsyncDisco(
        local=endpoint("device", ttft_s=0.01, decode_tps=1000.0), policy="private"
    ) as client:
        await client.responses.create(model="gpt-4o-mini", input=CANARY)
        await client.chat.completions.with_raw_response.create(**ASK)
    assert [s.name for s in otel.spans if s.name.startswith("chat")] == ["chat gpt-4o-mini"] * 2


def test_what_is_not_sampled_leaves_no_spans_but_is_counted(otel, monkeypatch):
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(otel.exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    answer(endpoint("device"), None, preset("device_only"))
    assert otel.spans == []
    assert otel.points("gen_ai.client.operation.duration")[0][1].count == 1


def test_either_half_works_alone(otel, monkeypatch):
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", None)
    answer(endpoint("device"), None, preset("device_only"))
    assert len(otel.spans) == 2
    otel.exporter.clear()
    monkeypatch.undo()
    assert trace.get_tracer_provider() is not otel.provider


def test_a_provider_may_be_set_after_the_first_answer(monkeypatch):
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    answer(endpoint("device"), None, preset("device_only"))
    for _ in range(2):  # and another one after that
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        answer(endpoint("device"), None, preset("device_only"))
        assert len(exporter.get_finished_spans()) == 2


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
def test_a_broken_provider_harms_no_answer(otel, caplog, moment):
    def fail(self, *given, **more):
        raise RuntimeError(f"broken, and tells {CANARY}")

    otel.provider.add_span_processor(type("Broken", (SpanProcessor,), {moment: fail})())
    live = answer(endpoint("device"), None, preset("device_only"))
    assert live.error is None
    assert live.record.finish_reason == "stop"
    said = [r.getMessage() for r in caplog.records if r.name == "disco"]
    assert said
    assert all(text.startswith("OpenTelemetry raised RuntimeError at ") for text in said)
    assert CANARY not in caplog.text


def test_prompts_and_answers_are_nowhere(otel):
    live = answer(
        endpoint("device"), endpoint("server", ttft_s=0.3), preset(), request=ask(stop=[CANARY * 2])
    )
    assert CANARY in live.session.transcript.text
    assert "gpt-4o-mini" in otel.text()
    assert CANARY not in otel.text()


PROGRAM = """
import sys, anyio, trio
from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
async def main():
    async with AsyncDisco(local=SimulatedEndpoint("device", place="device"), policy="private") as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "?"}], "max_tokens": 3}
        await client.chat.completions.create(**ask)
anyio.run(main)
print([name for name in sys.modules if name.startswith(("opentelemetry", "disco.telemetry.otel_setup"))])
"""


def test_where_nobody_uses_opentelemetry_nothing_of_it_is_loaded():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.strip() == "[]"
    assert ran.stderr == ""


# ---------------------------------------------------------------------- whatever happens

REQUEST = Request(messages=[{"role": "user", "content": CANARY}], model="m")


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(situations())
def test_whatever_happens_attempts_lie_within_the_answer_and_add_up(otel, situation):
    profiles, pace, costs = (situation[key] for key in ("profiles", "pace", "costs"))
    candidates = {
        name: Candidate(
            name,
            "device" if name == "device" else "any",
            Rates(1e-9, costs[name]),
            parks=name == "device",
            continues=True,
        )
        for name in profiles
    }
    config = SessionConfig(
        prompt_tokens=20, streams=situation["streams"], pace_tps=pace.tps if pace else None
    )
    session = Session(situation["plan"], candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    how = {key: situation[key] for key in ("cancel_at", "cancel_takes_s")}
    result = run_session(session, profiles, REQUEST, np.random.default_rng(situation["seed"]), **how)
    route = make_record(session, settle_accounts(session), preset="test", created_s=1e9)
    asked = RequestFacts(model="m", stream=situation["streams"], params={}, created_s=1e9)

    otel.exporter.clear()
    Traced(otel.provider.get_tracer("disco"), None, asked).finish(route, facts(route, asked, result.error))
    whole, attempts = otel.answer(), otel.attempts()
    assert len(attempts) == len(route.attempts)
    assert whole.end_time - whole.start_time == pytest.approx(route.duration_s * 1e9, abs=1e3)
    for attempt in attempts:
        assert attempt.parent.span_id == whole.context.span_id
        assert whole.start_time <= attempt.start_time <= attempt.end_time <= whole.end_time
        assert all(attempt.start_time <= e.timestamp <= attempt.end_time for e in attempt.events)
    times = [event.timestamp for event in whole.events]
    assert times == sorted(times)
    assert all(whole.start_time <= at <= whole.end_time for at in times)
    assert sum(a.attributes["disco.cost_usd"] for a in attempts) == pytest.approx(route.cost)
    assert (whole.status.status_code is StatusCode.ERROR) == (result.error is not None)
    # Whoever counts as failed over in a replay does so here; what nobody read to its end counts, too.
    assert bool(route.failovers) >= _has_failed_over(session)
