"""Stopping the real model, what stays of its work, its queue, and what it fails with."""

from __future__ import annotations

import threading
import time

import anyio
import anyio.lowlevel
import pytest
from loops import mostly
from promptly import promptly

from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError, ModelFileError
from tests.endpoints.conformance import next_event
from tests.endpoints.llamacpp.answers import ask, complete, drain, fails, fresh, until

pytestmark = [pytest.mark.real, pytest.mark.anyio]


# ---------------------------------------------------------------- stopping


async def cold(endpoint):
    """Fill the cache with something else, so that two runs begin alike."""
    await complete(endpoint, ask("Something else.", max_tokens=1))


async def from_cold(endpoint):
    await cold(endpoint)
    return (await complete(endpoint, ask(max_tokens=6)))[0]


async def read_in_part(attempt, more_than=0):
    """Have some more of a prompt read, and leave it there."""
    async with anyio.create_task_group() as group:
        group.start_soon(next_event, attempt)
        await until(lambda: attempt.usage.prompt_tokens > more_than)
        group.cancel_scope.cancel()


@mostly("trio")
async def test_the_next_answer_is_right_wherever_one_was_stopped(thread_model, anyio_backend):
    whole = await from_cold(thread_model)
    await cold(thread_model)
    async with thread_model.open(ask(max_tokens=1000)) as attempt:
        await next_event(attempt)
        with promptly(1.0):  # a token takes some milliseconds
            await attempt.aclose()
    assert await from_cold(thread_model) == whole
    long = ask("river " * 1500, max_tokens=5)
    async with thread_model.open(long) as attempt:
        await read_in_part(attempt)
        with promptly(1.0):
            await attempt.aclose()
        done = attempt.usage
    assert 0 < done.prompt_tokens < 1500
    assert done.completion_tokens == 0
    # Whole batches of it are kept.
    async with thread_model.open(long) as attempt:
        await read_in_part(attempt, more_than=done.prompt_tokens)
    assert attempt.usage.cached_tokens == done.prompt_tokens
    assert await from_cold(thread_model) == whole


async def test_a_full_queue_refuses_and_says_so():
    endpoint = LlamaCppEndpoint(model="nowhere.gguf", max_queue=1)
    endpoint._worker._thread = threading.current_thread()  # nothing works on the queue
    waiting = endpoint.open(ask())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.__anext__)
            await anyio.lowlevel.checkpoint()
            failure = await fails(endpoint, ask())
            assert failure.kind is FailureKind.RATE_LIMIT
            assert "max_queue" in str(failure.error)
            group.cancel_scope.cancel()
    # Cancelling freed its place.
    with anyio.move_on_after(0.01) as scope:
        await next_event(endpoint.open(ask()))
    assert scope.cancelled_caught


async def test_closing_fails_what_waits_and_what_comes_later():
    async with fresh(name="closing") as endpoint:
        attempt, waiting = endpoint.open(ask(max_tokens=400)), endpoint.open(ask())
        await next_event(attempt)

        async def wait():
            with pytest.raises(EndpointFailure) as caught:
                await next_event(waiting)
            assert "closed" in str(caught.value.error)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep(0.05)
            with promptly():
                await endpoint.aclose()
        assert [thread for thread in threading.enumerate() if "closing" in thread.name] == []
        with pytest.raises(EndpointFailure):
            await drain(attempt)
        assert (await fails(endpoint, ask())).kind is FailureKind.CRASHED
        await endpoint.aclose()
        assert not endpoint.capabilities().ready


def test_the_worker_outlives_an_event_loop(thread_model):
    attempts = []

    async def leave_it_running():
        attempts.append(thread_model.open(ask(max_tokens=2000)))
        await next_event(attempts[0])

    async def next_one():
        with anyio.fail_after(60):
            return await complete(thread_model, ask(max_tokens=3))

    anyio.run(leave_it_running, backend="trio")
    assert anyio.run(next_one)[2].usage.completion_tokens == 3
    assert attempts[0].usage.completion_tokens < 1900


# ---------------------------------------------------------------- failing


@mostly("trio")
async def test_what_is_wrong_with_a_file_reaches_all_that_wait(tmp_path, anyio_backend):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but not really")
    failures = []
    async with fresh(model=path, context_tokens=None) as endpoint:

        async def one():
            failures.append(await fails(endpoint, ask()))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one)
        assert [failure.kind for failure in failures] == [FailureKind.CRASHED] * 3
        assert all(isinstance(failure.error, ModelFileError) for failure in failures)
        with pytest.raises(ModelFileError, match=r"broken\.gguf"):
            await endpoint.warm_up()
        assert endpoint.capabilities().context_tokens is None


async def test_a_model_that_llama_cpp_refuses_says_why(tmp_path, thread_model, capfd):
    whole = bytearray(thread_model._worker.model.path.read_bytes())
    at = whole.index(b"llama", whole.index(b"general.architecture"))
    whole[at : at + 5] = b"lxama"
    path = tmp_path / "unknown.gguf"
    path.write_bytes(whole)
    async with fresh(model=path) as endpoint:
        with pytest.raises(LocalModelError, match="lxama"):
            await endpoint.warm_up()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")  # llama.cpp has a lot to say about it


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_chat_template_that_is_none_is_a_mistake_and_no_crash(isolation):
    async with fresh(chat_template="{% for", isolation=isolation) as endpoint:
        with pytest.raises(ConfigurationError, match="chat_template"):
            await endpoint.warm_up()
        assert endpoint.process_id is None
        assert endpoint._worker._backoff.left_s(time.monotonic()) == 0


async def test_a_chat_template_that_refuses_the_messages_is_a_bad_request():
    async with fresh(chat_template="{{ raise_exception(messages[0].content) }}") as endpoint:
        assert (await fails(endpoint, ask("my secret"))).kind is FailureKind.BAD_REQUEST


async def test_after_a_crash_the_model_is_loaded_again(monkeypatch):
    def crash(self, ids):
        raise OSError("secret")

    async with fresh() as endpoint:
        await endpoint.warm_up()
        with monkeypatch.context() as patch:
            patch.setattr(NativeModel, "decode", crash)
            failure = await fails(endpoint, ask())
        assert failure.kind is FailureKind.CRASHED
        assert isinstance(failure.error, LocalModelError)
        assert "failed while it worked" in str(failure.error)
        assert not endpoint.capabilities().ready
        assert (await complete(endpoint, ask(max_tokens=2)))[0]
