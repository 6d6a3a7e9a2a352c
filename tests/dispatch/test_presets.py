"""Presets are checked when they are loaded, and say what to write instead."""

import pytest

from disco.client.request_options import take_options
from disco.dispatch import Preset, available_presets, load_preset
from disco.dispatch.presets import DispatchSection
from disco.errors import ConfigurationError
from disco.profiles import load_profile


def test_by_path_by_mapping_and_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / "mine.toml"
    path.write_text('[dispatch]\npolicy = "wait_time"\nbudget = 0.3\n')
    preset = load_preset(path)
    assert (preset.name, preset.dispatch.policy, preset.dispatch.budget) == ("mine", "wait_time", 0.3)
    assert load_preset(str(path)) == preset
    assert load_preset(preset) is preset
    assert load_preset({"dispatch": {"budget": 0.2}}).dispatch.budget == 0.2
    monkeypatch.chdir(tmp_path)
    assert load_preset("mine.toml").name == "mine"  # a bare file name needs its ending to count as a path


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dispach": {}}, "unknown key dispach.*'dispatch'"),
        ({"dispatch": {"budgt": 0.1}}, "dispatch: unknown key budgt.*'budget'"),
        ({"dispatch": {"budget": 1.5}}, "budget.*less than or equal to 1"),
        ({"dispatch": {"budget": float("nan")}}, "budget"),
        ({"dispatch": {"tail": 1.0}}, "tail.*less than 1"),
        ({"dispatch": {"policy": "wait_tim"}}, "no policy is called 'wait_tim'.*'wait_time'"),
        ({"dispatch": {"policy": "race", "budget": 0.3}}, "has no budget"),
        ({"cost": {"exchange_rate": -1}}, "exchange_rate"),
        ({"migration": {"order": "whenever"}}, "make_before_break"),
        ({"playback": {"pace_tps": 0}}, "pace_tps.*above 0"),
        ({"migration": 3}, "migration"),
        ({"dispatch": {"policy": "cascde"}}, "Did you mean 'cascade'"),
        ({"dispatch": {"policy": "cascade", "budget": 0.3}}, "'cascade' has no budget"),
        ({"cascade": {}}, r"\[cascade\] has no effect under the policy 'auto'"),
        *(
            ({"dispatch": {"policy": "cascade"}, "cascade": values}, message)
            for values, message in [
                ({"beta": 0.0}, "beta must lie between 0 and 1.*lowest tier alone"),
                ({"beta": 1.0}, "beta must lie between 0 and 1"),
                ({"window": 0}, "window.*greater than or equal to 1"),
                ({"window": 10_001}, "window.*10000"),
                ({"rule": "papers"}, "'exact' or 'paper'"),
                (
                    {"confidence": "max"},
                    "confidence: Input should be 'auto', 'mean', 'sum' or 'weakest', not 'max'",
                ),
                ({"stream": "off"}, "'guard', 'whole' or 'revise'"),
                ({"guard_tokens": 0}, "guard_tokens"),
                ({"aim": "money"}, 'aim = "money" needs usd_per_answer'),
                ({"aim": "bytes", "usd_per_answer": 1.0}, "needs bytes_per_answer"),
                ({"usd_per_answer": 1.0}, 'no effect unless aim = "money"'),
                ({"betta": 0.3}, "unknown key betta.*'beta'"),
            ]
        ),
        (
            {"dispatch": {"policy": "server_only"}, "limits": {"local_only": True}},
            "local_only.*'server_only'",
        ),
        ({"dispatch": {"policy": "wait_time"}, "limits": {"local_only": True}}, "local_only.*'wait_time'"),
    ],
)
def test_mistakes_are_refused_with_the_remedy(values, message):
    for make in (load_preset, lambda values: Preset(**values)):
        with pytest.raises(ConfigurationError, match=message):
            make(values)


def test_a_name_that_no_preset_has_is_answered_with_all_of_them_the_nearest_first():
    with pytest.raises(ConfigurationError) as refused:
        load_preset("expensive")
    lines = str(refused.value).splitlines()
    assert {line.split(":")[0].strip() for line in lines[1:]} == set(available_presets())
    assert all(f": {load_preset(line.split(':')[0].strip()).summary}" in line for line in lines[1:])
    assert "Did you mean" not in lines[0]  # nothing is near
    with pytest.raises(ConfigurationError) as refused:
        load_preset("chaep")
    assert "Did you mean 'cheap'?" in str(refused.value)
    assert str(refused.value).splitlines()[1].startswith("  cheap: ")


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (
            lambda: load_preset({"dispatch": {"policy": "expensive"}}),
            ["auto", "race", "cascade", "wait_time"],
        ),
        (lambda: load_preset({"limit": {}}), ["limits", "dispatch", "playback", "power"]),
        (lambda: load_preset({"limits": {"dollars": 1}}), ["usd", "server_tokens", "per", "account"]),
        (lambda: take_options({"disco": {"prest": "fast"}}), ["preset", "local_only", "deadline_s"]),
        (lambda: load_profile("expensive"), ["gpt-4o-mini-2024"]),
    ],
)
def test_every_mistyped_name_is_answered_with_the_names_there_are(make, known):
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert [name for name in known if name not in str(refused.value)] == []


def test_mistakes_in_names_sections_and_files_are_named(tmp_path):
    bad, broken = tmp_path / "mine.toml", tmp_path / "broken.toml"
    bad.write_text("[dispatch]\nbudget = 7\n")
    broken.write_text("[dispatch\n")
    for wrong, said in [
        ("mine", "no preset is called 'mine'"),
        ("server-frist", "Did you mean 'server-first'"),
        (bad, r"mine\.toml.*budget"),
        (broken, r"broken\.toml is not valid TOML"),
        (tmp_path / "none.toml", "cannot be read"),
        ("x" * 300, r"no preset is called 'x{1,60}\.\.\.x{1,60}'\. To"),  # longer than a file's name may be
        ("a\0b.toml", "null byte"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            load_preset(wrong)
    with pytest.raises(ConfigurationError, match="budget"):
        DispatchSection(budget=2)
