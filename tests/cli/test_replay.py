"""`disco replay` and `disco tune`: what is printed where, and what a mistake looks like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cli import main
from disco.cli.main import _parser
from disco.cli.option_types import parse_budgets, parse_exchange_rate, parse_policies, parse_price
from disco.cost import PAPER_DEVICE_CONSTRAINED, ExchangeRate
from disco.dispatch import load_preset
from disco.errors import ConfigurationError
from disco.profiles import load_device, load_lengths, load_server, save_profile, user_profile_dir
from disco.replay.formats import write_trace
from disco.replay.sweeps.sweep import sweep
from disco.replay.workload.scenario import Arm, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace

FEW = ["--policy", "random", "--policy", "server_only", "--policy", "device_only", "--budget", "0.3,0.6"]


@pytest.fixture(autouse=True)
def nobodys_profiles(tmp_path, monkeypatch):
    """Whoever runs the tests may have profiles of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def trace():
    return synthetic_trace(requests=800, seed=2, prompts=load_lengths("lengths-azure-conv-2023"))


@pytest.fixture(scope="module", params=["csv"])
def path(request, trace, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / f"trace.{request.param}"
    write_trace(trace, path)
    return str(path)


def run(*arguments: str) -> int:
    return main(list(arguments))


# ---------------------------------------------------------------------- replay


def test_figures_are_those_of_the_sweep(path, trace, tmp_path, capsys):
    """The command adds nothing to the library's figures and takes nothing away."""
    out = tmp_path / "figures.json"
    assert run("replay", path, *FEW, "--exchange-rate", "device-constrained", "--json", str(out)) == 0
    scenario = scenario_for(
        load_device("xiaomi14-qwen1.5-0.5b"),
        load_server("gpt-4o-mini-2024"),
        exchange_rate=PAPER_DEVICE_CONSTRAINED,
    )
    arms = [
        Arm("random", 0.3),
        Arm("random", 0.6),
        Arm("server_only", 0.0),  # spares the device altogether: the budget it comes to
        Arm("device_only", 1.0),
    ]
    cells = sweep(trace, [scenario], arms)
    found = json.loads(out.read_text())["cells"]
    assert [cell["arm"]["policy"] for cell in found] == [arm.policy for arm in arms]
    for cell, want in zip(found, cells, strict=True):
        assert cell["summary"]["ttft_p99_s"]["mean"] == want.summary.ttft_p99_s.mean
        assert cell["summary"]["cost_usd"]["mean"] == want.summary.cost_usd.mean
        assert cell["regret_mean_s"]["mean"] == want.regret_mean_s.mean
    assert "random" in capsys.readouterr().out


def test_without_options_it_says_what_was_assumed_and_what_is_best(path, capsys):
    assert run("replay", path) == 0
    printed = capsys.readouterr().out
    assert "Device: the shipped profile xiaomi14-qwen1.5-0.5b" in printed
    assert "Server: the shipped profile gpt-4o-mini-2024" in printed
    assert "drawn from the server's profile" in printed
    for policy in ("length_threshold", "random", "server_only", "device_only", "oracle"):
        assert policy in printed
    assert "optimal_wait" not in printed  # the server is the dear side: there is no wait to choose
    assert printed.count("length_threshold │") == 9
    assert "lowest P99 TTFT" in printed
    assert "against server_only" in printed


def test_a_profile_measured_on_this_machine_comes_first(path, capsys):
    mine = load_device("pixel7pro-bloom-1.1b").model_copy(update={"name": "mine"})
    save_profile(mine, user_profile_dir() / "mine.toml")
    assert run("replay", path, *FEW) == 0
    printed = capsys.readouterr().out
    assert "Device: mine, measured on this machine" in printed
    assert "mine × gpt-4o-mini-2024" in printed


def test_json_on_standard_output_is_alone_there(path, capsys):
    assert run("replay", path, *FEW, "--json") == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["cells"]) == 4
    assert "random" in captured.err


def test_a_page_is_written(path, tmp_path):
    page = tmp_path / "report.html"
    assert run("replay", path, *FEW, "--html", str(page)) == 0
    assert "<html" in page.read_text(encoding="utf-8")[:200]


def test_every_pair_of_devices_and_servers_is_replayed(path, tmp_path):
    out = tmp_path / "figures.json"
    devices = ["--device", "pixel7pro-bloom-560m", "--device", "xiaomi14-qwen1.5-0.5b"]
    servers = ["--server", "deepseek-v3-2025", "--server", "gpt-4o-mini-2024"]
    assert (
        run("replay", path, "--policy", "auto", "--budget", "0.5", *devices, *servers, "--json", str(out))
        == 0
    )
    found = [cell["scenario"] for cell in json.loads(out.read_text())["cells"]]
    assert found == [
        f"{device} × {server}"
        for device in ("pixel7pro-bloom-560m", "xiaomi14-qwen1.5-0.5b")
        for server in ("deepseek-v3-2025", "gpt-4o-mini-2024")
    ]


def test_processes_change_nothing(path, tmp_path):
    for jobs in ("1", "2"):
        assert run("replay", path, *FEW, "--seeds", "2", "--jobs", jobs, "--json", str(tmp_path / jobs)) == 0
    assert (tmp_path / "1").read_text() == (tmp_path / "2").read_text()


def test_token_by_token_with_moves_beside_without(tmp_path):
    path, out = tmp_path / "short.jsonl", tmp_path / "figures.json"
    write_trace(alpaca_like(20, 1), path)
    options = [
        "--policy",
        "server_only",
        "--migrate",
        "--pace",
        "8",
        "--max-tokens",
        "64",
        "--device-slots",
        "1",
    ]
    assert run("replay", str(path), *options, "--json", str(out)) == 0
    document = json.loads(out.read_text())
    staying, moving = document["cells"]
    assert (staying["arm"]["migrate"], moving["arm"]["migrate"]) == (False, True)
    assert moving["summary"]["reading"]["moved"]["mean"] > 0
    assert moving["summary"]["cost_usd"]["mean"] < staying["summary"]["cost_usd"]["mean"]
    assert document["example"] is not None


def test_rows_left_out_are_reported(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,-2,5\n2,10,nan\n3,10,5\n")
    assert run("replay", str(path), *FEW) == 2
    assert "bad.csv, line 3, column prompt_tokens" in capsys.readouterr().err
    assert run("replay", str(path), *FEW, "--skip-invalid") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 rows were left out" in printed
    assert "line 3" in printed


def test_in_chunks_the_figures_are_the_same_but_for_the_oracle(path, tmp_path, capsys):
    options = ["replay", path, "--policy", "random", "--policy", "oracle", "--budget", "0.3"]
    assert run(*options, "--json", str(tmp_path / "whole")) == 0
    assert run(*options, "--json", str(tmp_path / "chunks"), "--chunk-rows", "100") == 0
    whole, chunks = (json.loads((tmp_path / name).read_text())["cells"] for name in ("whole", "chunks"))
    assert [cell["arm"]["policy"] for cell in chunks] == ["random"]
    for name in ("ttft_mean_s", "cost_usd", "budget_used"):
        assert chunks[0]["summary"][name]["mean"] == pytest.approx(
            whole[0]["summary"][name]["mean"], rel=1e-12
        )
    assert "without the oracle" in capsys.readouterr().out


def test_synthetic_requests_differ_from_seed_to_seed(tmp_path):
    out = tmp_path / "figures.json"
    options = ["--requests", "300", "--arrivals", "per-client", "--mean-interval", "2", "--seeds", "3"]
    assert run("replay", "synthetic", *FEW, *options, "--json", str(out)) == 0
    summary = json.loads(out.read_text())["cells"][-1]["summary"]
    assert summary["requests"] == 300
    # Only the device's times: they hang on the prompts alone, so it is the prompts that differ.
    assert summary["ttft_mean_s"]["low"] < summary["ttft_mean_s"]["mean"]


def test_the_papers_evaluation_is_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "disco.cli.replay_paper.QUICK", {"requests": 30, "event_requests": 2, "budgets": (0.0, 0.5, 1.0)}
    )
    out = tmp_path / "paper.json"
    assert run("replay", "paper", "--quick", "--runs", "1", "--jobs", "1", "--json", str(out)) == 0
    printed = capsys.readouterr().out
    for item in ("Table 2", "Table 3", "Figure 6", "Figure 7", "Figure 9"):
        assert item in printed
    assert json.loads(out.read_text())["setup"]["requests"] == 30


# ---------------------------------------------------------------------- tune


def test_tune_writes_a_preset_that_loads(tmp_path, capsys, monkeypatch):
    path, out = tmp_path / "short.csv", tmp_path / "mine.toml"
    write_trace(alpaca_like(200, 1), path)
    options = ["--objective", "p99-ttft", "--max-cost", "0.8x", "--max-tokens", "32", "--jobs", "1"]
    assert run("tune", str(path), *options, "--verify-requests", "20", "--out", str(out)) == 0
    preset = load_preset(out)
    printed = " ".join(capsys.readouterr().out.split())
    assert preset.summary in printed
    assert "▶" in printed
    comment = out.read_text(encoding="utf-8").partition("summary =")[0]
    for said in ("p99-ttft", "Trace: short", "server_only", "xiaomi14-qwen1.5-0.5b"):
        assert said in " ".join(comment.replace("#", "").split())


def test_what_cannot_be_had_says_what_could(path, tmp_path, capsys):
    out = tmp_path / "mine.toml"
    options = ["--max-cost", "0.00001x", "--max-tokens", "16", "--jobs", "1", "--verify-requests", "10"]
    assert run("tune", path, *options, "--out", str(out)) == 2
    assert "The cheapest is" in capsys.readouterr().err
    assert not out.exists()


# ---------------------------------------------------------------------- mistakes


MISTAKES = [
    (["--budget", "1.2"], "between 0 and 1"),
    (["--budget", "0:2:0.5"], "between 0 and 1"),
    (["--budget", "half"], "0:1:0.1"),
    (["--tail", "1"], "a tail is a share"),
    (["--policy", "wait_tme"], "Did you mean 'wait_time'"),
    (["--policy", "recorded"], "this trace does not say"),
    (["--device", "iphone"], "there is no profile 'iphone'"),
    (["--server", "pixel7pro-bloom-560m"], "a server profile is needed"),
    (["--price", "0.15"], "in and out"),
    (["--price=-1,2"], "in and out"),
    (["--exchange-rate", "cheap"], "USD per 10^6 FLOPs"),
    (["--exchange-rate", "nan"], "exchange rate"),
    (["--max-tokens", "0"], "--max-tokens"),
    (["--pace", "5"], "--pace needs --events"),
    (["--device-slots", "2"], "--device-slots needs --events"),
    (["--events", "--pace", "-1"], "--pace"),
    (["--events", "--device-slots", "0"], "--device-slots must be at least 1"),
    (["--seeds", "0"], "--seeds must be at least 1"),
    (["--jobs", "0"], "jobs must be at least 1"),
    (["--jobs", "2", "--scheduler", "tcp://127.0.0.1:1"], "not both"),
    (["--scheduler", "nowhere"], "is host:port"),
    (["--chunk-rows", "0"], "--chunk-rows must be at least 1"),
    (["--chunk-rows", "9", "--events"], "vectorised"),
    (["--json", "no/such/folder/x.json"], "there is no folder"),
    (["--html", "no/such/folder/x.html"], "there is no folder"),
    (["--runs", "3"], "belongs to `disco replay paper`"),
    (["--format", "burst"], "Did you mean 'burstgpt'"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES])
def test_a_mistake_is_one_clear_line(path, options, message, capsys):
    assert run("replay", path, *options) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("disco: ")
    assert captured.err.count("\n") == 1
    assert "┃" not in captured.out  # no table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "nowhere"], "a trace is a file, `synthetic` or `paper`"),
        (["replay", "nowhere.csv"], "nowhere.csv"),
        (["replay", "paper", "--budget", "0.5"], "--budget is set by the paper"),
        (["replay", "synthetic", "--arrivals", "gama"], "Did you mean 'gamma'"),
        (["replay", "synthetic", "--requests", "0"], "requests must be at least 1"),
        (["tune", "nowhere.csv", "--out", "mine"], ".toml"),
        (["tune", "nowhere.csv", "--max-cost", "cheap"], "a cost limit is"),
        (["tune", "nowhere.csv", "--max-p99", "0"], "above 0"),
        (["tune", "nowhere.csv", "--verify-requests", "0"], "--verify-requests"),
        (["tune", "nowhere.csv", "--device", "a", "--device", "b"], "one --device at a time"),
        (["tune", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_so_are_those_before_any_trace_is_read(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_without_plotly_a_page_is_refused_before_the_work(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("disco.cli.output_files.find_spec", lambda _name: None)
    assert run("replay", path, *FEW, "--html", str(tmp_path / "x.html")) == 2
    assert 'pip install "disco-llm[replay]"' in capsys.readouterr().err


def test_help_needs_none_of_it():
    """`disco --help` is quick: nothing of the replay is imported for it."""
    code = (
        "import sys\n"
        "from disco.cli.main import _parser\n"
        "_parser().format_help()\n"
        "print([m for m in sys.modules if m.startswith('disco.replay') or m in ('scipy', 'plotly', 'pyarrow')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# ---------------------------------------------------------------------- what options mean


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("0.5", [0.5]),
        ("0.1,0.3", [0.1, 0.3]),
        ("0:1:0.1", [i / 10 for i in range(11)]),
        ("0.1:0.9:0.4", [0.1, 0.5, 0.9]),
        ("0:1:0.3", [0.0, 0.3, 0.6, 0.9]),
        ("1:1:1", [1.0]),
    ],
)
def test_budgets(text, budgets):
    assert parse_budgets(text) == budgets


@given(st.text(max_size=12) | st.from_regex(r"[0-9.:,eE+-]{1,12}", fullmatch=True))
def test_budgets_are_shares_or_a_mistake(text):
    try:
        budgets = parse_budgets(text)
    except ConfigurationError:
        return
    assert budgets
    assert all(0.0 <= budget <= 1.0 for budget in budgets)


def test_prices_rates_and_policies():
    assert parse_price("0.15,0.60").usd_per_mtok_out == 0.6
    assert parse_exchange_rate("4e-12") == ExchangeRate(usd_per_mflop=4e-12)
    assert parse_exchange_rate("device-constrained") == PAPER_DEVICE_CONSTRAINED
    assert parse_policies(["race", "oracle", "race"]) == ["race", "oracle"]


def test_defaults_of_tune_and_of_the_library_agree():
    """`options.py` repeats them so that --help stays quick."""
    from disco.cli.replay_options import DEFAULT_EXCHANGE_RATE, OBJECTIVES
    from disco.replay.tuning import objective

    assert OBJECTIVES == objective.OBJECTIVES
    assert float(DEFAULT_EXCHANGE_RATE) == load_preset("balanced").cost.exchange_rate
    arguments = _parser().parse_args(["tune", "t.csv"])
    assert arguments.verify_requests == 1000


def test_a_trace_with_times_replays_its_own(tmp_path, trace, capsys):
    from dataclasses import replace

    known = replace(trace, ttft_s=np.full(len(trace), 0.25))
    path = tmp_path / "known.csv"
    write_trace(known, path)
    out = tmp_path / "figures.json"
    assert run("replay", str(path), "--policy", "server_only", "--json", str(out)) == 0
    assert "The server's TTFTs are the trace's own" in capsys.readouterr().out
    (cell,) = json.loads(out.read_text())["cells"]
    assert cell["summary"]["ttft_p99_s"]["mean"] == 0.25
    assert Path(path).exists()
