"""`AsyncDisco(speculate=...)`: which requests a pair answers, what is charged, and what takes over from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.from_thread
import pytest
from endpoints.speculative.made_pair import PROMPT, TARGET, SlowDrafter
from endpoints.speculative.verify_server import SPOKEN, VerifyServer, verify_server
from scripted_device import ScriptedDevice
from scripted_server import chunk, sse

from disco import AsyncDisco, Disco
from disco.cost import Phase
from disco.dispatch import Preset
from disco.endpoints.contract import Capabilities
from disco.endpoints.drafter import Drafter
from disco.errors import ConfigurationError
from disco.events import Delta, Ended
from disco.request import Prefix

pytestmark = [pytest.mark.anyio, pytest.mark.real]

ASKED = [{"role": "user", "content": "Tell me of ann@example.org."}]
HELLO = sse(chunk("Hello"), chunk(finish="stop"))
PARAMS = {"model": "target", "messages": ASKED, "seed": 7, "temperature": 0.8}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Device(ScriptedDevice):
    """Goes on with the target's text where it stopped; drafts it, too. Mutable: `prefixes`."""

    def __init__(self, drafter: SlowDrafter | None = None) -> None:
        super().__init__(self.steps)
        self.prefixes: list[Prefix] = []
        self.guesses = drafter or SlowDrafter(token_s=0.0005, read_s=0.005)

    def steps(self, prefix: Prefix) -> Iterator[Any]:
        self.prefixes.append(prefix)
        left = len(prefix.withheld)
        for token in TARGET[len(prefix.sent.split()) :]:
            text, left = f" {token}"[left:], max(0, left - len(f" {token}"))
            if text:
                yield [Delta(text, ids=(token,))]
        yield Ended("stop")

    def capabilities(self, model: str | None = None) -> Capabilities:
        return Capabilities(continues=True, features=None, vocabulary="vocab")

    def drafter(self) -> Drafter:
        return self.guesses


def preset(policy: str = "server_only", **more: Any) -> dict[str, Any]:
    return {"dispatch": {"policy": policy}, "playback": {"pace_tps": "off"}, **more}


def client(served: VerifyServer, device: Device | None = None, **more: Any) -> AsyncDisco:
    given = {"speculate": "always", "preset": preset(), "price": (1.0, 2.0), **more}
    return AsyncDisco(local=device or Device(), api_key="key", base_url=served.base_url, **given)


async def ask(made: AsyncDisco, **more: Any) -> tuple[str, Any]:
    stream = await made.chat.completions.create(**PARAMS, stream=True, **more)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    return text, stream.route


async def test_the_first_answer_finds_out_and_the_second_is_drafted():
    async with verify_server() as served, client(served) as made:
        text, route = await ask(made)
        assert text == SPOKEN
        assert route.attempts[0].speculation.drafted == 0
        text, route = await ask(made)
        assert text == SPOKEN
        (attempt,) = route.attempts
        assert attempt.endpoint == "server"
        assert attempt.speculation.drafted > 20
        assert attempt.speculation.accepted > 20
        assert served.paths.count("/v1/disco/verifier") == 1
        assert served.paths.count("/v1/chat/completions") == 1
        document = route.to_dict()
        assert document["schema"] == 5
        assert document["attempts"][0]["speculation"]["drafted"] == attempt.speculation.drafted
        assert ASKED[0]["content"] not in route.to_json()


async def test_every_token_is_charged_once_and_at_the_rates_of_its_party():
    drafter = SlowDrafter(token_s=0.0005, read_s=0.005, wrong=frozenset(range(0, 60, 4)))
    async with verify_server() as served, client(served, Device(drafter)) as made:
        await made.warm_up()
        text, route = await ask(made)
        assert text == SPOKEN
        report, charges = route.attempts[0].speculation, route.ledger.charges
        by = {(c.endpoint, c.phase): c for c in charges}
        assert (len(by), len(charges)) == (3, 4)
        prompt = next(c for c in charges if c.phase is Phase.ANSWER and c.prompt_tokens)
        written = next(c for c in charges if c.phase is Phase.ANSWER and c.completion_tokens)
        assert prompt.prompt_tokens == len(PROMPT)
        assert written.completion_tokens == len(TARGET)
        rejected = by["server", Phase.DRAFT]
        assert rejected.completion_tokens == served.rejected == report.rejected > 0
        assert rejected.bill_usd == pytest.approx(served.rejected * 2e-6)
        drafts = by["device", Phase.DRAFT]
        # The draft that the answer's end broke off was made, and is reported no more.
        assert report.drafted <= drafts.completion_tokens <= report.drafted + 4
        assert drafts.prompt_tokens >= len(PROMPT)
        assert drafts.policy_cost == pytest.approx(
            route.ledger.rates["device"].cost(drafts.prompt_tokens, drafts.completion_tokens, 0)
        )
        assert route.policy_cost == pytest.approx(math.fsum(c.policy_cost for c in charges))
        assert route.policy_cost == pytest.approx(route.attempts[0].policy_cost)


async def test_off_asks_nothing_and_false_drafts_nothing():
    async with verify_server(chat=HELLO) as served:
        async with client(served, speculate="off") as made:
            assert (await ask(made))[0] == "Hello"
            assert "/v1/disco/verifier" not in served.paths
        async with client(served) as made:
            await made.warm_up()
            text, route = await ask(made, extra_body={"disco": {"speculate": False}})
            assert (text, route.attempts[0].speculation) == ("Hello", None)
            assert "/v1/disco/rounds" not in served.paths
            assert (await ask(made))[0] == SPOKEN


async def test_a_server_that_does_not_verify_is_asked_once_and_beside_the_first_answer():
    async with verify_server(chat=HELLO, facts=None) as served, client(served) as made:
        for _ in range(3):
            text, route = await ask(made)
            assert (text, route.attempts[0].speculation) == ("Hello", None)
        assert served.paths.count("/v1/disco/verifier") == 1


async def test_what_stays_on_this_machine_sends_nothing():
    async with verify_server() as served, client(served, preset=preset("auto")) as made:
        text, route = await ask(made, extra_body={"disco": {"local_only": True}})
        assert (text, [a.endpoint for a in route.attempts]) == (SPOKEN, ["device"])
        await anyio.sleep(0.02)
        assert served.paths == []


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("dies_after", [4, 9, 14])
async def test_the_device_goes_on_from_the_tokens_of_a_dead_server(dies_after, streams):
    device, routes = Device(), []
    async with verify_server() as served, client(served, device, on_route=routes.append) as made:
        await made.warm_up()
        served.dies_after = dies_after
        if streams:
            text, _ = await ask(made, extra_body={"disco": {"migrate": False}})
        else:
            stays = {"disco": {"migrate": False}}
            text = (await made.chat.completions.create(**PARAMS, extra_body=stays)).choices[0].message.content
        (route,) = routes
        assert text == SPOKEN
        assert route.seamless
        assert [(a.endpoint, a.outcome) for a in route.attempts] == [
            ("server", "failed"),
            ("device", "finished"),
        ]
        (prefix,) = device.prefixes
        assert SPOKEN.startswith(prefix.text)
        assert prefix.text
        if (
            not streams
        ):  # with a reader, the last word that was shown is written again, so the tokens do not fit
            assert prefix.vocabulary == "vocab"
            assert prefix.ids == TARGET[: len(prefix.ids)]
            assert "".join(f" {token}" for token in prefix.ids) == prefix.text
        spent = sum(c.completion_tokens for c in route.ledger.charges if c.phase is Phase.ANSWER)
        assert spent >= len(TARGET)


async def test_a_dead_drafter_is_no_event():
    device = Device(SlowDrafter(token_s=0.0005, read_s=0.005, dies_at=3))
    async with verify_server() as served, client(served, device) as made:
        await made.warm_up()
        text, route = await ask(made)
        assert (text, len(route.attempts)) == (SPOKEN, 1)
        assert route.attempts[0].failure is None


async def test_a_race_against_the_device_has_one_winner_and_every_loser_is_charged():
    async with verify_server() as served, client(served, preset=preset("race")) as made:
        await made.warm_up()
        text, route = await ask(made)
        assert text == SPOKEN
        lost = next(a for a in route.attempts if a.outcome == "lost")
        assert lost.policy_cost == pytest.approx(
            math.fsum(c.policy_cost for c in route.ledger.charges if c.attempt == route.attempts.index(lost))
        )


@pytest.mark.parametrize("amount", [60, 300, 5_000])
async def test_a_budget_of_the_device_limits_drafts_and_not_the_answer(amount):
    limits = {"device_tokens": amount, "window_s": 3600.0}
    async with verify_server() as served, client(served, preset=preset(limits=limits)) as made:
        await made.warm_up()
        text, route = await ask(made, max_tokens=100)
        assert text == SPOKEN
        budget = route.budget["device_tokens"]
        drafts = [c for c in route.ledger.charges if c.phase is Phase.DRAFT and c.endpoint == "device"]
        used = sum(c.prompt_tokens + c.completion_tokens for c in drafts)
        assert budget["spent"] == used <= budget["reserved"] <= amount
        assert budget["left"] == amount - used
        assert (used > 0) == (amount > 60)


async def test_a_budget_of_the_server_counts_rejected_tokens():
    limits = {"server_tokens": 10_000, "window_s": 3600.0}
    drafter = SlowDrafter(token_s=0.0005, read_s=0.005, wrong=frozenset(range(0, 60, 3)))
    async with (
        verify_server() as served,
        client(served, Device(drafter), preset=preset(limits=limits)) as made,
    ):
        await made.warm_up()
        text, route = await ask(made, max_tokens=100)
        assert text == SPOKEN
        assert route.budget["server_tokens"]["spent"] == len(PROMPT) + len(TARGET) + served.rejected
        assert route.budget["server_tokens"]["reserved"] > len(PROMPT) + len(TARGET) + served.rejected


async def test_a_redacted_request_stays_redacted():
    def redact(text: str) -> dict[str, str]:
        return {"ann@example.org": "EMAIL"} if "ann@" in text else {}

    device = Device()
    async with verify_server() as served, client(served, device, redact=redact) as made:
        await made.warm_up()
        text, route = await ask(made)
        assert text == SPOKEN
        assert route.attempts[0].speculation.drafted > 0  # from the server's prompt (made_pair asserts that)
        sent = str(served.bodies)
        assert "ann@example.org" not in sent
        assert "[EMAIL_1]" in sent
        served.dies_after = served.verdicts + 8
        text, route = await ask(made)
        assert text == SPOKEN
        assert device.prefixes[-1].ids is None  # tokens of a redacted answer spell placeholders


async def test_without_a_drafter_that_can_be_it_says_so():
    with pytest.raises(ConfigurationError, match="needs a model that drafts"):
        AsyncDisco(api_key="k", base_url="http://127.0.0.1:1/v1", speculate="auto")
    with pytest.raises(ConfigurationError, match="no server is configured"):
        AsyncDisco(local=Device(), speculate="auto")
    with pytest.raises(ConfigurationError, match="'alwas'"):
        AsyncDisco(local=Device(), api_key="k", speculate="alwas")
    with pytest.raises(ConfigurationError, match=r"speculate.*no rule is called 'optmal'"):
        Preset(speculate={"window": "optmal"})
    with pytest.raises(ConfigurationError, match="max_window"):
        Preset(speculate={"max_window": 65})
    with pytest.raises(ConfigurationError, match="unknown key windw"):
        Preset(speculate={"windw": 4})


async def test_n_grams_need_no_model():
    async with verify_server() as served:
        settings = preset(speculate={"drafter": "ngram", "window": 4})
        async with AsyncDisco(
            api_key="k", base_url=served.base_url, speculate="always", preset=settings
        ) as made:
            await made.warm_up()
            text, route = await ask(made)
            assert text == SPOKEN
            assert route.attempts[0].speculation is not None
            assert {c.endpoint for c in route.ledger.charges} == {"server"}


def test_the_synchronous_client_drafts_as_well():
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(verify_server()) as served,
        Disco(
            local=Device(), api_key="k", base_url=served.base_url, speculate="always", preset=preset()
        ) as made,
    ):
        made.warm_up()
        stream = made.chat.completions.create(**PARAMS, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == SPOKEN
        assert stream.route.attempts[0].speculation.drafted > 0


async def test_an_answer_is_whole_while_many_are_under_way():
    async with verify_server() as served, client(served) as made:
        await made.warm_up()
        got: list[str] = []

        async def one() -> None:
            got.append((await ask(made))[0])

        async with anyio.create_task_group() as group:
            for _ in range(12):
                group.start_soon(one)
        assert got == [SPOKEN] * 12
