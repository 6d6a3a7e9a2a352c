"""What live clients judged, judged again from their route records: the same verdicts, from numbers alone."""

from __future__ import annotations

import json
import math
import random

import pytest
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from session.recorded_kinds import kinds

from disco import AsyncDisco
from disco.cli import main
from disco.dispatch import load_preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.judging import FileStore
from disco.replay.verdicts import read_verdicts, replay_verdicts, share_handed_up

pytestmark = pytest.mark.anyio

KINDS = [
    ("exact", "guard", "weakest"),
    ("exact", "whole", "sum"),
    ("exact", "guard", "mean"),
    ("paper", "whole", "mean"),
]


class Stored(dict):
    """A store in memory; the histories of a client as another one begins with them."""

    def load(self):
        return self

    def save(self, histories):
        self.update(histories)


async def recorded(path, rule, display, confidence, *, answers=24, window=8, store=None, begin=0) -> None:
    """Answers of three tiers, two of which judge, in a window that runs over."""
    preset = load_preset(
        {
            "dispatch": {"policy": "cascade"},
            "cascade": {
                "beta": 0.3,
                "rule": rule,
                "window": window,
                "stream": display,
                "confidence": confidence,
            },
        }
    )
    tiers = [
        SimulatedEndpoint(
            name, SimulatedProfile(answer_tokens=12, decode_tps=100.0, seed=seed, mean_logp=-0.5)
        )
        for seed, name in enumerate(("device", "middle", "top"))
    ]
    tiers[0].place = "device"
    with path.open("a") as file:
        write = lambda route: file.write(route.to_json() + "\n")  # noqa: E731
        how = {"policy": preset, "histories": store, "on_route": write, "max_retries": 0}
        async with AsyncDisco(local=tiers[0], tiers=tiers[1:], **how) as client:
            for number in range(begin, begin + answers):
                messages = [{"role": "user", "content": f"Question {number}"}]
                options = {"disco": {"pace_tps": "off", "task": "even" if number % 2 else "odd"}}
                stream = await client.chat.completions.create(
                    model="m", messages=messages, stream=True, extra_body=options
                )
                async for _ in stream:
                    pass


@pytest.mark.parametrize(("rule", "display", "confidence"), KINDS)
async def test_a_live_run_replays_to_the_same_verdicts_in_whatever_order_it_was_written(
    rule, display, confidence, tmp_path
):
    path = tmp_path / "routes.jsonl"
    await recorded(path, rule, display, confidence)
    lines = path.read_text().splitlines()
    random.Random(0).shuffle(lines)
    path.write_text("\n".join(lines))
    verdicts, left_out = read_verdicts(path)
    assert not left_out
    found = replay_verdicts(verdicts)
    assert {(one.key.task, one.key.model) for one in found} >= {("even", "device/m"), ("odd", "device/m")}
    assert all((one.different, one.unknown) == (0, 0) for one in found)
    assert sum(one.identical for one in found if "device" in one.key.model) == 24
    for one in found:
        assert share_handed_up(one.verdicts, 0.3, rule) == one.rose
        assert share_handed_up(one.verdicts, 0.9, "exact") > one.rose


async def test_histories_of_an_earlier_run_have_to_be_given(tmp_path, capsys):
    """Without them the verdicts are unknown, and become known once the window has run over."""
    store = FileStore(tmp_path / "before.json")
    kept = Stored()
    await recorded(tmp_path / "earlier.jsonl", "exact", "whole", "weakest", window=5, store=kept)
    store.save(kept)
    path = tmp_path / "routes.jsonl"
    await recorded(path, "exact", "whole", "weakest", window=5, store=kept, begin=24)
    device, *_ = replay_verdicts(read_verdicts(path)[0])
    assert (device.different, device.unknown, device.identical) == (0, 5, 7)
    assert main(["replay", str(path), "--verdicts", "--histories", str(store.path), "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [(one["different"], one["unknown"]) for one in figures] == [(0, 0)] * len(figures)
    assert figures[0]["verdicts"] == 12


async def test_a_verdict_that_was_changed_is_found(tmp_path, capsys):
    path = tmp_path / "routes.jsonl"
    await recorded(path, "exact", "whole", "weakest", answers=8)
    first, *rest = path.read_text().splitlines()
    record = json.loads(first)
    record["judgements"][0]["outcome"] = "kept" if record["judgements"][0]["outcome"] != "kept" else "stood"
    path.write_text("\n".join([json.dumps(record), *rest]))
    assert main(["replay", str(path), "--verdicts", "--beta", "0.2,0.5"]) == 1
    assert "different" in capsys.readouterr().out


RECORD = kinds()["a race"].to_dict()
GOOD = {"task": "t", "model": "m", "kind": "sum", "score": 0.5, "threshold": None, "history": 0, "number": 0}
GOOD |= {"window": 8, "beta": 0.3, "rule": "exact", "outcome": "kept"}
GOOD |= {"attempt": 0, "endpoint": "device", "why": None, "tokens": 5, "at_s": 0.5}
BAD = (
    *({"score": math.nan}, {"window": 0}, {"number": -1}, {"history": 3}, {"beta": None}),
    *({"outcome": "lost"}, {"rule": "none"}, {"beta": 2}, {"threshold": math.inf}),
)


def line_with(**judgement) -> str:
    return json.dumps(RECORD | {"judgements": [GOOD | judgement]})


@pytest.mark.parametrize("bad", BAD)
def test_a_verdict_that_cannot_be_given_again_is_left_out_with_its_line(bad, tmp_path, capsys):
    path = tmp_path / "routes.jsonl"
    path.write_text(f"{line_with()}\n{line_with(**bad)}\n")
    assert main(["replay", str(path), "--verdicts"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{path}, line 2: a verdict that cannot be given again: " in printed
    (found,) = replay_verdicts(read_verdicts(path)[0])
    assert (found.identical, found.different, found.unknown) == (1, 0, 0)


def test_what_has_no_verdicts_is_refused_with_the_remedy(tmp_path, capsys):
    path = tmp_path / "routes.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    for more, message in (
        ((), "has no verdicts"),
        (("--beta", "1"), "between 0 and 1"),
        (("--beta", "some"), "write betas as 0.5"),
        (("--histories", "nowhere"), "there is no file nowhere"),
        (("--histories", str(path)), "holds no histories"),
    ):
        assert main(["replay", str(path), "--verdicts", *more]) == 2
        assert message in capsys.readouterr().err
