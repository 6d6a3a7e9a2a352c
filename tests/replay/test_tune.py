"""Tuning: the preset loads, keeps to its limits when it is run again, and beats what it is compared with."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.client import AsyncDisco
from disco.cost import ExchangeRate, device_rates
from disco.dispatch import load_preset
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_lengths, load_server
from disco.replay.sweeps.sweep import BUDGETLESS, sweep
from disco.replay.tuning.objective import OBJECTIVES, Trial, TuningObjective, parse_max_cost
from disco.replay.tuning.preset_file import PresetChoice, write_preset
from disco.replay.tuning.search import SEARCHED, _Search, _thin, tune
from disco.replay.workload.scenario import Arm, Scenario, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace
from disco.replay.workload.trace import Trace

RATE = 4e-12


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(requests=2000, seed=3, prompts=load_lengths("lengths-azure-conv-2023"))


@pytest.fixture(scope="module")
def short() -> Trace:
    """Short prompts and longer answers: there is time to move them, and something to save."""
    return alpaca_like(1000, 4)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return scenario_for(
        load_device("xiaomi14-qwen1.5-0.5b"),
        load_server("gpt-4o-mini-2024"),
        exchange_rate=ExchangeRate(usd_per_mflop=RATE),
        max_tokens=48,
    )


def quick(trace: Trace, scenario: Scenario, **options):
    """A small search: the method is what is tested, not the figures."""
    given = {"verify_requests": 60, "search_requests": 500, "paces": (8.0,), **options}
    return tune(trace, scenario, **given)


def as_preset(tuned, folder):
    path = folder / "tuned.toml"
    return path, write_preset(tuned.chosen.choice, path, summary="s", comment="c")


def test_the_preset_keeps_to_the_limit_when_it_is_run_again(trace, scenario, tmp_path):
    """Read back from the file, by another way than tuning went, on the requests it was verified on."""
    tuned = quick(trace, scenario, objective="p99-ttft", max_cost="0.8x")
    _, preset = as_preset(tuned, tmp_path)
    pace = preset.playback.pace_tps
    arm = Arm(
        preset.dispatch.policy, preset.dispatch.budget, preset.dispatch.tail, migrate=preset.migration.enabled
    )
    again = replace(
        scenario,
        pace_tps=None if pace == "off" else pace,
        device_rates=device_rates(scenario.device, ExchangeRate(usd_per_mflop=preset.cost.exchange_rate)),
        lengths=scenario.planning_lengths(trace.prompt_tokens),
    )
    few = trace.take(0, 60)
    (cell,) = sweep(few, [again], [arm], evaluator="events", oracle=False)
    (alone,) = sweep(few, [scenario], [Arm("server_only", 1.0)], oracle=False)
    assert preset.cost.exchange_rate == RATE  # else the costs would be in different money
    assert cell.summary.cost_usd.mean <= 0.8 * alone.summary.cost_usd.mean
    assert cell.summary.cost_usd.mean == pytest.approx(tuned.chosen.cost_usd, rel=1e-9)
    assert cell.summary.ttft_p99_s.mean == pytest.approx(tuned.chosen.ttft_p99_s, rel=1e-9)
    assert tuned.reference.cost_usd == pytest.approx(alone.summary.cost_usd.mean, rel=1e-12)


def recorded(scenario: Scenario, rate: float) -> Scenario:
    """As `scenario_of_routes` makes it of a client whose device was priced at that λ and that told no FLOPs."""
    rates = device_rates(scenario.device, ExchangeRate(usd_per_mflop=rate))
    device = scenario.device.model_copy(update={"flops": None})
    return replace(scenario, device=device, device_rates=rates)


def test_a_profile_that_makes_the_other_side_dear_is_refused(short, scenario):
    """Its work per prompt token, at the recorded price per answer token, lies on the other side of the server's."""
    made = recorded(scenario, 5e-9)
    flops = scenario.device.flops.model_copy(
        update={"prefill": tuple(1.0 for _ in scenario.device.flops.prefill)}
    )
    other = scenario.device.model_copy(update={"flops": flops})
    with pytest.raises(ConfigurationError, match="not on the same side"):
        quick(short, replace(made, device=other), objective="cost")


def test_a_rate_that_the_device_is_not_priced_at_is_refused(short, scenario):
    with pytest.raises(ConfigurationError, match=r"priced at 4e-12 USD per 10\^6 FLOPs and not at 5e-09"):
        quick(short, scenario, objective="cost", exchange_rate=5e-9)


def test_a_device_that_costs_nothing_has_the_rate_zero(short, scenario):
    tuned = quick(
        short, recorded(scenario, 0.0), objective="cost", policies=("random",), paces=(), verify_requests=10
    )
    assert {trial.choice.exchange_rate for trial in tuned.verified} == {0.0}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_nothing_verified_within_the_limits_is_better(trace, scenario, objective):
    tuned = quick(
        trace, scenario, objective=objective, max_cost="0.9x", policies=("length_threshold", "race")
    )
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


def test_a_preset_is_loaded_by_the_client(trace, scenario, tmp_path):
    tuned = quick(trace, scenario, objective="mean-ttft", policies=("random",), paces=(), verify_requests=10)
    path, preset = as_preset(tuned, tmp_path)
    client = AsyncDisco(policy=str(path), api_key="none", base_url="http://127.0.0.1:9/v1", local=None)
    assert load_preset(path).dispatch == preset.dispatch
    assert client.is_closed() is False


def test_out_of_reach_says_how_near_it_gets(trace, scenario):
    with pytest.raises(
        ConfigurationError, match=r"costs at most \$.*\(0.00x server_only\).*The cheapest is .* at \$"
    ):
        quick(trace, scenario, objective="p99-ttft", max_cost="0.0001x", policies=("random",))
    with pytest.raises(ConfigurationError, match=r"P99 of TTFT of at most 0.001 s.*the fastest is"):
        quick(trace, scenario, objective="cost", max_p99_s=0.001, policies=("random",))


def test_moves_can_make_a_dear_candidate_cheap_enough(short, scenario):
    """The server's answers cost what they cost until they move; the search knows that they might."""
    dear = replace(scenario, max_tokens=128)
    tuned = quick(short, dear, objective="mean-ttft", max_cost="0.7x", policies=("server_only",))
    assert tuned.chosen.choice.arm == Arm("server_only", 1.0, 0.0, migrate=True)
    assert tuned.chosen.cost_usd <= 0.7 * tuned.reference.cost_usd
    assert tuned.chosen.ttft_mean_s == pytest.approx(tuned.reference.ttft_mean_s)


@pytest.mark.parametrize("rate", [RATE, 1e-8])
def test_the_lower_bound_on_cost_is_one(short, scenario, rate):
    """Nothing that really moved cost less than the search had hoped, whichever side is dear."""
    trace = short
    rates = device_rates(scenario.device, ExchangeRate(usd_per_mflop=rate))
    scenario = replace(scenario, max_tokens=128, device_rates=rates)
    search = _Search(scenario, rate, 0, None, lambda *_: None)
    arms = [Arm("race", 1.0, 0.0), Arm("server_only", 1.0, 0.0), Arm("wait_time", 0.5, 0.0)]
    few = trace.take(0, 80)
    hoped = search._run(few, arms, "")
    real = search.exact(few, arms, 8.0, rate)
    for bound, trial in zip(hoped, real, strict=True):
        assert bound.least_usd <= trial.cost_usd * (1 + 1e-9)
    assert any(trial.cost_usd < bound.cost_usd for bound, trial in zip(hoped, real, strict=True))


def test_money_is_counted_at_the_users_rate_whatever_steers(trace, scenario):
    """The same starts cost the same under another λ, though their unified cost there is another."""
    search = _Search(scenario, RATE, 0, None, lambda *_: None)
    (other,) = search.steering_rates()
    arms = [Arm("length_threshold", 0.4, 0.0)]
    (own,) = search._run(trace, arms, "", exchange_rate=RATE)
    (steered,) = search._run(trace, arms, "", exchange_rate=other)
    assert other > 100 * RATE
    assert steered.choice.exchange_rate == other
    assert steered.device_usd == pytest.approx(own.device_usd, rel=1e-9)
    assert steered.server_usd == pytest.approx(own.server_usd, rel=1e-9)


@pytest.mark.parametrize("rate", [0.0, 4e-12, 1e-7])
def test_the_other_rate_turns_the_regime_over(scenario, rate):
    own = replace(scenario, device_rates=device_rates(scenario.device, ExchangeRate(usd_per_mflop=rate)))
    (other,) = _Search(own, rate, 0, None, lambda *_: None).steering_rates()
    steered = replace(own, device_rates=device_rates(own.device, ExchangeRate(usd_per_mflop=other)))
    assert {own.regime, steered.regime} == {"device-constrained", "server-constrained"}


def test_thinning_keeps_at_most_that_many_from_all_over(trace):
    thinned = _thin(trace, 300)
    assert len(thinned) == 286  # every seventh
    assert thinned.arrival_s[-1] > 0.99 * trace.arrival_s[-1]
    thinned.check()
    assert _thin(trace, 5000) is trace


# ---------------------------------------------------------------------- the aim


@pytest.mark.parametrize(
    ("text", "value"), [("0.8x", "0.8x"), ("0.0004", 0.0004), ("1e-3", 1e-3), ("0", 0.0)]
)
def test_cost_limits_are_multiples_or_money(text, value):
    assert parse_max_cost(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "-1x", "nan", "inf", "80%", "0.8 x server"])
def test_what_is_no_cost_limit_is_refused(text):
    with pytest.raises(ConfigurationError, match="a cost limit is"):
        parse_max_cost(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "p99"}, "Did you mean 'p99-ttft'"),
        ({"objective": "cost", "max_cost": "cheap"}, "a cost limit is"),
        ({"objective": "cost", "max_p99_s": 0.0}, "above 0"),
    ],
)
def test_an_aim_that_is_none_is_refused_before_any_search(options, message):
    with pytest.raises(ConfigurationError, match=message):
        TuningObjective(**options)


def trial(p99_s: float, usd: float) -> Trial:
    choice = PresetChoice(Arm("random", 0.5), RATE, 12.0)
    return Trial(choice, p99_s, p99_s, usd, 0.0, usd, None, None, 10, verified=True)


def test_of_those_as_good_as_the_best_the_cheapest_comes_first():
    slow, best, near = trial(2.0, 0.1), trial(1.0, 3.0), trial(1.005, 1.0)
    assert TuningObjective("p99-ttft").ranked([slow, best, near]) == [near, best, slow]
    assert TuningObjective("cost").ranked([slow, best, near]) == [slow, near, best]
    assert TuningObjective("p99-ttft").ranked([]) == []


# ---------------------------------------------------------------------- the file

choices = st.builds(
    PresetChoice,
    st.builds(
        Arm,
        st.sampled_from(SEARCHED),
        st.floats(0, 1).map(lambda b: round(b, 4)),
        st.floats(0, 0.99).map(lambda t: round(t, 4)),
        st.booleans(),
    ),
    st.floats(0, 1),
    st.none() | st.floats(0.1, 1000),
)


@settings(max_examples=50)
@given(choice=choices, summary=st.text(max_size=50))
def test_a_preset_says_exactly_what_was_chosen(choice, summary, tmp_path_factory):
    path = tmp_path_factory.mktemp("preset") / "mine.toml"
    preset = write_preset(choice, path, summary=summary, comment="One.\n\nTwo: " + "word " * 50)
    assert load_preset(path) == preset
    assert preset.name == "mine"
    assert preset.summary == summary
    assert preset.dispatch.policy == choice.arm.policy
    if choice.arm.policy not in BUDGETLESS:
        assert (preset.dispatch.budget, preset.dispatch.tail) == (choice.arm.budget, choice.arm.tail)
    assert preset.cost.exchange_rate == choice.exchange_rate
    assert preset.migration.enabled == choice.arm.migrate
    assert preset.playback.pace_tps == ("off" if choice.pace_tps is None else choice.pace_tps)
    assert max(len(line) for line in path.read_text(encoding="utf-8").splitlines() if line[:1] == "#") <= 100


def test_a_file_that_is_no_preset_is_not_left_behind(tmp_path):
    with pytest.raises(ConfigurationError, match=r"write mine\.toml instead"):
        write_preset(PresetChoice(Arm("race"), RATE, None), tmp_path / "mine", summary="", comment="")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_preset(
            PresetChoice(Arm("race"), RATE, None), tmp_path / "no" / "mine.toml", summary="", comment=""
        )
    assert list(tmp_path.iterdir()) == []


def test_a_preset_replaces_an_older_one_whole(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("nonsense = [" * 1000)
    write_preset(PresetChoice(Arm("race"), RATE, None), path, summary="", comment="New.")
    assert tomllib.loads(path.read_text())["dispatch"] == {"policy": "race"}
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]
