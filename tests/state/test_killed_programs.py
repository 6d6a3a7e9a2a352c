"""Real processes that spend one budget and are killed with `kill -9` at random moments; see `spending_programs`."""

from __future__ import annotations

import pytest
from state.spending_programs import (
    Account,
    answers,
    check_file,
    killed_until_done,
    most_in_a_window,
    paid_server,
    reservations,
    spent_by_logs,
)

pytestmark = pytest.mark.real


def check_reservations(folder, *, count: int, seed: int, most_kills: int) -> None:
    account = Account(folder / "state.sqlite3", tokens=1000, window_s=0.2)  # full after 40 reservations
    run = killed_until_done(
        reservations, account, folder, count=count, seed=seed, lives_s=(0.01, 0.1), most_kills=most_kills
    )
    spent = spent_by_logs(folder, run.killed_at)
    assert len(spent) >= 4 * count
    assert run.kills
    assert run.refused
    assert account.tokens / 2 < most_in_a_window(spent, account.window_s) <= account.tokens
    check_file(account)


def check_answers(folder, *, count: int, seed: int, lives_s: tuple[float, float], most_kills: int) -> None:
    account = Account(folder / "state.sqlite3", tokens=1000, window_s=0.5)
    with paid_server() as server:
        run = killed_until_done(
            answers,
            account,
            folder,
            server.base_url,
            count=count,
            seed=seed,
            lives_s=lives_s,
            most_kills=most_kills,
        )
    assert len(server.spent) >= 4 * count
    assert run.kills
    assert most_in_a_window(server.spent, account.window_s) <= account.tokens
    check_file(account)


def test_no_budget_is_exceeded_by_programs_that_are_killed_at_random(tmp_path):
    check_reservations(tmp_path, count=50, seed=1, most_kills=15)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_budget_is_exceeded_in_500_reservations_of_4_programs_each(tmp_path, seed):
    check_reservations(tmp_path, count=500, seed=seed, most_kills=200)


@pytest.mark.slow
def test_no_budget_is_exceeded_in_500_answers_of_4_programs_each(tmp_path):
    check_answers(tmp_path, count=500, seed=1, lives_s=(0.1, 0.6), most_kills=200)
