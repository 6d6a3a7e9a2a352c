"""Every choice of a plan says why: a number, where it is from, and who was left out; in words, everywhere alike."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from typing import Any

import anyio
import httpx2
import pytest
from defects.asking import ask, client, create, device, preset, question
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread, spoken  # noqa: F401 - fixtures
from rich.console import Console

from disco import Backup, DiscoError, PowerReadings
from disco.cli.main import main
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.plan import Start
from disco.reasons import CODES, sentence
from disco.record import timeline_lines

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
HAS_A_NUMBER = re.compile(r"\d")
# Of these nothing was compared: the choice is a setting, or a fact that is no number.
WITHOUT_A_NUMBER = {"plugin", "pinned", "too_far", "not_served", "offline", "low", "throttled", "loaded", "metered",
                    "device_only", "background", "lowest_tier", "budget_spent", "budget_low", "budget_unknown",
                    "reserve", "rate_limit", "probed", "race", "urgent", "long", "busy", "slow_reader",
                    "short_context"}  # fmt: skip


class Near(SimulatedEndpoint):
    """A model on another machine of the user's."""

    reach = "own"


def here(**more: Any) -> Any:
    return device(**{"answer": "Here.", "ttft_s": 0.1, **more})


def there(first_s: float = 0.2) -> MemoryServer:
    return MemoryServer(spoken(["There."], first_s=first_s))


async def routes_of(
    *, asks: int = 12, at_once: int = 1, options: Any = None, words: Any = None, **settings: Any
) -> list[Any]:
    """The records of some requests to one client."""
    server = settings.pop("server", None) or there()
    found: list[Any] = []
    async with client(server, **{"local": here(), **settings}) as one:

        async def user() -> None:
            for n in range(asks):
                try:
                    length = words[n % len(words)] if words else 10 + 30 * (n % 5)
                    found.append((await ask(one, question(length), **(options or {}))).route)
                except DiscoError as error:
                    if getattr(error, "route", None) is not None:
                        found.append(error.route)
                except Exception as error:  # noqa: BLE001 - the record of a failed answer counts, too
                    found.append(error.route)  # type: ignore[attr-defined]

        async with anyio.create_task_group() as group:
            for _ in range(at_once):
                group.start_soon(user)
    return found


async def every_branch() -> list[Any]:
    """Records of some two hundred requests, which meet each way to choose who starts."""
    slow_writer = {"decode_tps": 20.0, "answer_tokens": 60}
    refuses = MemoryServer(
        Reply([b'{"error": {"message": "no"}}'], 503, {"content-type": "application/json"})
    )
    unpaid = MemoryServer(
        Reply([b'{"error": {"message": "pay"}}'], 402, {"content-type": "application/json"})
    )
    no_model = b'{"error": {"message": "no such model", "code": "model_not_found"}}'
    gone = MemoryServer(Reply([no_model], 404, {"content-type": "application/json"}))
    low = lambda: PowerReadings(on_battery=True, battery_share=0.1)  # noqa: E731
    budget = {"server_tokens": 400, "window_s": 3600.0}
    near = Near("near", SimulatedProfile(answer="Near."), place="server")
    all_of_it = [
        await routes_of(),
        await routes_of(preset="balanced", asks=40),
        await routes_of(preset="balanced", asks=4, at_once=4, local=here(**slow_writer), words=(5,)),
        await routes_of(preset="balanced", local=here(ttft_s=3.0), words=(5, 5, 5, 600)),
        await routes_of(policy=preset("length_threshold", budget=0.0)),
        await routes_of(policy=preset("length_threshold", budget=0.02), words=(5, 5, 5, 200)),
        await routes_of(policy=preset("wait_time", budget=0.1, rate=1.0)),
        await routes_of(policy=preset("optimal_wait", budget=0.1, rate=1.0)),
        await routes_of(policy=preset("optimal_wait", budget=0.0, rate=1.0)),
        await routes_of(policy=preset("random", budget=0.5)),
        await routes_of(preset="fast"),
        await routes_of(preset="private"),
        await routes_of(policy=preset("device_only")),
        await routes_of(preset="assist", words=(400, 1500)),
        await routes_of(preset="cascade"),
        await routes_of(preset="cascade", options={"deadline_s": 0.05}),
        await routes_of(preset="balanced", options={"budget_class": "urgent"}),
        await routes_of(preset="balanced", options={"budget_class": "background"}),
        await routes_of(options={"endpoint": "device"}),
        await routes_of(options={"local_only": True}),
        await routes_of(options={"reach": "own"}, tiers=[near], asks=2),
        await routes_of(server=refuses),
        await routes_of(budget={"server_tokens": 9, "window_s": 3600.0}, state=False, asks=2),
        await routes_of(server=unpaid, asks=3),
        await routes_of(server=gone, asks=3),
        await routes_of(preset="balanced", power=low),
        await routes_of(budget=budget, preset="fast", state=False),
        await routes_of(local=here(context_tokens=100), words=(20, 4000)),
    ]
    async with client(there(), local=here(features=frozenset())) as one:
        all_of_it.append([(await create(one, question(), response_format=SCHEMA)).route])
    return [route for some in all_of_it for route in some]


async def test_two_hundred_records_of_every_branch_each_say_why_with_a_number_its_source_and_who_was_left_out():
    routes = await every_branch()
    assert len(routes) >= 200
    met = set()
    for route in routes:
        reasons = {reason.endpoint: reason for reason in route.why}
        assert set(reasons) == {endpoint.name for endpoint in route.endpoints}  # each of them, once
        assert [reason.endpoint for reason in route.why if reason.does == "starts"] == [
            name for name, _ in route.starts
        ]
        lines = shown(route)
        for reason in route.why:
            met.add((reason.does, reason.code))
            said = sentence(reason)
            assert (reason.does, reason.code) in CODES, reason
            assert said in lines
            if reason.does == "starts":
                assert HAS_A_NUMBER.search(said), said
                assert said.endswith(")"), said  # where the number is from
            elif reason.code not in WITHOUT_A_NUMBER:
                assert HAS_A_NUMBER.search(said.replace(reason.endpoint, "")), said
    missing = set(CODES) - met - NEVER_HERE
    assert not missing, missing


# A plug-in's policy, a model that has to be loaded, and states of the machine and of the network are not among them.
NEVER_HERE = {
    *((does, "plugin") for does in ("starts", "stands_by")),
    *(
        (("starts"), code)
        for code in ("loading", "beside_probe", "dearer_divided", "lowest_in_time", "budget_low")
    ),
    *(
        (("stands_by"), code)
        for code in ("lowest_in_time", "budget_low", "budget_unknown", "drawn", "budget_spent")
    ),
    *((("rests"), code) for code in ("probed", "offline", "throttled", "loaded", "metered", "rate_limit")),
}


def shown(route: Any) -> str:
    """What `disco show` prints of an answer, on one line."""
    out = io.StringIO()
    Console(file=out, width=400, color_system=None).print(timeline_lines(route))
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("key", sorted(CODES))
def test_each_rule_has_a_sentence_that_can_be_said_of_any_numbers(key):
    from disco.reasons import Reason

    does, code = key
    full = Reason("server", does, code, 0.5, 12.0, 34.0, "own", 56, "device")
    for reason in (full, replace(full, value=None, limit=None, source="prior", seen=0, what="")):
        said = sentence(reason)
        assert said.startswith("server ")
        assert "{" not in said


async def test_records_keep_the_reasons_and_old_records_have_none(tmp_path, capsys):
    (route, *_) = await routes_of(asks=1)
    line = route.to_dict(timelines=True)
    path = tmp_path / "routes.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert main(["show", str(path), "--answer", "last"]) == 0
    assert "asked first" in " ".join(capsys.readouterr().out.split())
    del line["why"]
    path.write_text(json.dumps({**line, "schema": 4}) + "\n")
    assert main(["show", str(path), "--answer", "last"]) == 0


async def test_the_log_line_says_who_started_and_why(caplog):
    with caplog.at_level("INFO", "disco.route"):
        await routes_of(asks=1)
    (line,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("answer")]
    assert "server starts: it is asked first" in line


def test_a_reason_is_no_part_of_what_a_start_is():
    from disco.plan import Why

    assert Start("server", 1.0, Why("long", 3.0)) == Start("server", 1.0)


async def test_a_backup_stands_by_also_where_there_is_no_device():
    server = there()
    second = Backup(
        base_url=server.also(spoken(["There, too."])),
        api_key="another-key-1234",
        model="m",
        http_client=httpx2.AsyncClient(transport=server),
    )
    (route,) = await routes_of(server=server, local=None, backups=[second], asks=1)
    first, other = route.why
    assert (first.code, other.code, other.endpoint) == ("server_first", "reserve", "backup-1")


async def test_records_of_a_calendar_budget_are_shown_and_hostile_reasons_harm_no_summary(tmp_path, capsys):
    (route,) = await routes_of(budget={"usd": 5, "per": "month"}, state=False, asks=1)
    line = route.to_dict(timelines=True)
    path = tmp_path / "routes.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert main(["show", str(path), "--answer", "last"]) == 0
    odd = [{**line, "why": [{**line["why"][0], "code": code}]} for code in ("{x}", "a{", "{value.__class__}")]
    odd += [{**line, "why": [{**line["why"][0], "value": 10**400}]}]
    odd += [{**line, "ledger": {**line["ledger"], "bill_usd": float("inf")}}]
    path.write_text("".join(json.dumps(one) + "\n" for one in (line, *odd)))
    assert main(["show", str(path), "--summary"]) == 0
    assert "server was asked in" in " ".join(capsys.readouterr().out.split())
