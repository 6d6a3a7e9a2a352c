"""Profiles of passes, and how far predictions from half of one are from the other half."""

from __future__ import annotations

import pytest
from papers.fleet.__main__ import main
from papers.fleet.fleet_measure import error_rows
from papers.fleet.measured_costs import load_costs
from papers.fleet.predictor_errors import (
    Measured,
    Profile,
    fitted,
    load_profile,
    predictor_errors,
    write_profile,
)

from disco.errors import ConfigurationError


def made_profile(bend: float = 0.0) -> Profile:
    """A pass costs 10 ms, 2 ms a row, and attention; `bend` is what every second size costs more, as a share."""

    def seconds(rows: int, before: int) -> float:
        return (0.010 + 0.002 * rows) * (1 + bend * (rows % 2 == 0)) + 1e-6 * before + 2e-7 * rows * before

    lines = [
        Measured("decode", rows, before, 0, seconds(rows, before))
        for rows in range(1, 10)
        for before in (0, 300)
    ]
    lines += [
        Measured("prompt", rows, before, 0, seconds(rows, before))
        for rows in (9, 10, 21, 22, 41)
        for before in (0, 300)
    ]
    lines += [Measured("answer", 1, 50, 20, sum(seconds(1, 50 + n) for n in range(20)))]
    return Profile("made up", tuple(lines))


def test_straight_costs_are_predicted_and_a_bend_is_an_error_of_its_size():
    exact = predictor_errors(made_profile())
    for size, signed in (exact.decode, exact.prompt, exact.answers):
        assert size == pytest.approx(0, abs=1e-6)
        assert signed == pytest.approx(0, abs=1e-6)
    assert exact.points == 4 * 2 + 2 * 2 + 1
    bent = predictor_errors(made_profile(bend=0.25))
    assert 0.15 < bent.decode[0] <= 0.2
    assert bent.decode[1] == pytest.approx(-bent.decode[0])  # always too low
    assert bent.answers[0] == pytest.approx(0, abs=1e-6)


def test_the_fit_finds_what_cached_tokens_cost():
    costs = fitted(made_profile().of("decode"))
    assert (costs.kv_s, costs.row_kv_s) == (pytest.approx(1e-6), pytest.approx(2e-7))


def test_a_profile_comes_back_from_its_file(tmp_path):
    path = tmp_path / "passes.csv"
    write_profile(path, [made_profile()], "a test\nof two lines")
    source, (found,) = load_profile(path)
    assert source == "a test of two lines"
    assert len(found.lines) == len(made_profile().lines)
    for line, other in zip(found.lines, made_profile().lines, strict=True):
        assert line[:4] == other[:4]
        assert line.seconds == pytest.approx(other.seconds, abs=1e-6)
    assert error_rows([found])[0][0] == "made up"
    path.write_text("# source: x\nmodel,kind,rows,before,output,ms\nm,prefill,1,0,0,2\n")
    with pytest.raises(ConfigurationError, match="no kind 'prefill'"):
        load_profile(path)


@pytest.mark.real
def test_the_command_measures_and_writes_costs_that_a_scenario_reads(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("papers.fleet.fleet_measure._DECODE", (1, 2, 4))
    monkeypatch.setattr("papers.fleet.fleet_measure._PROMPT", (6, 8, 12))
    monkeypatch.setattr("papers.fleet.fleet_measure._BEFORE", (0, 10))
    monkeypatch.setattr("papers.fleet.fleet_measure._ANSWERS", ((10, 4, 0),))
    out, costs = tmp_path / "passes.csv", tmp_path / "costs.csv"
    arguments = ["measure", "smollm2-135m", "--repeats", "1"]
    assert main([*arguments, "--out", str(out), "--costs", str(costs)]) == 0
    assert "whole answers" in capsys.readouterr().out
    _, (profile,) = load_profile(out)
    assert len(profile.lines) == 3 * 2 + 3 * 2 + 1
    assert load_costs(costs).verify_s(1, 0) == pytest.approx(profile.of("decode")[0].seconds, rel=0.01)
    assert main(["measure", "smollm2-135m", "smollm2-135m", "--costs", str(costs)]) == 2
    assert "--costs is for one model" in capsys.readouterr().err
