"""Whose fault a refusal is decides what follows: the account's and the model's end no request that another can answer.

In virtual time, through the real client and adapter, on servers in memory.
"""

from __future__ import annotations

import httpx2
import openai
import pytest
from defects.asking import ask, client, create, device, preset, text_of, tried
from faults.in_memory import MemoryServer, Reply, spoken
from refused.said import SAID, refusing

from disco import AsyncDisco, Backup, Tier
from disco.cli import main

pytestmark = pytest.mark.anyio

WHOLE = spoken(["The sea ", "is wide."])
KEY, PRICE = "another-secret-5678", (1.0, 1.0)
# What every endpoint would refuse: a malformed request.
OF_THE_REQUEST = (400, 422)
DOWN = Reply(before=[httpx2.ConnectError("refused")])


def backup(server: MemoryServer, *replies, name: str | None = None, price=PRICE) -> Backup:
    http = httpx2.AsyncClient(transport=server)
    at = {"base_url": server.also(*replies), "api_key": KEY, "model": "second-model"}
    return Backup(**at, price=price, name=name, http_client=http, continuation="none")


def asking(reply: Reply, *, by: str, policy: str = "server_only") -> tuple[AsyncDisco, MemoryServer]:
    """A client whose server, or first tier, refuses; `by`: what else there is."""
    server = MemoryServer(reply, reply)
    more: dict = {"preset": preset(policy)}
    if by == "backup":
        more["backups"] = [backup(server, WHOLE)]
    elif by == "device":
        more["local"] = device(answer="The sea is wide.", decode_tps=1000.0)
    elif by == "cascade":
        server = MemoryServer(WHOLE, WHOLE)
        http = httpx2.AsyncClient(transport=server)
        at = {"base_url": server.also(reply), "api_key": KEY, "model": "m", "http_client": http}
        more["tiers"] = [Tier(**at, name="tier", price=PRICE, continuation="none")]
        more["preset"] = preset("cascade")
    return client(server, **more), server


@pytest.mark.parametrize("by", ["backup", "device", "cascade"])
async def test_only_a_malformed_request_is_not_answered_by_another_whatever_the_status(by):
    for status in range(400, 600):
        one, _ = asking(refusing(status), by=by)
        async with one:
            if status in OF_THE_REQUEST:
                with pytest.raises(openai.APIStatusError) as caught:
                    await ask(one, stream=False)
                assert caught.value.status_code == status
                assert tried(caught.value) == [("tier" if by == "cascade" else "server", "bad_request")]
            else:
                answer = await ask(one, stream=False)
                assert answer.text == "The sea is wide.", status
                assert answer.route.attempts[0].failure not in (None, "bad_request"), status


@pytest.mark.parametrize("said", SAID, ids=lambda said: f"{said.kind}: {said.who}")
async def test_whose_fault_it_is_in_the_providers_words(said):
    ends = said.kind in ("bad_request", "content_filter")
    for by in ("backup", "device", "cascade", "nothing"):
        for stream in (False, True):
            one, _ = asking(refusing(said.status, said.error), by=by)
            async with one:
                if ends or by == "nothing":
                    with pytest.raises(openai.APIStatusError) as caught:
                        await create(one, stream=stream, disco={"deadline_s": 60.0})
                    assert caught.value.status_code == said.status
                    failures = [failure for _, failure in tried(caught.value)]
                    assert failures == [said.kind] * (len(failures) if said.kind == "server" else 1)
                    continue
                answer = await ask(one, stream=stream)
            assert answer.text == "The sea is wide."
            assert answer.route.attempts[0].failure == said.kind


async def test_in_a_race_the_other_goes_on_and_in_mid_stream_the_same_words_mean_the_same():
    for error in (
        {"message": "No.", "code": "model_not_found"},
        {"message": "Insufficient credits", "code": 402},
    ):
        one, _ = asking(refusing(404, error), by="device", policy="race")
        async with one:
            answer = await ask(one)
            assert answer.text == "The sea is wide."
        one, _ = asking(Reply([b"data: " + refusing(400, error).steps[0] + b"\n\n"]), by="device")
        async with one:
            answer = await ask(one)
            assert tried(answer) == [
                ("server", "account" if "credits" in error["message"] else "model"),
                ("device", None),
            ]


# ------------------------------------------------------------------------------ reported by users


@pytest.mark.parametrize(
    ("status", "error"),
    [(402, None), (498, None), (400, {"message": "No.", "code": "billing_hard_limit_reached"})],
)
async def test_the_first_of_two_providers_has_no_credit_and_the_second_answers(status, error):
    one, server = asking(refusing(status, error), by="backup")
    async with one:
        answer = await ask(one)
    assert answer.text == "The sea is wide."
    assert [body["model"] for body in server.requests] == ["gpt-4o-mini", "second-model"]


@pytest.mark.parametrize("second", [400, 404, 422])
@pytest.mark.parametrize("first", [429, 500, 401])
async def test_the_refusal_of_one_that_stands_in_for_another_does_not_end_the_failover(first, second):
    """And where nobody answers, the first error is raised."""
    for last in (WHOLE, refusing(second), DOWN):
        server = MemoryServer(refusing(first))
        backups = [backup(server, refusing(second), price=(0.1, 0.1)), backup(server, last)]
        async with client(server, preset=preset("server_only"), backups=backups) as one:
            if last is WHOLE:
                answer = await ask(one)
                assert answer.text == "The sea is wide."
                assert [name for name, _ in tried(answer)] == ["server", "backup-1", "backup-2"]
                continue
            with pytest.raises(openai.APIStatusError) as caught:
                await ask(one)
            assert caught.value.status_code == first
            assert [name for name, _ in tried(caught.value)] == ["server", "backup-1", "backup-2"]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (402, {"message": "Insufficient Balance"}),
        (400, {"message": "Your credit balance is too low to access the API."}),
        (404, {"message": "No.", "code": "model_not_found"}),
        (451, None),
    ],
)
async def test_the_accounts_or_the_models_fault_costs_one_request_and_then_rests(status, error, caplog):
    one, server = asking(refusing(status, error), by="backup")
    async with one:
        for _ in range(5):
            assert (await ask(one)).text == "The sea is wide."
        assert len(server.requests) == 6  # the refusal was met once
        rest = (await ask(one)).route.deprioritised[0]
        assert rest.endpoint == "server"
        assert 290.0 < rest.for_s <= 300.0
    told = [r.getMessage() for r in caplog.records if r.name == "disco"]
    assert len(told) == 1
    assert "'server' (127.0.0.1)" in told[0]
    assert "Check api_key" in told[0] or "Correct model=" in told[0]


async def test_what_a_server_quotes_of_the_request_makes_no_fault_of_the_account_or_the_model():
    """Else any caller could keep the server from all others."""
    for quoted in (
        "My credit balance is too low, what now?",
        "Why does the model gpt-5 not exist any more?",
        "The model has crashed, out of memory?",
    ):
        error = {"message": f"messages.0: input should be valid, not {quoted!r}"}
        one, _ = asking(refusing(422, error), by="backup")
        async with one:
            with pytest.raises(openai.UnprocessableEntityError) as caught:
                await ask(one, [{"role": "user", "content": quoted}])
            assert tried(caught.value) == [("server", "bad_request")]


async def test_records_of_the_kinds_former_name_are_still_read(tmp_path, capsys):
    one, _ = asking(refusing(401), by="device")
    async with one:
        line = (await ask(one)).route.to_json()
    assert '"failure":"account"' in line.replace(" ", "")
    path = tmp_path / "routes.jsonl"
    path.write_text(line.replace('"account"', '"authentication"') + "\n", encoding="utf-8")
    assert main(["show", str(path), "--answer", "1"]) == 0
    assert "authentication" in capsys.readouterr().out


# ------------------------------------------------------------------------------ how long it rests


def keyed(good: str, *, model: str | None = None, **more) -> tuple[AsyncDisco, list[tuple[str, str]]]:
    """A client whose server takes one key, and one model; and the keys and models that it was asked with."""
    seen: list[tuple[str, str]] = []

    class Keyed(MemoryServer):
        async def handle_async_request(self, request):
            key = request.headers["authorization"].removeprefix("Bearer ")
            response = await super().handle_async_request(request)
            asked = self.requests[-1]["model"]
            seen.append((key, asked))
            if key != good:
                return httpx2.Response(401, json={"error": {"message": "No."}}, request=request)
            if model not in (None, asked):
                return httpx2.Response(404, json={"error": {"code": "model_not_found"}}, request=request)
            return response

    local = device(answer="Here it is.", decode_tps=1000.0)
    settings = {"preset": preset("server_only"), "local": local, "api_key": "wrong-key-1", **more}
    return client(Keyed(WHOLE), **settings), seen


async def test_a_new_key_is_tried_at_once_and_the_old_one_rests_on():
    one, seen = keyed("right-key-1")
    async with one:
        for _ in range(3):
            assert (await ask(one)).text == "Here it is."
        other = one.with_options(api_key="right-key-1")
        assert (await ask(other)).text == "The sea is wide."
        assert (await ask(one)).text == "Here it is."
        assert (await ask(one.with_options(timeout=30.0))).text == "Here it is."  # another copy, the same key
        one.api_key = "right-key-1"
        assert (await ask(one)).text == "The sea is wide."
    assert [key for key, _ in seen] == ["wrong-key-1", "right-key-1", "right-key-1"]


async def test_a_function_that_makes_keys_is_asked_beside_the_answers_whether_it_has_a_new_one():
    keys = ["wrong-key-1"]

    async def key() -> str:
        return keys[-1]

    one, seen = keyed("right-key-1", api_key=key)
    async with one:
        for _ in range(4):
            assert (await ask(one)).text == "Here it is."
        assert len(seen) == 1
        keys.append("right-key-1")
        assert (await ask(one)).text == "Here it is."  # the reader of this one does not wait for the function
        assert (await ask(one)).text == "The sea is wide."
    assert len(seen) == 2


async def test_a_missing_model_leaves_the_servers_other_models_alone():
    one, seen = keyed("wrong-key-1", model="there")
    async with one:
        for _ in range(3):
            assert await text_of(await create(one, model="gone", stream=True)) == "Here it is."
        assert await text_of(await create(one, model="there", stream=True)) == "The sea is wide."
        assert await text_of(await create(one, model="gone", stream=True)) == "Here it is."
    assert [model for _, model in seen] == ["gone", "there"]


async def test_where_nobody_else_may_serve_it_is_asked_all_the_same():
    async with client(MemoryServer(refusing(401)), preset=preset("server_only"), backups=[]) as one:
        for _ in range(3):
            with pytest.raises(openai.AuthenticationError):
                await create(one, disco={"deadline_s": 60.0})
    one, seen = keyed("right-key-1", local=None, backups=[])
    async with one:
        for _ in range(3):
            with pytest.raises(openai.AuthenticationError):
                await create(one, disco={"deadline_s": 60.0})
    assert len(seen) == 3


# ------------------------------------------------------------------------------ nobody could answer


async def test_the_error_says_which_endpoints_were_tried_what_failed_and_what_to_do():
    """Here an image, which the device does not serve, while both servers are down."""
    server = MemoryServer(DOWN)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    more = {
        "preset": preset("server_only"),
        "local": device(features=frozenset()),
        "backups": [backup(server, DOWN)],
    }
    async with client(server, **more) as one:
        with pytest.raises(openai.APIConnectionError) as caught:
            await create(one, messages)
        assert str(caught.value).startswith("Connection error. No endpoint could answer: ")
        for words in (
            "server could not be reached",
            "backup-1 could not be reached",
            "Not asked: device",
            "disco doctor",
        ):
            assert words in str(caught.value)
        assert caught.value.message == str(caught.value)
        assert type(caught.value) is openai.APIConnectionError
    server = MemoryServer(refusing(500, {"message": "Boom.", "code": "boom"}))
    async with client(server, preset=preset("server_only"), backups=[backup(server, refusing(401))]) as one:
        with pytest.raises(openai.InternalServerError) as caught:
            await create(one)
        assert (caught.value.status_code, caught.value.code, caught.value.body["message"]) == (
            500,
            "boom",
            "Boom.",
        )
        assert "backup-1 refuses its key" in str(caught.value)
        assert KEY not in str(caught.value)


async def test_alone_and_where_the_request_is_at_fault_the_error_is_the_sdks():
    async with client(MemoryServer(DOWN), preset=preset("server_only")) as one:
        with pytest.raises(openai.APIConnectionError) as caught:
            await create(one, disco={"deadline_s": 60.0})
        assert str(caught.value) == "Connection error."
    one, _ = asking(refusing(400), by="backup")
    async with one:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(one)
        assert "No endpoint" not in str(caught.value)
