"""What a client does that was told nothing, or one thing: who answers, who takes over, who waits, and why."""

from __future__ import annotations

from typing import Any

import anyio
import httpx2
import openai
import pytest
from defects.asking import ask, client, create, device, preset, prose, question, text_of, tried
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread, spoken  # noqa: F401 - fixtures

from disco import Backup, ConfigurationError, Disco, NoEndpointError
from disco.reasons import sentence

pytestmark = pytest.mark.anyio

SAID = "From there."
JSON = {"content-type": "application/json"}
REFUSED = Reply([b'{"error": {"message": "no", "code": "invalid_api_key"}}'], 401, JSON)
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


def server(first_s: float = 0.3) -> MemoryServer:
    return MemoryServer(spoken([SAID], first_s=first_s))


def quick_device(**more: Any) -> Any:
    return device(**{"answer": "From here.", "ttft_s": 0.05, **more})


def backup(of: MemoryServer, reply: Any, name: str = "backup-1") -> Backup:
    """Another server, in the same memory."""
    http = httpx2.AsyncClient(transport=of)
    return Backup(
        base_url=of.also(reply), api_key="another-key-1234", model="other", name=name, http_client=http
    )


def started(route: Any) -> list[str]:
    return [name for name, _ in route.starts]


# ---------------------------------------------------------------------- nothing said


async def test_where_nothing_is_said_the_server_answers_whatever_the_device_could_do():
    async with client(server(), local=quick_device()) as one:
        for words in range(5, 400, 10):
            answer = await ask(one, question(words))
            assert (answer.text, tried(answer)) == (SAID, [("server", None)])
        whole = await ask(one, question(5), stream=False)
        structured = await create(one, question(5), response_format=SCHEMA)
    assert whole.route.preset == "server-first"
    assert structured.route.winner == "server"


async def test_where_nothing_is_said_and_there_is_no_server_the_device_answers():
    async with client(local=quick_device()) as one:
        assert (await ask(one)).text == "From here."


@pytest.mark.parametrize("how", [{}, {"policy": preset("server_only")}])
async def test_backups_take_over_before_the_device(how):
    fails = MemoryServer(REFUSED)
    good = backup(fails, spoken(["From the backup."]))
    async with client(fails, local=quick_device(), backups=[good], **how) as one:
        for _ in range(8):
            answer = await ask(one)
            assert answer.text == "From the backup."
            assert all(name != "device" for name, _ in tried(answer))


async def test_the_device_takes_over_where_no_server_can():
    fails = MemoryServer(REFUSED)
    worse = backup(fails, Reply([b"{}"], 500, JSON))
    async with client(fails, local=quick_device(), backups=[worse]) as one:
        assert (await ask(one)).text == "From here."


async def test_a_server_that_is_later_than_it_usually_is_is_joined_by_the_next_one():
    late = MemoryServer(*[spoken([SAID], first_s=0.2)] * 60, spoken([SAID], first_s=25.0))
    async with client(late, local=quick_device()) as one:
        for _ in range(60):
            await ask(one)
        answer = await ask(one)
    assert answer.text == "From here."
    assert answer.route.pace.ttft_released_s < 3


async def test_half_an_answer_goes_on_elsewhere():
    text = [f"word{n} " for n in range(12)]
    breaks = MemoryServer(Reply([0.1, *_chunks(text[:5]), 0.1]))
    async with client(breaks, local=quick_device(answer="".join(text))) as one:
        answer = await ask(one)
    assert answer.text.startswith("word0 word1 word2")
    assert [name for name, _ in tried(answer)] == ["server", "device"]
    assert answer.route.seamless


def _chunks(pieces: list[str]) -> list[bytes]:
    return [step for step in spoken(pieces).steps if isinstance(step, bytes)][: len(pieces)]


# ---------------------------------------------------------------------- the order, and a pin


@pytest.mark.parametrize("where", ["the client's options", "the request", "the preset"])
@pytest.mark.parametrize(
    ("order", "text"), [(["device"], "From here."), (["second", "device"], "From the second.")]
)
async def test_the_order_of_taking_over_is_the_users(where, order, text):
    fails = MemoryServer(REFUSED)
    more: dict[str, Any] = {}
    if where == "the client's options":
        more["default_options"] = {"takeover": order}
    elif where == "the preset":
        more["policy"] = preset("server_only", takeover=order)
    first, second = (backup(fails, spoken([f"From the {name}."]), name) for name in ("first", "second"))
    async with client(fails, local=quick_device(), backups=[first, second], **more) as one:
        assert (await ask(one, **{"takeover": order} if where == "the request" else {})).text == text


async def test_a_request_can_be_pinned_to_one_endpoint():
    fails = MemoryServer(Reply([b"{}"], 500, JSON))
    good = backup(fails, spoken(["From the backup."]))
    async with client(fails, local=quick_device(), backups=[good]) as one:
        here, there = await ask(one, endpoint="device"), await ask(one, endpoint="backup-1")
        assert (here.text, there.text) == ("From here.", "From the backup.")
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(one, endpoint="server")
        assert {name for name, _ in tried(caught.value)} == {"server"}
        left_out = {reason.endpoint: reason for reason in here.route.why if reason.does == "left_out"}
        assert set(left_out) == {"server", "backup-1"}
        assert "pinned to device" in sentence(left_out["server"])


async def test_a_pin_that_cannot_serve_says_so_and_asks_nobody():
    async with client(asked := server(), local=quick_device(features=frozenset())) as one:
        with pytest.raises(NoEndpointError, match=r"server \(server\): the request is pinned to 'device'"):
            await create(one, question(), response_format=SCHEMA, disco={"endpoint": "device"})
    assert not asked.requests


async def test_a_pinned_request_that_would_be_passed_on_is_not_sent():
    async with client(asked := server(), local=quick_device()) as one:
        with pytest.raises(NoEndpointError, match="pinned to 'device', so nothing was sent") as refused:
            await create(one, question(), modalities=["text", "audio"], disco={"endpoint": "device"})
        assert refused.value.param == "modalities"
        assert len((await create(one, question(), n=2, disco={"endpoint": "device"})).choices) == 2
    assert not asked.requests


@pytest.mark.parametrize("options", [{"endpoint": "devise"}, {"takeover": ["devise"]}])
async def test_a_name_of_no_endpoint_is_named_with_the_nearest(options):
    async with client(server(), local=quick_device()) as one:
        with pytest.raises(ConfigurationError, match=r"'devise'.*Did you mean 'device'"):
            await ask(one, **options)


# ---------------------------------------------------------------------- balanced: cold, and with a queue


async def test_a_cold_client_asks_the_server_for_the_share_that_its_preset_says():
    """Two of 240 requests were, by a prior of much longer prompts."""
    async with client(server(), local=quick_device(), preset="balanced") as one:
        routes = [(await ask(one, question(20 + 7 * (n % 12)))).route for n in range(240)]
    read = sum(route.prompt_tokens for route in routes)
    by_server = sum(route.prompt_tokens for route in routes if "server" in started(route))
    # The budget's own bound is one prompt over in each of its windows, and here is more than one window.
    assert 0.4 * read < by_server < 0.55 * read
    assert sum("server" in started(route) for route in routes[:24]) >= 6  # and not only in the end


@pytest.mark.parametrize("users", [2, 6, 20])
async def test_nobody_waits_behind_the_device_while_the_server_idles(users):
    """One device that writes one answer at a time, three seconds each, and a server with its first word after 0.6 s."""
    slow = {"ttft_s": 0.2, "decode_tps": 20.0, "answer_tokens": 60}
    async with client(server(0.6), local=quick_device(**slow), preset="balanced") as one:
        for _ in range(4):  # it knows the device a little
            await ask(one)
        for _ in range(5):
            firsts: list[float] = []

            async def user(n: int, into: list[float] = firsts) -> None:
                answer = await ask(one, question(30, about=f"user{n}"))
                into.append(answer.route.pace.ttft_released_s)

            async with anyio.create_task_group() as group:
                for n in range(users):
                    group.start_soon(user, n)
            assert max(firsts) <= 1.5 * 0.6 + 0.31  # and what playback may hold text back


async def test_where_the_preset_says_wait_the_budget_decides_behind_a_busy_device():
    slow = {"ttft_s": 0.2, "decode_tps": 20.0, "answer_tokens": 60}
    waits = preset("length_threshold", budget=0.1, when_busy="wait")
    async with client(server(0.6), local=quick_device(**slow), policy=waits) as one:
        routes: list[Any] = []

        async def user(n: int) -> None:
            for turn in range(10):
                answer = await ask(one, question(30, about=f"user{n}-{turn}"))
                routes.append(answer.route)

        async with anyio.create_task_group() as group:
            for n in range(6):
                group.start_soon(user, n)
    read = sum(route.prompt_tokens for route in routes)
    by_server = sum(route.prompt_tokens for route in routes if "server" in started(route))
    assert (
        by_server <= 0.1 * read + 50 + 0.1 * 200 * 7
    )  # one prompt, and the shortest ones of a window yet to come


async def test_a_prompt_that_the_device_would_read_for_long_is_sent_to_the_server_too():
    reader = quick_device(ttft_s=4.4)
    async with client(server(0.2), local=reader, preset="balanced") as one:
        for _ in range(3):
            await ask(one, question(10))
        answer = await ask(one, question(835))
    assert (answer.text, started(answer.route)) == (SAID, ["device", "server"])


async def test_text_is_passed_on_as_it_comes_where_nothing_is_said():
    spread = MemoryServer(spoken(prose(30), gap_s=0.01))
    async with client(spread, local=quick_device()) as one:
        stream = await create(one, stream=True)
        await text_of(stream)
    shown, written = stream.route.released, stream.route.generated
    assert [at for at, _ in shown] == pytest.approx([at for at, _ in written], abs=1e-3)


# ---------------------------------------------------------------------- refused when a client is made


@pytest.mark.parametrize("option", [{"takeover": ["devise"]}, {"endpoint": "devise"}])
def test_a_name_of_no_endpoint_among_the_defaults_is_refused_at_once(option):
    with pytest.raises(ConfigurationError, match=r"'devise'.*Did you mean 'device'"):
        Disco(api_key="k", local=quick_device(), default_options=option, state=False)


@pytest.mark.parametrize("preset", [None, 5])
def test_a_preset_that_is_none_is_named(preset):
    with pytest.raises(ConfigurationError, match=f"preset is {preset}. Leave it out for the default"):
        Disco(api_key="k", preset=preset, state=False)
