"""The pair with real models, in two processes: its answers are the server's own, byte for byte."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from server.command_process import KEY, running, signals

from disco import AsyncDisco
from disco.cost import Phase
from disco.endpoints.contract import Endpoint

pytestmark = [pytest.mark.anyio, pytest.mark.real]

ASKED = [{"role": "user", "content": "Write the numbers from one to twenty as words, one after the other."}]
PARAMS = {"model": "m", "messages": ASKED, "max_tokens": 24, "seed": 11}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def preset(**speculate: Any) -> dict[str, Any]:
    return {
        "dispatch": {"policy": "server_only"},
        "playback": {"pace_tps": "off"},
        "speculate": {"window": 4, **speculate},
    }


def stays(**options: Any) -> dict[str, Any]:
    return {"disco": {"migrate": False, **options}}


@signals
async def test_an_answer_is_the_servers_own_and_the_device_goes_on_from_a_killed_one(
    thread_model: Endpoint,
) -> None:
    options = ("--verify", "smollm2-135m", "--slots", "2", "--context", "512", "--threads", "1")
    with running(*options, "--preset", "private", DISCO_SERVER_KEY=KEY) as (process, (host, port)):

        def client(drafter: str) -> AsyncDisco:
            return AsyncDisco(
                local=thread_model,
                api_key=KEY,
                base_url=f"http://{host}:{port}/v1",
                speculate="always",
                preset=preset(drafter=drafter),
                price=(1.0, 2.0),
            )

        for drafter, temperature in (("local", 0.8), ("ngram", 0.0)):
            async with client(drafter) as made:
                await made.warm_up()
                asked = {**PARAMS, "temperature": temperature}
                plain = await made.chat.completions.create(**asked, extra_body=stays(speculate=False))
                drafted = await made.chat.completions.create(**asked, extra_body=stays())
            assert drafted.choices[0].message.content == plain.choices[0].message.content
            assert drafted.choices[0].finish_reason == plain.choices[0].finish_reason
            assert drafted.usage.completion_tokens == plain.usage.completion_tokens
            assert drafted.usage.prompt_tokens == plain.usage.prompt_tokens
            (attempt,) = drafted.route.attempts
            report = attempt.speculation
            assert report.distributed_tokens + report.alone_tokens == drafted.usage.completion_tokens
            charges = {(c.endpoint, c.phase) for c in drafted.route.ledger.charges}
            assert (("device", Phase.DRAFT) in charges) == (drafter == "local")
            assert report.drafted > 0
            if drafter == "local":
                assert report.accepted > 5

        async with client("local") as made, anyio.create_task_group() as group:
            await made.warm_up()
            answers: list[Any] = []

            async def ask() -> None:
                long = {**PARAMS, "max_tokens": 96}  # so long that it is not over before the server is killed
                answers.append(
                    await made.chat.completions.create(**long, temperature=0.0, extra_body=stays())
                )

            group.start_soon(ask)
            pairing = made.router.endpoints.pairs.pair(made.server, made.router.preset.speculate).pairing
            before = pairing.estimates.acceptance.judged
            while pairing.estimates.acceptance.judged < before + 8:  # noqa: ASYNC110 - somebody else's state
                await anyio.sleep(0.005)
            process.kill()
        route = answers[0].route
        assert [(a.endpoint, a.outcome) for a in route.attempts] == [
            ("server", "failed"),
            ("device", "finished"),
        ]
        assert route.seamless
        assert route.finish_reason in ("stop", "length")
        died, went_on = route.attempts
        assert died.kept_tokens > 5
        # The device drafted it, so its cache holds the prompt and the answer so far.
        assert went_on.prompt_tokens - went_on.cached_tokens <= 16
