"""Tuning: the preset loads, keeps to its limits when it is run again, and beats what it is compared with."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.client import AsyncDisco
from disco.cost import ExchangeRate, Rates, device_rates
from disco.dispatch import load_preset
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_lengths, load_server
from disco.replay.sweeps.sweep import BUDGETLESS, sweep
from disco.replay.tuning import (
    OBJECTIVES,
    SEARCHED,
    PresetChoice,
    Trial,
    TuningObjective,
    _own_rate,
    _Search,
    parse_max_cost,
    tune,
    write_preset,
)
from disco.replay.workload.scenario import Arm, Scenario, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace
from disco.replay.workload.trace import Trace

RATE = 4e-12


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(requests=1000, seed=3, prompts=load_lengths("lengths-azure-conv-2023"))


@pytest.fixture(scope="module")
def short() -> Trace:
    """Short prompts and longer answers: there is time to move them, and something to save."""
    return alpaca_like(500, 4)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    device, server = load_device("xiaomi14-qwen1.5-0.5b"), load_server("gpt-4o-mini-2024")
    return scenario_for(device, server, exchange_rate=ExchangeRate(usd_per_mflop=RATE), max_tokens=48)


def quick(trace: Trace, scenario: Scenario, verify_requests: int = 30, **aim):
    """A small search: the method is what is tested, not the figures."""
    return tune(trace, scenario, verify_requests=verify_requests, search_requests=300, paces=(8.0,), **aim)


def priced(scenario: Scenario, rate: float) -> Scenario:
    """With its device at this λ."""
    return replace(scenario, device_rates=device_rates(scenario.device, ExchangeRate(usd_per_mflop=rate)))


def test_the_preset_keeps_to_the_limit_when_it_is_run_again(trace, scenario, tmp_path):
    """Read back from the file, by another way than tuning went, on the requests it was verified on."""
    tuned = quick(trace, scenario, objective="p99-ttft", max_cost="0.8x")
    path = tmp_path / "tuned.toml"
    preset = write_preset(tuned.chosen.choice, path, summary="s", comment="c")
    pace, dispatch = preset.playback.pace_tps, preset.dispatch
    arm = Arm(dispatch.policy, dispatch.budget, dispatch.tail, migrate=preset.migration.enabled)
    again = replace(
        priced(scenario, preset.cost.exchange_rate),
        pace_tps=None if pace == "off" else pace,
        lengths=scenario.planning_lengths(trace.prompt_tokens),
    )
    few = trace.take(len(trace) - 30, len(trace))  # the last ones
    (cell,) = sweep(few, [again], [arm], evaluator="events", oracle=False)
    (alone,) = sweep(few, [scenario], [Arm("server_only", 1.0)], oracle=False)
    assert preset.cost.exchange_rate == RATE  # else the costs would be in different money
    assert cell.summary.cost_usd.mean <= 0.8 * alone.summary.cost_usd.mean
    assert cell.summary.cost_usd.mean == pytest.approx(tuned.chosen.cost_usd, rel=1e-9)
    assert cell.summary.ttft_p99_s.mean == pytest.approx(tuned.chosen.ttft_p99_s, rel=1e-9)
    assert tuned.reference.cost_usd == pytest.approx(alone.summary.cost_usd.mean, rel=1e-12)
    # A client loads it.
    client = AsyncDisco(policy=str(path), api_key="none", base_url="http://127.0.0.1:9/v1", local=None)
    assert client.is_closed() is False


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nothing_verified_within_the_limits_is_better(trace, scenario, objective):
    policies = ("length_threshold", "race")
    tuned = quick(trace, scenario, objective=objective, max_cost="0.9x", policies=policies)
    aim = TuningObjective(objective, "0.9x")
    fitting = [trial for trial in tuned.verified if aim.keeps(trial, tuned.reference)]
    best = min(aim.value(trial) for trial in fitting)
    assert tuned.chosen in fitting
    assert aim.value(tuned.chosen) <= best * 1.01 + 1e-12
    assert all(trial.verified for trial in tuned.verified)
    assert tuned.searched > len(tuned.verified)
    # QoE is not bought by a slower pace.
    paces = {trial.choice.pace_tps for trial in tuned.verified}
    assert paces == ({12.0} if objective == "qoe" else {8.0, 12.0})


@pytest.mark.parametrize(
    ("aim", "said"),
    [
        ({"objective": "p99-ttft", "max_cost": "0.0001x"}, r"at most 0\.0.* \$.*\(0.00x server_only\).*cheapest"),
        ({"objective": "cost", "max_p99_s": 0.001}, r"P99 of TTFT of at most 0.001 s.*the fastest is"),
    ],
)  # fmt: skip
def test_out_of_reach_says_how_near_it_gets(trace, scenario, aim, said):
    with pytest.raises(ConfigurationError, match=said):
        quick(trace, scenario, policies=("random",), verify_requests=5, **aim)


def test_moves_can_make_a_dear_candidate_cheap_enough(short, scenario):
    """The server's answers cost what they cost until they move; the search knows that they might."""
    dear = replace(scenario, max_tokens=128)
    tuned = quick(short, dear, objective="mean-ttft", max_cost="0.7x", policies=("server_only",))
    assert tuned.chosen.choice.arm == Arm("server_only", 1.0, 0.0, migrate=True)
    assert tuned.chosen.cost_usd <= 0.7 * tuned.reference.cost_usd
    assert tuned.chosen.ttft_mean_s == pytest.approx(tuned.reference.ttft_mean_s)


def searching(scenario: Scenario, rate: float) -> _Search:
    return _Search(scenario, rate, 0, None, lambda *_: None)


@pytest.mark.parametrize("rate", [RATE, 1e-8])
def test_the_lower_bound_on_cost_is_one(short, scenario, rate):
    """Nothing that really moved cost less than the search had hoped, whichever side is dear."""
    search = searching(replace(priced(scenario, rate), max_tokens=128), rate)
    arms = [Arm("race", 1.0, 0.0), Arm("server_only", 1.0, 0.0), Arm("wait_time", 0.5, 0.0)]
    few = short.take(0, 40)
    pairs = list(zip(search._run(few, arms, ""), search.exact(few, arms, 8.0, rate), strict=True))
    assert [trial for bound, trial in pairs if bound.least_usd > trial.cost_usd * (1 + 1e-9)] == []
    assert any(trial.cost_usd < bound.cost_usd for bound, trial in pairs)


# ---------------------------------------------------------------------- the rate of a scenario


def test_the_rate_is_that_which_the_device_is_priced_at(scenario):
    """As `scenario_of_routes` makes it, a client's device has rates and may tell no FLOPs."""
    assert _own_rate(scenario, None) == pytest.approx(RATE)
    assert _own_rate(scenario, RATE) == RATE
    with pytest.raises(ConfigurationError, match=r"priced at 4e-12 USD per 10\^6 FLOPs and not at 5e-09"):
        _own_rate(scenario, 5e-9)
    silent = replace(scenario, device=scenario.device.model_copy(update={"flops": None}))
    with pytest.raises(ConfigurationError, match=r"exchange rate of .* cannot be computed.*--device"):
        _own_rate(silent, None)
    assert _own_rate(replace(silent, device_rates=Rates(0.0, 0.0)), None) == 0.0
    # Work per prompt token that, at the recorded price per answer token, lies on the server's other side.
    flops = scenario.device.flops
    light = flops.model_copy(update={"prefill": tuple(1.0 for _ in flops.prefill)})
    with pytest.raises(ConfigurationError, match="not on the same side"):
        _own_rate(
            replace(priced(scenario, 5e-9), device=scenario.device.model_copy(update={"flops": light})), None
        )


# ---------------------------------------------------------------------- the aim


def test_cost_limits_are_multiples_or_money():
    values = {"0.8x": "0.8x", "0.0004": 0.0004, "1e-3": 1e-3, "0": 0.0}
    assert {text: parse_max_cost(text) for text in values} == values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"max_cost": text}, "a cost limit is") for text in ("", "x", "-1", "-1x", "nan", "inf", "80%", "0.8 x s")),
        ({"objective": "p99"}, "Did you mean 'p99-ttft'"),
        ({"max_p99_s": 0.0}, "above 0"),
    ],
)  # fmt: skip
def test_an_aim_that_is_none_is_refused_before_any_search(options, message):
    with pytest.raises(ConfigurationError, match=message):
        TuningObjective(**{"objective": "cost", **options})


def trial(p99_s: float, usd: float) -> Trial:
    choice = PresetChoice(Arm("random", 0.5), RATE, 12.0)
    return Trial(choice, p99_s, p99_s, usd, 0.0, usd, None, None, 10, verified=True)


def test_of_those_as_good_as_the_best_the_cheapest_comes_first():
    slow, best, near = trial(2.0, 0.1), trial(1.0, 3.0), trial(1.005, 1.0)
    assert TuningObjective("p99-ttft").ranked([slow, best, near]) == [near, best, slow]
    assert TuningObjective("cost").ranked([slow, best, near]) == [slow, near, best]
    assert TuningObjective("p99-ttft").ranked([]) == []


# ---------------------------------------------------------------------- the file

shares = st.floats(0, 0.99).map(lambda share: round(share, 4))
choices = st.builds(
    PresetChoice,
    st.builds(Arm, st.sampled_from(SEARCHED), shares, shares, st.booleans()),
    st.floats(0, 1),
    st.none() | st.floats(0.1, 1000),
)


@settings(max_examples=30)
@given(choice=choices, summary=st.text(max_size=50))
def test_a_preset_says_exactly_what_was_chosen_and_replaces_an_older_one_whole(
    choice, summary, tmp_path_factory
):
    path = tmp_path_factory.mktemp("preset") / "mine.toml"
    path.write_text("nonsense = [" * 1000)
    preset = write_preset(choice, path, summary=summary, comment="One.\n\nTwo: " + "word " * 50)
    assert load_preset(path) == preset
    assert [file.name for file in path.parent.iterdir()] == ["mine.toml"]
    assert (preset.name, preset.summary, preset.dispatch.policy) == ("mine", summary, choice.arm.policy)
    numbers = {"budget": choice.arm.budget, "tail": choice.arm.tail}
    wanted = {"policy": choice.arm.policy, **({} if choice.arm.policy in BUDGETLESS else numbers)}
    assert tomllib.loads(path.read_text(encoding="utf-8"))["dispatch"] == wanted
    assert preset.cost.exchange_rate == choice.exchange_rate
    assert preset.migration.enabled == choice.arm.migrate
    assert preset.playback.pace_tps == ("off" if choice.pace_tps is None else choice.pace_tps)
    assert max(len(line) for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#") <= 100


@pytest.mark.parametrize(
    ("name", "said"), [("mine", r"write mine\.toml instead"), ("no/mine.toml", "cannot be written")]
)
def test_a_file_that_is_no_preset_is_not_left_behind(tmp_path, name, said):
    with pytest.raises(ConfigurationError, match=said):
        write_preset(PresetChoice(Arm("race"), RATE, None), tmp_path / name, summary="", comment="")
    assert list(tmp_path.iterdir()) == []
