"""Clients that share a budget through the state file, as applications and `disco serve` see them."""

from __future__ import annotations

import pytest
from defects.asking import client, create, preset
from faults.in_memory import MemoryServer, Reply
from scripted_server import chunk, sse, usage
from server.asgi import ask

from disco.cli.main import main
from disco.errors import BudgetExceededError, ConfigurationError
from disco.server import make_app
from disco.server.prometheus import Metrics

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """In real time: what is learnt is read in threads, for which no virtual clock waits."""
    return "asyncio"


COST = 52  # tokens of an answer
REPLY = Reply([sse(*(chunk(f"word{i} ") for i in range(40)), chunk(finish="stop"), usage(12, 40))])


def paid(path, tokens: int, account: str = "", **more):
    budget = {"server_tokens": tokens, "window_s": 86_400, "account": account}
    state = {"state": path, "policy": preset("server_only"), "price": None}
    return client(MemoryServer(REPLY), budget=budget, **state, **more)


async def test_two_programs_spend_one_budget_also_one_after_the_other_and_an_account_keeps_one_apart(
    tmp_path,
):
    path = tmp_path / "state.sqlite3"
    async with paid(path, 600) as one, paid(path, 600) as two, paid(path, 600, "mine") as mine:
        answers = 0
        with pytest.raises(BudgetExceededError, match="left of 600 tokens"):  # noqa: PT012
            for _ in range(6):
                for either in (one, two):
                    route = (await create(either, max_tokens=40)).route
                    answers += 1
                    assert route.budget["server_tokens"]["spent"] == COST
                    assert route.budget["server_tokens"]["left"] == 600 - COST * answers
        assert (await create(mine, max_tokens=40)).route.budget["server_tokens"]["left"] == 600 - COST
    async with paid(path, 600) as later, paid(path, 900) as raised:
        with pytest.raises(BudgetExceededError):
            await create(later, max_tokens=40)
        assert (await create(raised, max_tokens=40)).route.budget["server_tokens"]["left"] == 900 - COST * (
            answers + 1
        )


async def test_a_request_whose_preset_has_a_lower_limit_on_the_same_count_keeps_that_one(tmp_path):
    lower = tmp_path / "lower.toml"
    lower.write_text(
        '[dispatch]\npolicy = "server_only"\n[limits]\nserver_tokens = 300\nwindow_s = 86400\n',
        encoding="utf-8",
    )
    async with paid(None, 600) as one:
        await create(one, max_tokens=40)
        route = (await create(one, max_tokens=40, disco={"policy": str(lower)})).route
        assert route.budget["server_tokens"]["left"] == 300 - 2 * COST
        with pytest.raises(BudgetExceededError, match="left of 300 tokens"):
            await create(one, max_tokens=120, disco={"policy": str(lower)})
        assert (await create(one, max_tokens=40)).route.budget["server_tokens"]["left"] == 600 - 3 * COST


async def test_the_metrics_tell_what_all_programs_have_left(tmp_path):
    path, metrics = tmp_path / "state.sqlite3", Metrics()
    async with paid(path, 600, on_route=metrics.answer) as one, paid(path, 600) as two:
        app = make_app(one, key=None, metrics=metrics)
        await create(one, max_tokens=40)
        await create(two, max_tokens=40)
        page = (await ask(app, "/metrics")).body.decode()
        assert f'disco_budget_left{{limit="server_tokens"}} {600.0 - 2 * COST}' in page


async def test_the_command_shows_what_is_spent(tmp_path, capsys):
    path = tmp_path / "state.sqlite3"
    async with paid(path, 600, "mine") as one:
        await create(one, max_tokens=40)
    main(["state", "show", "--state", str(path)])
    shown = capsys.readouterr().out
    assert "mine" in shown
    assert f"{COST} tokens" in shown


def test_an_account_needs_an_amount(tmp_path):
    with pytest.raises(ConfigurationError, match="account needs an amount"):
        client(MemoryServer(REPLY), budget={"account": "mine"}, state=tmp_path / "state.sqlite3")
