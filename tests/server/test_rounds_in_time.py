"""Rounds that take a while: clients that leave, windows at the same time, a server that ends. In virtual time."""

from __future__ import annotations

import json

import anyio
import pytest
from asgi import ask, part, pieces, simulated
from fake_engine import FIRST, KEY, ROUNDS, FakeEngine, a_round, lines, token
from watched import virtually

from disco.server import Metrics, make_app


def leaves_after(seconds):
    """A `receive` of a client that sends its round, and closes the connection so long after."""

    def made(body):
        left = [part(json.dumps(body).encode(), more=False)]

        async def receive():
            if left:
                return left.pop()
            await anyio.sleep(seconds)
            return {"type": "http.disconnect"}

        return receive

    return made


@pytest.mark.parametrize("alone", [0, 100])
def test_a_client_that_leaves_stops_its_round_at_once(alone):
    async def main():
        engine = FakeEngine(gap_s=10.0)
        metrics = Metrics()
        app = make_app(simulated(), verifier=engine, metrics=metrics, max_concurrent=1)
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "root_path": "", "query_string": b"", "method": "POST", "path": ROUNDS}
        scope["headers"] = [(b"host", b"localhost")]
        began_at = anyio.current_time()
        await app(scope, leaves_after(25.0 if alone else 5.0)({**FIRST, "alone": alone}), send)
        took_s = anyio.current_time() - began_at
        assert took_s == pytest.approx(25.0 if alone else 5.0)
        assert (engine.working, engine.left) == (0, 1)
        assert sum(message["type"] == "http.response.body" for message in sent) == (2 if alone else 0)
        page = metrics.text().decode()
        status = 200 if alone else 499
        assert f'disco_http_requests_total{{path="{ROUNDS}",status="{status}"}} 1.0' in page
        assert (await ask(app, ROUNDS, FIRST)).status == 200, (
            "its place is free again, and its answer is there"
        )

    virtually(main)


def test_two_windows_of_one_answer_may_be_on_their_way():
    """The second is in the engine before the first has been answered."""

    async def main():
        engine = FakeEngine(gap_s=1.0)
        app = make_app(simulated(), verifier=engine)
        await ask(app, ROUNDS, FIRST)
        came = {}

        async def window(number, at, *draft):
            came[number] = (await ask(app, ROUNDS, a_round(number, at, *draft))).json

        began_at = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(window, 1, 1, token(1), token(2))
            await anyio.sleep(0.5)
            tasks.start_soon(window, 2, 4, token(4))
        assert anyio.current_time() - began_at == pytest.approx(1.5)
        assert (came[1]["ids"], came[2]["at"]) == ([token(1), token(2), token(3)], 4)
        assert came[2]["ids"] == [token(4), token(5)]

    virtually(main)


def test_a_round_in_progress_is_told_when_the_server_ends():
    async def main():
        app = make_app(simulated(), verifier=FakeEngine(gap_s=1.0))
        said = {}

        async def go(name, body):
            said[name] = await ask(app, ROUNDS, body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go, "window", FIRST)
            tasks.start_soon(go, "alone", {**FIRST, "key": KEY[::-1], "alone": 50})
            tasks.start_soon(go, "long", {**FIRST, "key": "f" * 32, "alone": 50})
            await anyio.sleep(0.9)
            app.state.limiter.close()
        assert (said["window"].status, said["window"].error["code"]) == (503, "shutting_down")
        assert (said["alone"].status, said["alone"].error["code"]) == (503, "shutting_down")

    virtually(main)


def test_lines_that_are_broken_off_end_with_the_reason():
    async def main():
        app = make_app(simulated(), verifier=FakeEngine(gap_s=1.0))
        said = []

        async def go():
            said.append(await ask(app, ROUNDS, {**FIRST, "alone": 50}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await anyio.sleep(2.5)
            app.state.limiter.close()
        *verdicts, last = lines(said[0])
        assert [v["ids"] for v in verdicts] == [[token(0)], [token(1)]]
        assert last["error"]["code"] == "shutting_down"

    virtually(main)


def test_a_body_that_never_ends_takes_no_place():
    async def main():
        app = make_app(simulated(), verifier=FakeEngine(), max_concurrent=1)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, app, ROUNDS, {}, pieces(part(b"{")))
            await anyio.sleep(1.0)
            assert (await ask(app, ROUNDS, FIRST)).status == 200
            app.state.limiter.close()

    virtually(main)
