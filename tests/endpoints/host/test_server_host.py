"""A host that is llama-server: a crash, a broken file, strangers, and two at once."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import httpx2
import pytest

from disco import AsyncDisco
from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.errors import EndpointFailure, FailureKind, LocalModelError, ModelFileError
from disco.testing import Subject
from disco.testing.asking import ask, complete, endless, first_content
from tests.endpoints.host.processes import is_alive, listens_at, needs_proc, told

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.real, pytest.mark.anyio]
SECRET = "the heron at the weir"


@pytest.fixture
def anyio_backend():
    """The conformance suite runs on both loops; a process takes its time on either."""
    return "asyncio"


@asynccontextmanager
async def own(**options):
    endpoint = HostEndpoint(
        **{"name": "device", "runtime": "llama-server", "context_tokens": 1024, "threads": 1, **options}
    )
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


async def until(what):
    with anyio.fail_after(60):
        while not what():  # noqa: ASYNC110 - the state of another process, or thread
            await anyio.sleep(0.02)


@needs_proc
@pytest.mark.parametrize("runtime", ["engine", "llama-server"])
async def test_the_host_is_this_users_and_keyed_and_shows_no_prompt(runtime, caplog):
    caplog.set_level(logging.DEBUG)
    async with own(runtime=runtime) as endpoint:
        await complete(endpoint, ask(f"Repeat: {SECRET}", max_tokens=8))
        serving = endpoint._process.current
        assert listens_at(serving.pid) == [], "no port"
        folder = Path(serving.socket).parent
        assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=serving.socket)) as client:
            for path, key, status in (
                ("/v1/models", "", 401),
                ("/v1/models", "guessed", 401),
                ("/v1/models", serving.api_key, 200),
                *([("/props", "", 401), ("/slots", serving.api_key, 501)] if runtime != "engine" else []),
            ):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                answered = await client.get(f"http://localhost{path}", headers=headers)
                assert answered.status_code == status, path
        assert serving.api_key.encode() not in told(serving.pid), "other users of the machine could read it"
        assert serving.api_key not in f"{serving!r}{caplog.text}"
    assert SECRET not in caplog.text
    assert not folder.exists()


async def test_a_crash_in_mid_answer_fails_over_to_the_next_process():
    async with own() as endpoint:
        await endpoint.warm_up()
        async with AsyncDisco(local=endpoint, preset="private", state=False) as client:
            stream = await client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "Write a long story about a river and a mill."}],
                max_tokens=30,
                temperature=0.0,
                stream=True,
            )
            first, text = endpoint._process.current, ""
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                if len(text) > 20 and endpoint.process_id == first.pid:
                    os.kill(first.pid, signal.SIGKILL)
        route, second = stream.route, endpoint._process.current
        assert route.seamless
        assert len(route.segments) == 2
        assert {attempt.failure for attempt in route.attempts} == {"crashed", None}
        assert route.finish_reason in ("length", "stop")
        assert second.pid != first.pid
        assert second.api_key != first.api_key


@pytest.mark.slow
async def test_the_failure_of_a_killed_process_says_what_happened_and_when_it_comes_back():
    async with own() as endpoint:
        async with endpoint.open(endless(Subject(context_tokens=1024))) as attempt:
            await first_content(attempt)
            os.kill(endpoint.process_id, signal.SIGKILL)
            with pytest.raises(EndpointFailure) as failed:
                async for _ in attempt:
                    pass
        assert failed.value.kind is FailureKind.CRASHED
        assert isinstance(failed.value.error, LocalModelError)
        assert 0.0 < failed.value.retry_after_s < 2.0
        await until(lambda: "SIGKILL" in endpoint._process._backoff.why)
        message = str(endpoint._process.lost().error)
        assert message.startswith(
            "The process of endpoint 'device' was killed (SIGKILL), probably because memory"
        )
        await until(lambda: endpoint.capabilities().ready)  # without a request
        assert (await complete(endpoint, ask(max_tokens=4)))[1] > 0


def of_an_unknown_kind(tmp_path: Path) -> Path:
    data = bytearray(resolve_model("smollm2-135m").read_bytes())
    at = data.find(b"llama", 0, 2000)
    data[at : at + 5] = b"xlama"
    file = tmp_path / "unknown.gguf"
    file.write_bytes(data)
    return file


def cut_off(tmp_path: Path) -> Path:
    file = tmp_path / "cut.gguf"
    file.write_bytes(resolve_model("smollm2-135m").read_bytes()[:3_000_000])
    return file


@pytest.mark.parametrize(
    ("made", "kind", "cause"),
    [
        (cut_off, ModelFileError, "is truncated: 3,000,000 of at least"),
        (lambda tmp_path: tmp_path / "none.gguf", ModelFileError, "There is no model file"),
        pytest.param(
            of_an_unknown_kind,
            LocalModelError,
            "unknown model architecture: 'xlama'",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_file_that_cannot_be_used_says_why(tmp_path, made, kind, cause):
    async with own(model=made(tmp_path)) as endpoint:
        for _ in range(2):  # the second request tries again
            with pytest.raises(kind, match=re.escape(cause)):
                await endpoint.warm_up()
        await until(lambda: endpoint._process._child is None)


async def test_a_package_that_cannot_be_loaded_says_why(tmp_path, monkeypatch):
    broken = "raise ImportError('libgomp.so.1: cannot open shared object file')"
    (tmp_path / "xllamacpp.py").write_text(broken, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    async with own() as endpoint:
        with pytest.raises(LocalModelError, match=r"ImportError: libgomp\.so\.1: cannot open"):
            await endpoint.warm_up()


async def test_a_load_that_takes_too_long_is_ended():
    async with own(load_within_s=0.01) as endpoint:
        with pytest.raises(LocalModelError, match=r"was still loading after 0\.01 s and was ended"):
            await endpoint.warm_up()
        await until(lambda: endpoint._process._child is None)


@pytest.mark.slow
async def test_two_endpoints_have_two_processes_and_two_keys():
    async with own() as one, own() as other:
        async with anyio.create_task_group() as group:
            group.start_soon(complete, one, ask(max_tokens=4))
            group.start_soon(complete, other, ask(max_tokens=4))
        first, second = one._process.current, other._process.current
        assert len({first.pid, second.pid}) == len({first.socket, second.socket}) == 2
        assert first.api_key != second.api_key


@pytest.mark.slow
async def test_several_answers_at_once_where_the_endpoint_was_given_slots():
    async with own(slots=2) as endpoint:
        await endpoint.warm_up()
        assert endpoint.capabilities().context_tokens == 1024
        async with endpoint.open(endless(Subject(context_tokens=1024))) as first:
            await first_content(first)
            assert endpoint.capabilities().waiting == 0
            assert (await complete(endpoint, ask(max_tokens=4)))[1] == 4  # the first one still writes


@pytest.mark.slow
async def test_waiting_for_the_load_can_be_cancelled_and_the_load_goes_on():
    async with own() as endpoint:
        with anyio.move_on_after(0.01):
            await endpoint.warm_up()
        assert endpoint.capabilities().loading_s is not None
        await until(lambda: endpoint.capabilities().ready)
        assert endpoint.capabilities().load_s > 0


@pytest.mark.slow
async def test_closing_ends_the_process_also_while_it_loads():
    async with own() as endpoint:
        await endpoint.warm_up()
        pid = endpoint.process_id
    assert not is_alive(pid)
    async with own() as endpoint:
        with anyio.move_on_after(0.01):
            await endpoint.warm_up()
    with pytest.raises(LocalModelError, match="is closed"):
        await endpoint.warm_up()


@pytest.mark.parametrize("param", ["grammar", "guided_regex", "frobnicate"])
async def test_a_parameter_that_the_server_would_drop_or_print_is_refused_by_name(server_host, param):
    await server_host.warm_up()
    asked = ask(max_tokens=2)
    asked = replace(asked, params={**asked.params, param: "[0-9]+"})
    with pytest.raises(EndpointFailure) as failed:
        await complete(server_host, asked)
    assert f"does not serve {param}" in str(failed.value.error)
    assert failed.value.kind is FailureKind.UNSERVED, "another endpoint may serve it"
    assert (await complete(server_host, ask(max_tokens=2)))[1] == 2, "its turn is over"


async def test_the_speed_is_measured_by_the_server_that_writes(server_host):
    steps = []
    measured = await server_host.measure(
        prompt_tokens=(16, 64, 9999), depths=(32,), decode_tokens=8, progress=lambda *step: steps.append(step)
    )
    assert [one.tokens for one in measured.prefill] == [16, 64]
    assert all(one.seconds_s > 0 for one in measured.prefill)
    assert [one.depth_tokens for one in measured.decode] == [32]
    assert measured.decode[0].tps > 1
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert (measured.threads, measured.context_tokens) == (1, 2048)


TEMPLATE = """{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }} Write <tool_call>
{"name": ..., "arguments": ...}
</tool_call> to call one.<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{{ mood }}{% endif %}"""


async def test_a_template_with_a_place_for_tools_gets_them_and_a_required_call_is_made():
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": city}}
    asked = {"model": "any", "messages": [{"role": "user", "content": "Hello."}], "temperature": 0.0}
    async with (
        own(chat_template=TEMPLATE) as endpoint,
        AsyncDisco(local=endpoint, preset="private", state=False) as client,
    ):
        create = client.chat.completions.create
        plain = await create(**asked, max_tokens=1)
        offered = await create(**asked, max_tokens=1, tools=[tool])
        assert offered.usage.prompt_tokens > plain.usage.prompt_tokens + 40, "the template shows them"
        forced = await create(**asked, max_tokens=60, tools=[tool], tool_choice="required")
        assert forced.usage.prompt_tokens == offered.usage.prompt_tokens
        assert forced.choices[0].finish_reason == "tool_calls"
        (call,) = forced.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
        hint = {"mood": "calm calm calm", "messages": [], "tools": [tool]}
        hinted = await create(**asked, max_tokens=1, extra_body={"chat_template_kwargs": hint})
        assert 0 < hinted.usage.prompt_tokens - plain.usage.prompt_tokens < 10, "the variable alone"
