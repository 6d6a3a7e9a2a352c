"""Costs: the tables, what stands in where they end, and own measurements as a file."""

from __future__ import annotations

import csv
from statistics import fmean

import pytest
from papers.fleet import cost_predictor
from papers.fleet.cost_predictor import Shape, layer_curve, predict
from papers.fleet.cost_tables import Curve, layer_curves, model_shapes
from papers.fleet.measured_costs import load_costs, write_costs
from papers.fleet.pass_costs import gpu_costs, step_costs
from papers.fleet.stand_ins import GPUS, MODELS

from disco.errors import ConfigurationError

# `linear_ms + other_ms` of the source's own README, for 1, 8, 64, 128, 256 and 1024 rows.
SANITY = {
    ("llama-2-7b", 1, "a40"): (23.9, 24.2, 30.0, 30.3, 44.6, 136.9),
    ("llama-2-7b", 1, "a100"): (9.3, 9.1, 9.7, 12.2, 17.8, 67.9),
    ("llama-2-70b", 4, "a40"): (63.9, 71.4, 72.6, 75.0, 113.7, 349.3),
    ("llama-2-70b", 4, "a100"): (24.9, 25.6, 26.8, 33.2, 51.0, 183.8),
    ("llama-2-70b", 4, "h100"): (14.3, 15.0, 15.3, 15.9, 19.2, 62.1),
}


@pytest.mark.parametrize("key", SANITY)
def test_layers_are_the_tables(key):
    model, gpus, hardware = key
    for rows, ms in zip((1, 8, 64, 128, 256, 1024), SANITY[key], strict=True):
        found = predict("layers", Shape(model, gpus, rows), hardware)
        assert found.basis == "measured"
        assert found.seconds * 1e3 == pytest.approx(ms, abs=0.06)


def test_a_curve_is_straight_between_points_and_goes_on_behind_them():
    curve = Curve.through([(8, 3.0), (1, 1.0), (2, 2.0)])
    assert [curve.at(x) for x in (0, 1, 1.5, 2, 5, 8, 14)] == pytest.approx([1, 1, 1.5, 2, 2.5, 3, 4])
    assert Curve((1.0,), (7.0,)).at(99) == 7.0


def test_an_all_reduce_grows_with_its_rows_and_one_gpu_has_none():
    small, large = (predict("all_reduce", Shape("llama-2-70b", 4, rows), "a100") for rows in (1, 1024))
    assert 0.002 < small.seconds < 0.004  # the source's README: 160 all-reduces of 16 KB take 2.9 ms
    assert large.seconds > small.seconds
    assert small.basis == "measured"
    assert predict("all_reduce", Shape("llama-2-7b"), "a40").seconds == 0.0
    assert predict("all_reduce", Shape("llama-2-70b", 4), "a6000").basis == "stand-in"


def test_every_model_of_the_scenarios_can_be_had_on_every_gpu_and_says_what_it_rests_on():
    for name, same in MODELS.items():
        for hardware in GPUS:
            curve, basis = layer_curve(name, 1, hardware)
            assert curve.at(1) > 0
            own = (hardware, same.table, 1) in layer_curves()
            assert (basis == "measured") == (
                (own or (name == "llama-3-70b" and hardware in ("a40", "h100"))) and same.exact
            )
    v100, a40 = (layer_curve("llama-2-7b", 1, hardware)[0] for hardware in ("v100", "a40"))
    assert v100.at(1) / a40.at(1) == pytest.approx(GPUS["a40"].bandwidth / GPUS["v100"].bandwidth)
    more = [curve.at(2048) - curve.at(1) for curve in (v100, a40)]
    assert more[0] / more[1] == pytest.approx(GPUS["a40"].flops / GPUS["v100"].flops)


def test_what_stands_in_for_attention_is_this_far_from_the_one_table_there_is(monkeypatch):
    """Means of the errors' sizes over the table's points: about 15 % for rounds, 12 % for prompts; no bias."""
    path = cost_predictor.__file__.replace("cost_predictor.py", "data/attention.csv")
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        rows = list(csv.DictReader(file))
    measured = predict("attention", Shape("llama-2-70b", 2, 128, 128, 128 * 4032), "a100")
    assert (measured.basis, measured.seconds) == ("measured", pytest.approx(80 * 0.667e-3))
    monkeypatch.setattr(cost_predictor, "attention_table", lambda *_: None)
    for phase, op, most in (("decode", "attention", 0.16), ("prefill", "prompt attention", 0.13)):
        errors = []
        for row in rows:
            if row["phase"] != phase:
                continue
            batch, chunk, kv = (int(row[name]) for name in ("batch", "chunk", "kv"))
            shape = Shape("llama-2-70b", 2, chunk or batch, batch, batch * kv)
            found = predict(op, shape, "a100")
            assert found.basis == "stand-in"
            errors.append(found.seconds / 80 * 1e3 / float(row["layer_ms"]) - 1)
        assert fmean(map(abs, errors)) < most
        assert abs(fmean(errors)) < 0.07


def test_pass_costs_are_the_predictions():
    costs = gpu_costs("llama-2-70b", "h100", 4)
    whole = predict("pass", Shape("llama-2-70b", 4, 5, 1, 700), "h100")
    assert costs.verify_s(5, 700) == pytest.approx(whole.seconds, rel=0.01)
    tabled = gpu_costs("llama-2-70b", "a100", 2)
    whole = predict("pass", Shape("llama-2-70b", 2, 16, 16, 16 * 512), "a100")
    found = tabled.rows_s(16, 16) + tabled.attending_s(16, 16 * 512, 0)
    assert found == pytest.approx(whole.seconds, rel=0.01)
    prompt = predict("prompt attention", Shape("llama-2-70b", 4, 300, 1, 100), "h100")
    assert costs.prompt_attention_s(300, 100) == pytest.approx(prompt.seconds, rel=0.01)


def test_measured_costs_come_back_from_their_file(tmp_path):
    path = tmp_path / "own.csv"
    points = [(8, 0.088), (1, 0.029), (64, 0.51)]
    write_costs(
        path, points, hardware="cpu", model="m", source="a test\nof two lines", kv_s=1e-6, row_kv_s=2e-7
    )
    costs, made = (
        load_costs(path, "m", overhead_s=0.001),
        step_costs(points, overhead_s=0.001, kv_s=1e-6, row_kv_s=2e-7),
    )
    for rows in (1, 3, 8, 100):
        assert costs.verify_s(rows, 500) == pytest.approx(made.verify_s(rows, 500))
        assert costs.prompt_attention_s(rows, 500) == pytest.approx(made.prompt_attention_s(rows, 500))
    assert load_costs(path).verify_s(1, 0) == pytest.approx(0.029)
    assert path.read_text().startswith("# source: a test of two lines\n")
    with pytest.raises(ConfigurationError, match="has no model 'n'"):
        load_costs(path, "n")
    with pytest.raises(ConfigurationError, match="at least one point"):
        write_costs(path, [], hardware="cpu", model="m", source="")
    path.write_text("hardware,model\ncpu,m\n")
    with pytest.raises(ConfigurationError, match="tp, rows, linear_ms, other_ms are missing"):
        load_costs(path)


@pytest.mark.parametrize(
    ("op", "shape", "hardware", "message"),
    [
        ("layer", Shape("llama-2-7b"), "a40", "no operation is called 'layer'. Did you mean 'layers'"),
        ("layers", Shape("lama-2-7b"), "a40", "'lama-2-7b'. Did you mean 'llama-2-7b'"),
        ("layers", Shape("llama-2-7b"), "a41", "no hardware is called 'a41'. Did you mean 'a40'"),
        ("layers", Shape("llama-2-70b", 3), "a100", "on 3 × a100; known: "),
        ("all_reduce", Shape("llama-2-7b", 2), "v100", "no all-reduce times are known for 2 × v100"),
    ],
)
def test_what_is_not_known_is_named(op, shape, hardware, message):
    with pytest.raises(ConfigurationError) as caught:
        predict(op, shape, hardware)
    assert message in str(caught.value)


def test_the_tables_say_where_they_are_from():
    path = cost_predictor.__file__.replace("cost_predictor.py", "data/README.md")
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    assert "Licence: MIT, Copyright (c) Microsoft Corporation" in text
    assert len(model_shapes()) == 8
