"""An answer as spans: what is in them, what hangs below what, and when it was."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from watched import CANARY, answer, ask, endpoint, preset

from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.replay.simulator.reader_columns import _has_failed_over

ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}
QUICK = {"ttft_s": 0.01, "decode_tps": 1000.0}


def events(span):
    return [event.name for event in span.events]


def one_answer(**more):
    return answer(endpoint("device"), None, preset("device_only"), **more)


def test_an_answer_is_a_span_and_its_attempts_are_siblings_below_it(otel):
    live = answer(endpoint("device"), endpoint("server", ttft_s=0.3), preset(), request=ask(temperature=0.5))
    whole, attempts = otel.answer(), otel.attempts()
    assert len(otel.spans) == 3
    assert (whole.name, whole.kind, whole.parent) == ("chat gpt-4o-mini", SpanKind.CLIENT, None)
    assert whole.status.status_code is StatusCode.UNSET
    ids = (whole.context.trace_id, whole.context.span_id)
    assert {(a.context.trace_id, a.parent.span_id) for a in attempts} == {ids}
    has, route = dict(whole.attributes), live.record
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "disco",
        "gen_ai.request.model": "gpt-4o-mini",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.1),
        "gen_ai.usage.input_tokens": route.attempts[0].prompt_tokens,
        "gen_ai.usage.output_tokens": route.attempts[0].completion_tokens,
        "disco.preset": "watched",
        "disco.winner": "device",
        "disco.outcome": "finished",
        "disco.attempts": 2,
        "disco.cost_usd": pytest.approx(route.cost),
    }
    assert {name: has[name] for name in expected} == expected
    assert "error.type" not in has
    for name, values in {
        "disco.endpoint": ["device", "server"],
        "disco.outcome": ["finished", "lost"],
        "disco.role": ["starter", "starter"],
        "gen_ai.provider.name": ["local", "openai"],
        "gen_ai.request.model": ["local/device", "gpt-4o-mini"],
    }.items():
        assert [a.attributes[name] for a in attempts] == values
    assert [a.kind for a in attempts] == [SpanKind.INTERNAL, SpanKind.CLIENT]

    def s(ns):
        return pytest.approx(ns / 1e9 - route.created_s, abs=1e-5)

    device, server = attempts
    assert (s(whole.start_time), s(whole.end_time)) == (0.0, route.duration_s)
    assert (s(device.end_time), s(server.end_time)) == (route.attempts[0].ended_s, 0.1)
    assert [(e.name, s(e.timestamp)) for e in device.events] == [("disco.first_token", 0.1)]
    assert events(server) == []
    assert events(whole) == ["disco.first_token", "disco.first_release"]
    assert whole.events[0].attributes["disco.endpoint"] == "device"


def test_a_move_is_two_events_and_the_target_an_attempt(otel):
    device = endpoint("device", ttft_s=0.8, answer=None, answer_tokens=400)
    server = endpoint("server", answer=None, answer_tokens=400)
    answer(device, server, preset(moves=True, pace_tps=10.0))
    whole = otel.answer()
    assert (whole.attributes["disco.migrations"], whole.attributes["disco.last_writer"]) == (1, "device")
    assert events(whole)[-2:] == ["disco.migration.decided", "disco.migration.switched"]
    decided, switched = whole.events[-2:]
    way = {"disco.source": "server", "disco.target": "device"}
    assert decided.attributes.items() >= {**way, "disco.outcome": "switched"}.items()
    assert switched.attributes.items() >= way.items()
    took_s = (switched.timestamp - decided.timestamp) / 1e9
    assert switched.attributes["disco.took_s"] == pytest.approx(took_s, abs=1e-5)
    assert "target" in {a.attributes["disco.role"] for a in otel.attempts()}
    assert "handed_over" in {a.attributes["disco.outcome"] for a in otel.attempts()}
    ((attributes, point),) = otel.points("disco.migrations")
    assert (attributes, point.value) == ({**way, "disco.outcome": "switched"}, 1)


def test_without_streaming_nothing_is_said_about_chunks_the_application_gets(otel):
    one_answer(stream=False)
    assert not {"gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"} & set(
        otel.answer().attributes
    )
    for name in ("time_to_first_chunk", "time_per_output_chunk"):
        assert otel.points(f"gen_ai.client.operation.{name}") == []
    ((_, first),) = otel.points("disco.generation.time_to_first_chunk")
    assert first.sum == pytest.approx(0.1)


class Curious(SimulatedEndpoint):
    """Notes the span that is current where it is asked."""

    seen = ()

    def open(self, *given):
        self.seen = [*self.seen, trace.get_current_span().get_span_context().span_id]
        return super().open(*given)


@contextlib.contextmanager
def page(otel, number, parents):
    """The application's own span, and what it asks below it."""
    with otel.provider.get_tracer("app").start_as_current_span(f"page {number}") as mine:
        parents[f"chat model-{number}"] = mine.get_span_context().span_id
        yield mine, {**ASK, "model": f"model-{number}"}


@pytest.mark.anyio
async def test_each_answer_hangs_below_the_span_of_the_task_that_asked(otel):
    """An endpoint works in the span of its answer, so that an instrumented HTTP client's spans hang below that."""
    parents = {}
    device = Curious("device", endpoint("device", **QUICK).profile, place="device")
    async with AsyncDisco(local=device, policy="private") as client:

        async def task(number):
            with page(otel, number, parents) as (mine, asked):
                stream = await client.chat.completions.create(**asked, stream=True)
                assert trace.get_current_span() is mine
            # Read outside of the span: where it was asked for is what counts.
            assert [chunk async for chunk in stream]

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(task, number)
    assert {s.name: s.parent.span_id for s in otel.answers()} == parents
    assert sorted(device.seen) == sorted(s.context.span_id for s in otel.answers())


def test_the_synchronous_client_does_the_same_from_any_thread(otel):
    parents = {}

    def task(number):
        with page(otel, number, parents) as (_, asked):
            client.chat.completions.create(**asked)

    device = endpoint("device", **QUICK)
    with Disco(local=device, policy="private") as client, ThreadPoolExecutor(3) as threads:
        assert list(threads.map(task, range(3))) == [None] * 3
    assert {s.name: s.parent.span_id for s in otel.answers()} == parents


def test_spans_and_metrics_each_work_without_the_other(otel, monkeypatch):
    for none in (None, metrics.NoOpMeterProvider()):
        with monkeypatch.context() as patch:
            patch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", none)
            one_answer()
    assert (len(otel.spans), otel.metrics()) == (4, {})
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(otel.exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    one_answer()
    assert len(otel.spans) == 4
    assert otel.points("gen_ai.client.operation.duration")[0][1].count == 1


def test_a_provider_may_be_set_after_the_first_answer(monkeypatch):
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    one_answer()
    for _ in range(2):  # and another one after that
        exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
        one_answer()
        assert len(exporter.get_finished_spans()) == 2


@pytest.mark.parametrize("moment", ["on_start", "on_end"])
def test_a_broken_provider_harms_no_answer(otel, caplog, moment):
    def fail(self, *given, **more):
        raise RuntimeError(f"broken, and tells {CANARY}")

    otel.provider.add_span_processor(type("Broken", (SpanProcessor,), {moment: fail})())
    live = one_answer()
    assert (live.error, live.record.finish_reason) == (None, "stop")
    said = [r.getMessage() for r in caplog.records if r.name == "disco"]
    assert said
    assert all(text.startswith("OpenTelemetry raised RuntimeError at ") for text in said)
    assert CANARY not in caplog.text


KINDS = st.sampled_from(
    [FailureKind.SERVER, FailureKind.CRASHED, FailureKind.RATE_LIMIT, FailureKind.UNSERVED]
)
PROFILES = st.fixed_dictionaries(
    {"ttft_s": st.floats(0.01, 2.0), "decode_tps": st.floats(5.0, 200.0), "packet_tokens": st.integers(1, 8)},
    optional={"fault": st.builds(Fault, st.integers(0, 40), kind=KINDS)},
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    profiles=st.tuples(st.none() | PROFILES, PROFILES),
    policy=st.sampled_from(["race", "server_only", "device_only"]),
    pace=st.fixed_dictionaries({"moves": st.booleans(), "pace_tps": st.sampled_from(["off", 5.0, 20.0])}),
    how=st.fixed_dictionaries({"stream": st.booleans(), "leave_after": st.none() | st.integers(1, 40)}),
)
def test_whatever_happens_attempts_lie_within_the_answer_and_add_up(otel, profiles, policy, pace, how):
    otel.exporter.clear()
    device, server = profiles
    here = endpoint("device", **device) if device else None
    live = answer(
        here, endpoint("server", **server), preset("race" if here is None else policy, **pace), **how
    )
    route, whole, attempts = live.record, otel.answer(), otel.attempts()
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
    assert (whole.status.status_code is StatusCode.ERROR) == (live.error is not None)
    # Whoever counts as failed over in a replay does so here; what nobody read to its end counts, too.
    assert bool(route.failovers) >= _has_failed_over(live.session)
