"""What `disco shadow` makes of a recording: measured numbers come back as they were, others are drawn and say so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import SERVER as SERVED
from recordings import played

from disco.candidate import Candidate
from disco.cli.main import main
from disco.errors import ConfigurationError
from disco.plan import Start
from disco.replay.shadow.shadow_figures import Comparison, compare
from disco.replay.shadow.shadow_recording import Seen, read_shadowed
from disco.replay.shadow.shadow_report import sentence
from disco.replay.shadow.shadow_runs import play_shadows
from disco.replay.shadow.shadow_times import ENOUGH_STARTS, EndpointTimes

RATES = {"device": (1e-9, 2e-9, 0.0), "server": (1.5e-7, 6e-7, 1.0)}
# What a record has besides what these tests are about.
WHOLE = played({"server": SERVED}, Start("server"), created_s=1e9).to_dict()
SEGMENT, CHARGE = WHOLE["segments"][0], WHOLE["ledger"]["charges"][0]
AVAILABLE = {
    name: {"place": name, "continues": True, "is_money": name == "server", "j_in": None, "j_out": None}
    for name in RATES
}
ALONE = {"device": [["device", 0.0]], "server": [["server", 0.0]]}
RACE = [["device", 0.0], ["server", 0.0]]


def plan(starts, *, pace_tps=None, migrations=(), tiers=(), order="auto") -> dict:
    names = [name for name, _ in starts]
    return {
        "starts": starts,
        "fallbacks": [name for name in RATES if name not in names],
        "migrations": list(migrations),
        "order": order,
        "heirs": [],
        "pace_tps": pace_tps,
        "tiers": tiers,
        "display": "guard" if tiers else None,
        "assist": None,
    }


def endpoint(name: str, *, known: bool = True) -> dict:
    cost_in, cost_out, cached_share = RATES[name]
    return {
        "name": name,
        "reach": "device" if name == "device" else "any",
        "cost_in": cost_in,
        "cost_out": cost_out,
        "cached_share": cached_share,
        "known": known,
        "prefill_tps": 200.0 if name == "device" else None,
        "overhead_s": 0.1 if name == "device" else 0.9,
        "ttft_quantiles": [] if name == "device" else [0.2, 0.4, 0.6, 0.8],
        "load_s": 0.0,
        "queue_s": 0.0,
        "decode_tps": 20.0 if name == "device" else 60.0,
        "reading_spare": 1.0,
        "silence_s": None,
        "slow_start": None,
        "rank": 0,
        "context_tokens": None,
        "abilities": ["continues", "parks", "pauses"] if name == "device" else ["continues"],
    }


def attempt(
    name: str, started_s: float, first_s: float | None, ended_s: float, *, tokens=20, prompt=100, **more
):
    return {
        **WHOLE["attempts"][0],
        "endpoint": name,
        "place": name,
        "role": "starter",
        "outcome": "finished" if first_s is not None else "lost",
        "failure": None,
        "cold": False,
        "started_s": started_s,
        "first_content_s": first_s,
        "ended_s": ended_s,
        "prefix_chars": 0,
        "tokens": tokens if first_s is not None else 0,
        "kept_tokens": tokens if first_s is not None else 0,
        "prompt_tokens": prompt,
        "cached_tokens": 0,
        "paused_s": 0.0,
        **more,
    }


def record(
    attempts, real, other, *, tokens=20, cost=None, known=True, prompt=100, rises=None, **more
) -> dict:
    winner = next(a for a in attempts if a["first_content_s"] is not None)
    charges = []
    for number, one in enumerate(attempts):
        cost_in, cost_out, _ = RATES[one["endpoint"]]
        usd = cost_in * one["prompt_tokens"] + cost_out * one["kept_tokens"]
        charges.append({**CHARGE, "attempt": number, "endpoint": one["endpoint"], "policy_cost": usd})
    if cost is not None:
        charges = [{**CHARGE, "attempt": 0, "endpoint": "device", "policy_cost": cost}]
    return {
        **WHOLE,
        "preset": "real",
        "finish_reason": "stop",
        "prompt_tokens": prompt,
        "answer_tokens": tokens,
        "max_tokens": None,
        "winner": winner["endpoint"],
        "endpoints": [{**endpoint(name), **AVAILABLE[name]} for name in RATES],
        "attempts": attempts,
        "segments": [{**SEGMENT, "endpoint": winner["endpoint"], "attempt": attempts.index(winner)}],
        "pace": {**WHOLE["pace"], "ttft_raw_s": winner["first_content_s"]},
        "ledger": {"charges": charges},
        "shadow": {
            "preset": "other",
            "plan": other,
            "refused": None if other else "NoEndpointError",
            "real": real,
            "endpoints": [endpoint(name, known=known) for name in RATES],
            "lengths": [20, 60, 120, 200, 300, 600],
            "streams": True,
            "may_migrate": True,
            "may_continue": True,
            "rises": rises,
        },
        **more,
    }


def alone_on(name: str, first_s: float, other: dict, **more) -> dict:
    tpot_s = 0.05 if name == "device" else 1 / 60
    return record([attempt(name, 0.0, first_s, first_s + 19 * tpot_s)], plan(ALONE[name]), other, **more)


def raced(first_s: float, bound_s: float, winner: str, other: dict) -> dict:
    loser = "server" if winner == "device" else "device"
    ended = first_s + 19 * (0.05 if winner == "device" else 1 / 60)
    both = [attempt(winner, 0.0, first_s, ended), attempt(loser, 0.0, None, bound_s)]
    return record(sorted(both, key=lambda a: a["endpoint"]), plan(RACE), other)


def file_of(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def compared(tmp_path: Path, rows: list[dict], draws: int = 8) -> Comparison:
    recording = read_shadowed(file_of(tmp_path / "r.jsonl", rows))
    (one,) = compare(play_shadows(recording, draws=draws, seed=0), seed=0, resamples=100)
    return one


def test_the_same_plan_comes_back_exactly_as_it_was(tmp_path):
    rows = [alone_on("device", 0.3 + i / 100, plan(ALONE["device"]), cost=1e-6 * i) for i in range(12)]
    one = compared(tmp_path, rows)
    assert one.differ["any"] == 0
    assert one.other.ttft_mean_s == one.real.ttft_mean_s
    assert one.other.cost_usd == one.real.cost_usd
    assert one.ttft_mean_s.low == one.ttft_mean_s.high == 0.0
    assert one.ttft_from["measured"] == one.cost_from["measured"] == 1.0
    assert "the same" in sentence(one)


def test_what_raced_is_measured_for_the_winner_alone(tmp_path):
    """The server won every race: alone it would have been as fast, and the device would have cost nothing."""
    rows = [raced(0.4, 0.4, "server", plan(ALONE["server"])) for _ in range(10)]
    one = compared(tmp_path, rows)
    assert one.ttft_mean_s.mean == pytest.approx(0.0, abs=1e-12)
    assert one.ttft_from["measured"] == 1.0
    assert one.cost_from["measured"] == 1.0
    assert one.other.cost_usd == pytest.approx(100 * 1.5e-7 + 20 * 6e-7)
    assert one.real.cost_usd > one.other.cost_usd
    assert one.run_cost == pytest.approx(1.0), "the loser is charged for what it was charged for"
    assert one.real.starts == 2.0
    assert one.other.starts == 1.0


def test_a_loser_alone_is_drawn_from_beyond_the_time_that_it_had(tmp_path):
    rows = [alone_on("device", 0.5 + i / 50, plan(ALONE["device"]), prompt=100) for i in range(ENOUGH_STARTS)]
    rows += [raced(1.2, 1.2, "server", plan(ALONE["device"]))]
    recording = read_shadowed(file_of(tmp_path / "r.jsonl", rows))
    runs = play_shadows(recording, draws=8, seed=0)
    assert all(played.ttft_s >= 1.2 for played in runs.other[-1])
    assert {played.basis for played in runs.other[-1]} == {"expected"}


def test_a_loser_of_which_nothing_longer_is_known_makes_it_at_least(tmp_path):
    """The device was always stopped after 3 s: how much longer it would have taken, nobody knows."""
    one = compared(tmp_path, [raced(0.4, 3.0, "server", plan(ALONE["device"])) for _ in range(8)])
    assert one.least == 1.0
    assert one.other.ttft_mean_s == pytest.approx(3.0)
    assert "first word at least 2.60 s later" in sentence(one)


def test_an_endpoint_that_was_never_asked_is_assumed_and_one_that_was_is_expected(tmp_path):
    other = plan(ALONE["server"])
    never = compared(tmp_path, [alone_on("device", 0.4, other, known=False) for _ in range(8)])
    assert never.ttft_from["assumed"] == 1.0
    assert "100 % assumed" in sentence(never)
    asked = [alone_on("server", 0.3 + i / 100, plan(ALONE["server"])) for i in range(ENOUGH_STARTS)]
    mixed = compared(tmp_path, [alone_on("device", 0.9, other) for _ in range(8)] + asked)
    assert mixed.ttft_from["assumed"] == 0.0
    assert mixed.ttft_from["expected"] == pytest.approx(8 / 28)
    # Alone, the device took 0.9 s each time; the server takes 0.3 to 0.5 s.
    assert mixed.ttft_mean_s.mean == pytest.approx((0.395 - 0.9) * 8 / 28, abs=0.03)
    assert mixed.ttft_mean_s.low < mixed.ttft_mean_s.mean < mixed.ttft_mean_s.high


def test_migrations_of_the_other_plan_are_played_by_the_live_session(tmp_path):
    """An answer of the server moves to the device, which is far cheaper: what that saves is in the cost."""
    moving = plan(ALONE["server"], pace_tps=5.0, migrations=[["server", "device", True]])
    rows = []
    for i in range(10):
        wrote = attempt("server", 0.0, 0.3, 0.3 + 399 / 60, tokens=400)
        still = plan(ALONE["server"], pace_tps=5.0)
        rows.append(record([wrote], still, moving, tokens=400, created_s=1e9 + i))
    one = compared(tmp_path, rows)
    assert one.differ == {"any": 10, "migrations": 10}
    assert one.other.moved == 1.0
    assert one.cost_ratio.mean < 0.8
    assert one.ttft_mean_s.mean == 0.0
    assert one.ttft_from["measured"] == 1.0
    assert one.cost_from["expected"] == 1.0


def test_a_preset_that_costs_many_times_as_much_is_said_to_do_so_and_not_in_thousands_of_percent(tmp_path):
    rows = [alone_on("device", 0.4, plan(ALONE["server"]), created_s=1e9 + i) for i in range(8)]
    said = sentence(compared(tmp_path, rows))
    assert re.search(r"would have cost [\d,]+ times as much \([\d,.]+ to [\d,.]+ times\)", said), said


def test_an_endpoint_that_failed_fails_under_the_other_plan_too(tmp_path):
    failed = attempt("server", 0.0, None, 0.2, failure="connection", outcome="failed", prompt=0)
    then = attempt("device", 0.2, 0.7, 1.6, role="takeover")
    rows = [record([failed, then], plan(ALONE["server"]), plan(RACE)) for _ in range(4)]
    recording = read_shadowed(file_of(tmp_path / "r.jsonl", rows))
    (played, *_) = play_shadows(recording, draws=1, seed=0).other[0]
    assert played.winner == "device"
    assert played.ttft_s == pytest.approx(0.5)  # it would have begun at once, and not after the failure


def test_a_cascade_says_what_starts_and_its_rule_and_no_more(tmp_path):
    tiers = [["device"], ["server"]]
    other = plan(ALONE["device"], tiers=tiers)
    rows = [alone_on("server", 0.3, other, rises=0.3) for _ in range(6)]
    one = compared(tmp_path, rows)
    assert one.is_cascade
    assert one.ttft_from["measured"] == one.cost_from["measured"] == 0.0
    assert one.rises == pytest.approx(0.3)
    assert one.rise_usd == pytest.approx(0.3 * (100 * 1.5e-7 + 20 * 6e-7))
    assert "if none of them rose" in sentence(one)
    unknown = compared(tmp_path, [alone_on("server", 0.3, other, rises=None) for _ in range(6)])
    assert unknown.rises is None
    assert "is not known" in sentence(unknown)


def test_answers_that_cannot_be_compared_are_left_out_and_counted(tmp_path):
    good = alone_on("device", 0.3, plan(ALONE["server"]))
    rows = [
        good,
        {**good, "shadow": None},
        {**good, "finish_reason": None},
        {**good, "finish_reason": "cancelled"},
        alone_on("device", 0.3, None),
    ]
    recording = read_shadowed(file_of(tmp_path / "r.jsonl", rows))
    assert len(recording.answers) == 1
    assert recording.left_out.reasons == {
        "without a shadow": 1,
        "failed": 1,
        "the reader left": 1,
        "the other preset would have refused it": 1,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "it is empty"), ("{}\n", "is no recording"), ("no JSON\n", "is no recording")],
)
def test_a_file_that_is_no_recording_is_refused_with_the_remedy(tmp_path, text, said, capsys):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_shadowed(path)
    assert main(["shadow", str(path)]) == 2
    assert "on_route=disco.RouteLog" in capsys.readouterr().err


def test_the_command_prints_a_finding_and_the_figures(tmp_path, capsys):
    rows = [raced(0.4, 0.4, "server", plan(ALONE["server"])) for _ in range(10)]
    path = file_of(tmp_path / "r.jsonl", rows)
    assert main(["shadow", str(path), "--json", str(tmp_path / "f.json")]) == 0
    said = capsys.readouterr().out
    assert "Under 'other', 10 answers would have cost" in said
    assert "100 % measured" in said
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["comparisons"][0]["ttft_from"]["measured"] == 1.0
    again = tmp_path / "again.json"
    main(["shadow", str(path), "--json", str(again)])
    assert again.read_bytes() == (tmp_path / "f.json").read_bytes()
    assert main(["shadow", str(path), "--draws", "0"]) == 2


def last_words(tmp_path, capsys, rows: list[dict]) -> str:
    """What the command ends with."""
    path = file_of(tmp_path / "r.jsonl", rows)
    assert main(["shadow", str(path), "--draws", "4"]) == 0
    out = capsys.readouterr().out
    at = max(out.rfind(word) for word in ("Change to 'other'", "Keep 'real'", "This recording does not say"))
    assert at > 0
    return out[at:]


def test_the_last_words_say_whether_to_change(tmp_path, capsys):
    """The device won every race: without the server it would have been as fast, and cheaper."""
    many = [raced(0.4, 0.4, "device", plan(ALONE["device"])) for _ in range(60)]
    said = last_words(tmp_path, capsys, many)
    assert said.startswith("Change to 'other': it would have cost")
    assert "less" in said
    assert "over 60 answers" in said
    slower = [alone_on("server", 0.3, plan(ALONE["device"])) for _ in range(60)]
    slower += [alone_on("device", 2.0 + i / 50, plan(ALONE["device"])) for i in range(ENOUGH_STARTS)]
    assert last_words(tmp_path, capsys, slower).startswith("Keep 'real'. Of 'other': it would have cost")
    same = [alone_on("device", 0.3 + i / 100, plan(ALONE["device"])) for i in range(60)]
    assert last_words(tmp_path, capsys, same).startswith(
        "Keep 'real': under 'other' no difference is certain"
    )


def test_the_last_words_say_what_the_recording_does_not_say(tmp_path, capsys):
    few = last_words(tmp_path, capsys, [raced(0.4, 0.4, "server", plan(ALONE["server"])) for _ in range(10)])
    assert "does not say whether to change to 'other'" in few
    assert "10 answers say little: record at least 50" in few
    one = last_words(tmp_path, capsys, [raced(0.4, 0.4, "server", plan(ALONE["server"]))])
    assert "over 1 answer, with" in one
    assert "1 answer says little: record at least 50" in one
    other = plan(ALONE["server"])
    never = [alone_on("device", 0.4, other, known=False) for _ in range(60)]
    assert "100 % of its first words rest on times that are only assumed" in last_words(
        tmp_path, capsys, never
    )
    lost = [raced(0.4, 3.0, "server", plan(ALONE["device"])) for _ in range(60)]
    assert "stopped before it wrote" in last_words(tmp_path, capsys, lost)


def test_broken_lines_are_named_by_their_number(tmp_path, capsys):
    good = json.dumps(alone_on("device", 0.3, plan(ALONE["server"])))
    path = tmp_path / "r.jsonl"
    path.write_text(f"{good[:99]}\n{good}\n\n[]\n{good}\n", encoding="utf-8")
    assert main(["shadow", str(path), "--draws", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{path}, line 1: this is not JSON; a program that was killed may leave half a line" in out
    assert f"{path}, line 4: this is not a route record, as disco.RouteLog writes them" in out


SERVER = Candidate("server", "any", ttft_quantiles=(0.2, 0.4), overhead_s=0.4)
seconds = st.floats(0.001, 30.0)


@given(st.lists(seconds, min_size=5, max_size=40), seconds, st.floats(0.0, 0.999))
def test_a_drawn_time_is_one_that_was_seen_and_not_below_its_bound(seen_s, bound_s, level):

    times = EndpointTimes.of(SERVER, [Seen(ttft_s=one) for one in seen_s])

    drawn = times.ttft_s(Seen(over_s=bound_s), 10, level)
    assert drawn >= bound_s
    assert drawn == bound_s or any(drawn == pytest.approx(one) for one in seen_s)
