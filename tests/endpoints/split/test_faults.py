"""What a layer server, or the way to it, may do at any moment: the answer is the whole model's, or fails properly."""

import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import openai
import pytest
from websockets.exceptions import ConnectionClosed

from disco.endpoints.split.layer_link import LayerServer, LinkLost
from disco.endpoints.split.split_endpoint import SplitEndpoint
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from disco.errors import (
    ConfigurationError,
    EndpointFailure,
    FailureKind,
    IncompleteAnswerError,
)
from tests.endpoints.split.asking import ask, asked, running, split_of, whole_of

pytestmark = pytest.mark.real

STORY = "Once upon a time there was a mill at a river, and the miller said: "
REQUEST = ask(STORY, temperature=0.8, seed=3, max_tokens=16)
CHUNKS = 5  # of STORY, 16 tokens each


@pytest.fixture(scope="module")
def wanted(tiny):
    async def main():
        async with running(whole_of(tiny, batch_tokens=16)) as whole:
            return await asked(whole, REQUEST)

    return anyio.run(main)


def once(what, number):
    """A script: do it with the frame of that number, counted from the first of the answer."""
    return lambda at, _frame: what if at == number else None


@contextmanager
def scripted(server, script):
    """From now on, frames are numbered from 0."""
    server._rows_seen = 0
    server.script = script
    try:
        yield
    finally:
        server.script = lambda _at, _frame: None


def seldom(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


FRAMES = [0, 1, CHUNKS - 1, CHUNKS, CHUNKS + 1, CHUNKS + 4]  # of the prompt, and of windows


@pytest.mark.parametrize(
    ("what", "drafted"),
    [
        ("drop", True),
        ("drop after", False),
        ("lost", True),
        seldom("twice", True),
        seldom("drop", False),
        seldom("drop after", True),
        seldom("lost", False),
        seldom("twice", False),
    ],
)
def test_a_link_that_breaks_at_any_frame_and_a_server_that_forgets(tiny, stand_in, wanted, what, drafted):
    async def main():
        async with running(
            split_of(tiny, stand_in, slots=1, drafted=drafted, chunks=16, branches=2)
        ) as split:
            for number in FRAMES:
                stand_in.forget()
                await asked(split, ask("Something else.", max_tokens=2))  # no chunk of the prompt is known
                connected = stand_in.connected
                with scripted(stand_in, once(what, number)):
                    assert await asked(split, REQUEST) == wanted, number
                assert (stand_in.connected > connected) == what.startswith("drop")

    anyio.run(main)


def test_a_link_that_breaks_before_it_is_made_between_answers_and_over_and_over(tiny, stand_in, wanted):
    async def main():
        async with running(split_of(tiny, stand_in, chunks=16)) as split:
            for connection in tuple(stand_in.live):
                stand_in.cut_off(connection)
            stand_in.upgrades = ["drop"]
            assert await asked(split, REQUEST) == wanted
            stand_in.upgrades = ["drop"]
            with scripted(stand_in, lambda at, _frame: "drop" if at % 3 == 2 else None):
                assert await asked(split, REQUEST) == wanted

    anyio.run(main)


def test_a_link_that_breaks_while_it_is_measured(tiny, stand_in, wanted):
    async def main():
        with scripted(stand_in, lambda at, _frame: "drop" if at in (1, 4, 9) else None):
            async with running(split_of(tiny, stand_in)) as split:
                assert await asked(split, REQUEST) == wanted

    anyio.run(main)


@pytest.mark.parametrize("drafted", [False, True])
def test_a_server_that_is_started_anew_in_mid_answer(tiny, stand_in, wanted, drafted):
    async def main():
        async with running(split_of(tiny, stand_in, drafted=drafted, chunks=16)) as split:
            attempt = split.open(REQUEST)
            text, restarted = "", False
            async for event in attempt:
                text += "".join(one.text for one in event) if isinstance(event, list) else ""
                if len(text) >= 4 and not restarted:
                    restarted = True
                    await anyio.to_thread.run_sync(stand_in.stop)
                    stand_in.start()
            assert text == wanted.text
            await attempt.aclose()

    anyio.run(main)


def failure_of(tiny, server, script=None, *, request=REQUEST, then=True, **options):
    """The failure of an answer. What comes behind it must be right."""

    async def main():
        with_patience = {"patience_s": 0.3, "chunks": 16, **options}
        async with running(split_of(tiny, server, **with_patience)) as split:
            with (
                scripted(server, script or (lambda _at, _frame: None)),
                pytest.raises(EndpointFailure) as failed,
            ):
                await asked(split, request)
            server.upgrades.clear()
            if then:
                await asked(split, ask(max_tokens=3))
            return failed.value

    return anyio.run(main)


@pytest.mark.parametrize(("first", "drafted"), [seldom(0, False), seldom(2, False), (CHUNKS + 2, True)])
def test_a_server_that_says_nothing_any_more(tiny, stand_in, first, drafted):
    failure = failure_of(
        tiny, stand_in, lambda at, _frame: "silent" if at >= first else None, drafted=drafted
    )
    assert failure.kind is FailureKind.CONNECTION
    assert "says nothing" in str(failure.error)


@pytest.mark.parametrize(
    ("what", "number", "kind"),
    [
        ("garbage", 1, FailureKind.GARBAGE),
        ("busy", CHUNKS + 2, FailureKind.RATE_LIMIT),
        ("failed", 1, FailureKind.SERVER),
        seldom("text", CHUNKS + 2, FailureKind.GARBAGE),
        seldom("garbage", CHUNKS + 2, FailureKind.GARBAGE),
        seldom("busy", 1, FailureKind.RATE_LIMIT),
    ],
)
def test_a_server_that_lies_or_refuses(tiny, stand_in, what, kind, number):
    failure = failure_of(tiny, stand_in, once(what, number))
    assert failure.kind is kind
    assert STORY[:9] not in str(failure.error)


def test_a_server_that_always_forgets_ends_the_answer(tiny, stand_in):
    failure = failure_of(tiny, stand_in, lambda at, _frame: "lost" if at > 1 else None)
    assert failure.kind is FailureKind.SERVER


@pytest.mark.slow
def test_a_server_that_talks_of_other_things_for_ever(tiny, stand_in):
    """Frames that nobody asked for are no sign that the one that was asked for will come."""
    stop = threading.Event()

    def chatters(_at, frame):
        connection = next(iter(stand_in.live))
        message = b"\x03" + bytes(31)

        def talk():
            with suppress(ConnectionClosed):
                while not stop.wait(0.01):
                    connection.send(message)

        threading.Thread(target=talk, daemon=True).start()
        return "silent"

    try:
        failure = failure_of(tiny, stand_in, chatters, then=False)
    finally:
        stop.set()
    assert failure.kind is FailureKind.CONNECTION


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (401, FailureKind.ACCOUNT, openai.AuthenticationError),
        (409, FailureKind.UNSERVED, ConfigurationError),
        seldom(429, FailureKind.RATE_LIMIT, openai.RateLimitError),
        seldom(500, FailureKind.SERVER, openai.APIStatusError),
    ],
)
def test_a_server_that_refuses_a_new_connection_is_not_asked_again(tiny, stand_in, status, kind, error):
    stand_in.upgrades = []

    def script(at, _frame):
        if at == CHUNKS + 2:
            stand_in.upgrades = [status] * 9
            return "drop"
        return None

    failure = failure_of(tiny, stand_in, script)
    assert failure.kind is kind
    assert isinstance(failure.error, error)


@pytest.mark.parametrize("drafted", [False, True])
def test_cancelling_and_closing_while_a_reply_is_due(tiny, stand_in, wanted, drafted):
    async def main():
        split = split_of(tiny, stand_in, drafted=drafted, chunks=16, branches=2, patience_s=60.0)
        with anyio.fail_after(30):
            async with running(split):
                with scripted(stand_in, lambda at, _frame: "late" if at == CHUNKS + 2 else None):
                    with anyio.move_on_after(0.15):
                        await asked(split, REQUEST)
                    assert await asked(split, REQUEST) == wanted
                with scripted(stand_in, lambda at, _frame: "silent" if at >= 2 else None):
                    attempt = split.open(REQUEST)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(_exhausted, attempt)
                        await anyio.sleep(0.1)
                        await attempt.aclose()
                # The endpoint is closed while it waits for that reply still.

    anyio.run(main)


async def _exhausted(attempt):
    async for _ in attempt:
        pass


def test_a_server_that_reads_no_more_does_not_hold_the_endpoint(tiny, stand_in):
    """A send that the network does not take ends when the endpoint is closed."""

    async def main():
        async with running(split_of(tiny, stand_in, patience_s=60.0)) as split:
            link = split.model.link
            busy = threading.Event()

            def fill():
                busy.set()
                with suppress(LinkLost):
                    while True:
                        link._write(bytearray(2**20))

            with scripted(stand_in, lambda _at, _frame: None):
                stand_in._lock.acquire()  # frames pile up in front of the model
                try:
                    thread = threading.Thread(target=fill, daemon=True)
                    thread.start()
                    await anyio.to_thread.run_sync(busy.wait)
                    await anyio.sleep(0.1)
                    link.end()
                    with anyio.fail_after(10):
                        await anyio.to_thread.run_sync(thread.join)
                finally:
                    stand_in._lock.release()

    anyio.run(main)


def test_a_head_that_fails_costs_the_answer_and_not_the_process(tiny, stand_in, wanted):
    """The engine frees the model while a drafter is at work, and loads it again for the next answer."""

    async def main():
        async with running(split_of(tiny, stand_in, drafted=True, branches=2, chunks=16)) as split:
            for number in range(3):
                model, calls = split.model, []
                compute = model._head.compute

                def fails(parts, calls=calls, compute=compute, number=number):
                    calls.append(parts)
                    if len(calls) == 2 + number:
                        raise RuntimeError("made up")
                    return compute(parts)

                model._head.compute = fails
                # Where nobody waited for that pass, the answer goes on from its tokens; and who asks while the model is
                # freed is refused.
                for _ in range(9):
                    with suppress(EndpointFailure):
                        assert await asked(split, REQUEST) == wanted
                        if model.closed:
                            break
                assert model.closed
                assert split.model is not model
                assert not split.model.closed

    anyio.run(main)


def test_states_that_float16_cannot_hold_are_refused_with_the_remedy(tiny, stand_in):
    async def main():
        async with running(split_of(tiny, stand_in, dtype=Dtype.F16)) as split:
            compute = split.model.device.compute_states
            split.model.device.compute_states = lambda *given, **more: compute(*given, **more) * 1e5
            with pytest.raises(EndpointFailure) as failed:
                await asked(split, REQUEST)
            assert failed.value.kind is FailureKind.UNSERVED
            assert isinstance(failed.value.error, IncompleteAnswerError)
            assert "float32" in str(failed.value.error)
            split.model.device.compute_states = compute
            await asked(split, ask("Another one.", max_tokens=2))

    anyio.run(main)


def test_two_devices_at_one_server_get_their_own_answers(tiny, stand_in):
    """Their sequences have the same numbers, and there are fewer slots than sequences."""
    requests = [ask(f"{text} {STORY}", temperature=0.8, seed=seed) for seed, text in enumerate("abcdef")]
    stand_in.model.slots = 3

    async def main():
        async with running(whole_of(tiny, batch_tokens=16)) as whole:
            wanted = [await asked(whole, request) for request in requests]
        found = {}
        async with (
            running(split_of(tiny, stand_in, drafted=True, chunks=16, branches=2)) as one,
            running(split_of(tiny, stand_in, chunks=16)) as other,
        ):

            async def write(number, request):
                found[number] = await asked((one, other)[number % 2], request)

            async with anyio.create_task_group() as tasks:
                for number, request in enumerate(requests):
                    tasks.start_soon(write, number, request)
        assert [found[number] for number in range(len(requests))] == wanted

    anyio.run(main)
    assert len({session for session, *_ in stand_in.frames}) == 2


@pytest.mark.slow
def test_a_server_process_that_is_killed_and_one_that_takes_its_place(tiny, wanted):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def start():
        program = [
            sys.executable,
            "-m",
            "tests.endpoints.split.layer_stand_in",
            str(tiny.cloud),
            str(port),
            "0.01",
        ]
        process = subprocess.Popen(program, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline().strip() == str(port)
        return process

    async def main():
        process = start()
        where = LayerServer(base_url=f"http://127.0.0.1:{port}/v1", dtype=Dtype.F32)
        try:
            split = SplitEndpoint(
                tiny.device, where, SplitOptions(window=4, always=True, chunks=16), context_tokens=1024
            )
            async with running(split):
                attempt = split.open(REQUEST)
                await attempt.__anext__()
                process.kill()
                with pytest.raises(EndpointFailure) as failed:
                    await _exhausted(attempt)
                assert failed.value.kind is FailureKind.CONNECTION
                await attempt.aclose()
                process.wait()
                process.stdout.close()
                process = start()
                assert await asked(split, REQUEST) == wanted
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    anyio.run(main)
