"""What a plan makes of endpoints that rest, are probed or stand by."""

from dataclasses import replace

import numpy as np
import pytest

from disco.dispatch import Candidate, Dispatcher, Features, Preset, Start
from disco.plan import CoolDown, Migration
from disco.profiles import Empirical, Lengths
from disco.rates import Rates

DEVICE = Candidate("device", "device", rates=Rates(1e-9, 1e-9), continues=True, parks=True)
SERVER = Candidate("server", "any", rates=Rates(1e-7, 1e-6), continues=True, overhead_s=1.5)
BACKUP = Candidate("backup", "any", rates=Rates(1e-8, 1e-8), continues=True, standby=True)
DEAR = replace(BACKUP, name="dear", rates=Rates(1e-5, 1e-5))
ALL = (DEVICE, SERVER, BACKUP, DEAR)


def of(dispatch):
    return Dispatcher(
        Preset(dispatch=dispatch),
        lengths=Lengths.from_samples([10] * 8 + [20] * 4 + [400]),
        ttft=Empirical.from_samples([0.3, 0.5, 4.0]),
        rng=np.random.default_rng(0),
    )


def plan(candidates, policy="server_only", resting=(), probing=(), **more):
    return of({"policy": policy}).plan(
        Features(900),
        candidates,
        {},
        resting={name: CoolDown(name, "failures", "server", 3, 4.0) for name in resting},
        probing=probing,
        **more,
    )


def test_an_endpoint_that_rests_is_not_started_while_another_may_serve_and_stays_the_last_resort():
    made = plan([DEVICE, SERVER], resting=["server"])
    assert made.starts == (Start("device"),)
    assert made.fallbacks == ("server",)
    assert [r.endpoint for r in made.deprioritised] == ["server"]


def test_when_all_rest_the_request_is_tried_as_always():
    made = plan([DEVICE, SERVER], resting=["server", "device"])
    assert made == replace(plan([DEVICE, SERVER]), migrations={})
    assert plan([SERVER], resting=["server"]).starts == (Start("server"),)


def test_the_cheapest_backup_takes_the_first_servers_place_and_no_other_time():
    assert plan(ALL).starts == (Start("server"),)
    assert plan(ALL).fallbacks == ("device", "backup", "dear")
    made = plan(ALL, resting=["server"])
    assert made.starts == (Start("backup"),)
    assert made.fallbacks == ("device", "dear", "server")
    assert plan(ALL, resting=["server", "backup"]).starts == (Start("dear"),)


def test_no_answer_is_moved_on_purpose_to_an_endpoint_that_rests_is_probed_or_stands_by():
    assert plan([DEVICE, SERVER]).migrations == {"server": Migration("device")}
    assert plan([DEVICE, SERVER], resting=["device"]).migrations == {}
    assert plan([DEVICE, SERVER], probing=["device"]).migrations == {}
    dear = replace(DEVICE, rates=Rates(1.0, 1.0))
    assert plan([dear, SERVER, BACKUP]).migrations == {"device": Migration("server", keep_prefill=False)}
    assert plan([dear, SERVER, BACKUP], resting=["server"]).migrations == {
        "device": Migration("backup", keep_prefill=False)
    }


@pytest.mark.parametrize(
    ("candidates", "probed", "starts"),
    [
        ([DEVICE, SERVER], "server", (Start("server"), Start("device", 1.5))),
        ([SERVER, BACKUP], "server", (Start("server"), Start("backup", 1.5))),
        ([SERVER], "server", (Start("server"),)),
    ],
)
def test_a_probe_does_not_start_alone_and_is_joined_once_it_is_slow(candidates, probed, starts):
    assert plan(candidates, probing=[probed]).starts == starts


def test_a_probe_costs_nothing_where_both_start_anyway_or_a_budget_forbids_it():
    assert plan([DEVICE, SERVER], "race", probing=["server"]) == plan([DEVICE, SERVER], "race")
    background = {"probing": ["device"], "budget_class": "background"}
    assert plan([DEVICE, SERVER], "race", **background).starts == (Start("device"),)
    # The budget counts the server's tokens, and this request is the device's.
    one = of({"policy": "length_threshold", "budget": 0.0})
    assert one.plan(Features(5), [DEVICE, SERVER], {}, probing=["device"]).starts == (Start("device"),)
