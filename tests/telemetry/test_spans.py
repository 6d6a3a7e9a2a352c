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
from opentelemetry.trace import StatusCode
from watched import CANARY, answer, endpoint, preset

from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import FailureKind
from disco.replay.simulator.reader_columns import _has_failed_over

ASK = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": CANARY}]}
QUICK = {"ttft_s": 0.01, "decode_tps": 1000.0}


def one_answer(**more):
    return answer(endpoint("device"), None, preset("device_only"), **more)


def test_without_streaming_nothing_is_said_about_chunks_the_application_gets(otel):
    one_answer(stream=False)
    assert not {"gen_ai.request.stream", "gen_ai.response.time_to_first_chunk"} & {*otel.answer().attributes}
    client = "gen_ai.client.operation"
    assert not {f"{client}.time_to_first_chunk", f"{client}.time_per_output_chunk"} & {*otel.metrics()}
    assert otel.points("disco.generation.time_to_first_chunk")[0][1].sum == pytest.approx(0.1)


class Curious(SimulatedEndpoint):
    """Notes the span that is current where it is asked."""

    seen = ()

    def open(self, *given):
        self.seen = [*self.seen, trace.get_current_span().get_span_context().span_id]
        return super().open(*given)


def test_each_answer_hangs_below_the_span_of_the_task_or_thread_that_asked(otel):
    """An endpoint works in the span of its answer, so that an instrumented HTTP client's spans hang below that."""
    device, parents = Curious("device", endpoint("device", **QUICK).profile, place="device"), {}

    @contextlib.contextmanager
    def page(model):
        with otel.provider.get_tracer("app").start_as_current_span("page") as mine:
            parents[f"chat {model}"] = mine.get_span_context().span_id
            yield {**ASK, "model": model}
            assert trace.get_current_span() is mine

    async def task(client, model):
        with page(model) as asked:
            stream = await client.chat.completions.create(**asked, stream=True)
        # Read outside of the span: where it was asked for is what counts.
        assert [chunk async for chunk in stream]

    async def main(kind):
        async with AsyncDisco(local=device, policy="private") as client, anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(task, client, f"{kind}-{number}")

    def thread(model):
        with page(model) as asked:
            client.chat.completions.create(**asked)

    for kind in ("asyncio", "trio"):
        anyio.run(main, kind, backend=kind)
    with Disco(local=device, policy="private") as client, ThreadPoolExecutor(3) as threads:
        list(threads.map(thread, ("thread-0", "thread-1", "thread-2")))
    answers = [span for span in otel.spans if span.name.startswith("chat ")]
    assert {s.name: s.parent.span_id for s in answers} == parents
    assert sorted(device.seen) == sorted(s.context.span_id for s in answers)


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
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
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
    assert {text.partition(" at ")[0] for text in said} == {"OpenTelemetry raised RuntimeError"}
    assert CANARY not in caplog.text


KINDS = st.sampled_from([FailureKind[n] for n in ("SERVER", "CRASHED", "RATE_LIMIT", "UNSERVED")])
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
    here, there = endpoint("device", **device) if device else None, endpoint("server", **server)
    live = answer(here, there, preset(policy if here else "race", **pace), **how)
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
    assert sum(a.attributes["disco.bill_usd"] for a in attempts) == pytest.approx(route.bill_usd)
    assert (whole.status.status_code is StatusCode.ERROR) == (live.error is not None)
    # Whoever counts as failed over in a replay does so here; what nobody read to its end counts, too.
    assert bool(route.failovers) >= _has_failed_over(live.session)
