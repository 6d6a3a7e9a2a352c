"""`disco replay` and `disco tune`: what is printed where; and what a mistake looks like, in every command."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from disco.cli import main
from disco.cli.replay.policies import TAIL, parse_policies, parse_shares
from disco.cli.replay.situation import DEFAULT_EXCHANGE_RATE, parse_exchange_rate
from disco.cli.shared_options import parse_price
from disco.cost import PAPER_DEVICE_CONSTRAINED, ExchangeRate
from disco.dispatch import load_preset
from disco.profiles import load_device, load_lengths, load_server, save_profile, user_profile_dir
from disco.replay.formats import write_trace
from disco.replay.sweeps.sweep import sweep
from disco.replay.workload.scenario import Arm, scenario_for
from disco.replay.workload.synthetic import alpaca_like, synthetic_trace

FEW = ("--policy", "random", "--policy", "server_only", "--policy", "device_only", "--budget", "0.3,0.6")


@pytest.fixture(autouse=True)
def nobodys_profiles(tmp_path, monkeypatch):
    """Whoever runs the tests may have profiles of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def trace():
    return synthetic_trace(requests=800, seed=2, prompts=load_lengths("lengths-azure-conv-2023"))


@pytest.fixture(scope="module")
def path(trace, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "trace.csv"
    write_trace(trace, path)
    return str(path)


def replayed(tmp_path, *arguments: str) -> dict:
    """The figures of a replay."""
    out = tmp_path / "figures.json"
    assert main(["replay", *arguments, "--json", str(out)]) == 0
    return json.loads(out.read_text())


# ---------------------------------------------------------------------- replay


def test_figures_are_those_of_the_sweep(path, trace, tmp_path, capsys):
    """The command adds nothing to the library's figures and takes nothing away."""
    found = replayed(tmp_path, path, *FEW, "--exchange-rate", "device-constrained")["cells"]
    device, server = load_device("xiaomi14-qwen1.5-0.5b"), load_server("gpt-4o-mini-2024")
    scenario = scenario_for(device, server, exchange_rate=PAPER_DEVICE_CONSTRAINED)
    # server_only spares the device altogether: the budget it comes to.
    arms = [Arm("random", 0.3), Arm("random", 0.6), Arm("server_only", 0.0), Arm("device_only", 1.0)]
    assert [cell["arm"]["policy"] for cell in found] == [arm.policy for arm in arms]
    for cell, want in zip(found, sweep(trace, [scenario], arms), strict=True):
        assert cell["summary"]["ttft_p99_s"]["mean"] == want.summary.ttft_p99_s.mean
        assert cell["summary"]["cost_usd"]["mean"] == want.summary.cost_usd.mean
        assert cell["regret_mean_s"]["mean"] == want.regret_mean_s.mean
    assert "random" in capsys.readouterr().out


def test_without_options_it_says_what_was_assumed_and_what_is_best(path, capsys):
    assert main(["replay", path]) == 0
    printed = capsys.readouterr().out
    for part in (
        "Device: the shipped profile xiaomi14-qwen1.5-0.5b",
        "Server: the shipped profile gpt-4o-mini-2024",
        "drawn from the server's profile",
        *("length_threshold", "random", "server_only", "device_only", "oracle"),
        "lowest P99 TTFT",
        "against server_only",
    ):
        assert part in printed
    assert "optimal_wait" not in printed  # the server is the dear side: there is no wait to choose
    assert printed.count("length_threshold │") == 9
    mine = load_device("pixel7pro-bloom-1.1b").model_copy(update={"name": "mine"})
    save_profile(mine, user_profile_dir() / "mine.toml")
    assert main(["replay", path, *FEW]) == 0
    printed = capsys.readouterr().out
    assert "Device: mine, measured on this machine" in printed
    assert "mine × gpt-4o-mini-2024" in printed


def test_json_of_every_pair_is_alone_on_standard_output_and_a_page_is_written(tmp_path, capsys):
    page, devices = tmp_path / "report.html", ("pixel7pro-bloom-560m", "xiaomi14-qwen1.5-0.5b")
    servers = ("deepseek-v3-2025", "gpt-4o-mini-2024")
    named = [*(f"--device={name}" for name in devices), *(f"--server={name}" for name in servers)]
    drawn = (
        "--requests=300",
        "--arrivals=per-client",
        "--mean-interval=2",
        "--seeds=3",
        "--policy=device_only",
    )
    assert main(["replay", "synthetic", *drawn, *named, "--html", str(page), "--json"]) == 0
    captured = capsys.readouterr()
    cells = json.loads(captured.out)["cells"]
    assert [cell["scenario"] for cell in cells] == [f"{d} × {s}" for d in devices for s in servers]
    # Only the device's times: they hang on the prompts alone, so it is the prompts that differ from seed to seed.
    assert all(c["summary"]["ttft_mean_s"]["low"] < c["summary"]["ttft_mean_s"]["mean"] for c in cells)
    assert {cell["summary"]["requests"] for cell in cells} == {300}
    assert "device_only" in captured.err
    assert "<html" in page.read_text(encoding="utf-8")[:200]


def test_token_by_token_with_moves_beside_without(tmp_path):
    path = tmp_path / "short.jsonl"
    write_trace(alpaca_like(20, 1), path)
    options = ("--policy=server_only", "--migrate", "--pace=8", "--max-tokens=64", "--device-slots=1")
    document = replayed(tmp_path, str(path), *options)
    staying, moving = document["cells"]
    assert (staying["arm"]["migrate"], moving["arm"]["migrate"]) == (False, True)
    assert moving["summary"]["reading"]["moved"]["mean"] > 0
    assert moving["summary"]["cost_usd"]["mean"] < staying["summary"]["cost_usd"]["mean"]
    assert document["example"] is not None


def test_rows_left_out_are_reported_and_in_chunks_there_is_no_oracle(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,-2,5\n2,10,nan\n3,10,5\n")
    assert main(["replay", str(path), *FEW]) == 2
    assert "bad.csv, line 3, column prompt_tokens" in capsys.readouterr().err
    for more in ((), ("--policy", "oracle", "--chunk-rows", "1")):
        assert main(["replay", str(path), *FEW, "--skip-invalid", *more]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert f"Left out: {path}, line 3: negative" in printed
        assert ("without the oracle" in printed) == bool(more)


def test_a_trace_with_times_replays_its_own(tmp_path, trace, capsys):
    known = tmp_path / "known.csv"
    write_trace(replace(trace, ttft_s=np.full(len(trace), 0.25)), known)
    (cell,) = replayed(tmp_path, str(known), "--policy", "server_only")["cells"]
    assert "The server's TTFTs are the trace's own" in capsys.readouterr().out
    assert cell["summary"]["ttft_p99_s"]["mean"] == 0.25


def test_the_preset_loads_with_a_sentence_true_to_the_table_and_what_cannot_be_had_says_what_could(
    tmp_path, capsys
):
    path, out = str(tmp_path / "short.csv"), tmp_path / "mine.toml"
    write_trace(alpaca_like(200, 1), path)
    options = ["--objective=p99-ttft", "--max-tokens=16", "--jobs=1", "--verify-requests=10"]
    assert main(["tune", path, *options, "--max-cost", "0.8x", "--out", str(out)]) == 0
    preset = load_preset(out)
    printed = capsys.readouterr().out
    assert preset.summary in " ".join(printed.split())
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    (chosen,) = (row for row in rows if row[0].startswith("▶"))
    (alone,) = (row for row in rows if row[0].startswith("server_only, as it is"))
    said = re.fullmatch(
        r"(.+): P99 of TTFT (\S+) s, mean (\S+) s; server_only: (\S+) s and (\S+) s, (\S+)x its policy cost\.",
        preset.summary,
    )
    assert (f"▶ {said[1]}", f"{said[6]}×") == (chosen[0], chosen[8])
    assert ("slower than the server alone" in printed) == (float(chosen[5]) > float(alone[5]))
    shown = [float(row[column]) for row in (chosen, alone) for column in (5, 4)]
    assert [float(x) for x in said.groups()[1:5]] == pytest.approx(shown, abs=0.006)
    comment = out.read_text(encoding="utf-8").partition("summary =")[0]
    for part in ("p99-ttft", "Trace: short", "server_only", "xiaomi14-qwen1.5-0.5b"):
        assert part in " ".join(comment.replace("#", "").split())
    out.unlink()
    assert main(["tune", path, *options[1:], "--max-cost", "0.00001x", "--out", str(out)]) == 2
    assert "The cheapest is" in capsys.readouterr().err
    assert not out.exists()


def test_drawn_requests_are_tuned_on_like_the_same_ones_in_a_file(tmp_path, capsys):
    drawn, path = ["--requests", "120", "--mean-interval", "5"], str(tmp_path / "synthetic.csv")
    shipped = load_lengths("lengths-azure-conv-2023")
    write_trace(synthetic_trace(requests=120, seed=0, prompts=shipped, mean_interval_s=5.0), path)
    options = ["--max-tokens=16", "--jobs=1", "--verify-requests=10", "--out"]
    said = []
    for trace, more in (("synthetic", drawn), (path, [])):
        out = tmp_path / f"{len(said)}.toml"
        assert main(["tune", trace, *more, *options, str(out)]) == 0
        told = capsys.readouterr().out
        said.append(
            (out.read_text(encoding="utf-8"), told[told.index("The best of") : told.index("Preset:")])
        )
        assert ("Lengths: lengths-azure-conv-2023." in " ".join(told.split())) == bool(more)
    assert said[0] == said[1]


# ---------------------------------------------------------------------- mistakes

MISTAKES = [
    ("--budget 1.2", "between 0 and 1"),
    *((f"--budget {budget}", "0:1:0.1") for budget in ("half", "0:1:0", "1:0:0.1", "0:inf:1", "0.5,")),
    ("--budget nan", "between 0 and 1"),
    ("--budget 0:1:1e-9", "larger step"),
    ("--tail 1", "tail must be a share"),
    ("--policy wait_tme", "Did you mean 'wait_time'"),
    ("--policy recorded", "this trace has none"),
    ("--device iphone", "there is no profile 'iphone'"),
    ("--server pixel7pro-bloom-560m", "a server profile is needed"),
    ("--price 0.15", "in and out"),
    ("--price=-1,2", "in and out"),
    ("--exchange-rate cheap", "USD per 10^6 FLOPs"),
    ("--exchange-rate 1e308", "exchange rate this large"),
    ("--max-tokens 0", "--max-tokens"),
    ("--pace 5", "--pace needs --events"),
    ("--events --pace -1", "--pace"),
    ("--events --device-slots 0", "--device-slots must be at least 1"),
    ("--seeds 0", "--seeds must be at least 1"),
    ("--jobs 0", "jobs must be at least 1"),
    ("--jobs 2 --scheduler tcp://127.0.0.1:1", "not both"),
    ("--scheduler nowhere", "is host:port"),
    ("--chunk-rows 0", "--chunk-rows must be at least 1"),
    ("--html no/such/folder/x.html", "there is no folder"),
    ("--json x.out --html x.out", "--html x.out: --json writes this file too"),
    ("--format burst", "Did you mean 'burstgpt'"),
    # What does not apply is named, not ignored.
    *(
        (f"--chunk-rows 9 {option}", f"{option.split()[0]} does not apply to a trace file in chunks")
        for option in ("--events", "--migrate", "--pair x")
    ),
    ("--policy cascade", "'cascade' is a preset, not a policy"),
    ("--policy race --budget 0.5", "--budget does not apply to race"),
    ("--policy random --policy oracle --tail 0.1", "--tail does not apply to oracle and random"),
    ("--policy oracle --migrate", "--migrate does not apply to oracle"),
]  # fmt: skip


MISTAKES_OF_TUNE = [
    ("--out mine", ".toml"),
    ("--out no/folder/mine.toml", "there is no folder"),
    ("--max-cost cheap", "a cost limit is"),
    ("--max-p99 0", "above 0"),
    ("--verify-requests 0", "--verify-requests"),
    ("--device a --device b", "one --device at a time"),
]


def refused(capsys, *arguments: str) -> str:
    """The one line that a mistake is answered with."""
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("disco: ")
    assert captured.err.count("\n") == 1
    assert "┃" not in captured.out  # no table
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((f"replay TRACE {options}", message) for options, message in MISTAKES),
        *((f"{command} nowhere", "check the path, or write `synthetic`") for command in ("replay", "tune")),
        *(
            (f"{command} nowhere.jsonl", "there is no file nowhere.jsonl; check the path")
            for command in (
                *("replay", "tune", "show", "shadow", "replay --preset cheap", "replay --as-recorded"),
                "replay routes.jsonl --verdicts --histories",
                "speculate check http://localhost:1/v1 --prompts",
                "split audit m --text",
            )
        ),
        ("replay nowhere.csv", "nowhere.csv"),
        ("replay synthetic --arrivals gama", "Did you mean 'gamma'"),
        ("replay synthetic --requests 0", "requests must be at least 1"),
        ("replay synthetic --requests 99999999999999", "takes more memory than there is"),
        ("tune synthetic --requests 0", "requests must be at least 1"),
        ("chat --model m", "--model names the server's model, but without OPENAI_API_KEY there is no server"),
        ("serve --local none --runtime engine", "--runtime is for a local model"),
        ("serve --local none --runtime llama-server", "--runtime is for a local model"),
        *((f"tune TRACE {options}", message) for options, message in MISTAKES_OF_TUNE),
    ],
    ids=lambda value: value if " " in value else "",
)
def test_a_mistake_is_one_clear_line(path, arguments, message, capsys):
    assert message in refused(capsys, *arguments.replace("TRACE", path).split())


OF_FILE, OF_LIVED, OF_PRESETS, OF_VERDICTS, OF_SYNTHETIC = (
    f"`disco replay {form}`"
    for form in ("FILE", "FILE --as-recorded", "FILE --preset P", "FILE --verdicts", "synthetic")
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("replay x.csv --requests 3", f"--requests does not apply to {OF_FILE}; it is for {OF_SYNTHETIC}"),
        ("replay x.csv --lengths=x", f"--lengths does not apply to {OF_FILE}; it is for {OF_SYNTHETIC}"),
        ("replay synthetic --skip-invalid", f"does not apply to {OF_SYNTHETIC}; it is for {OF_FILE}"),
        ("replay synthetic --preset cascade", f"it is for {OF_LIVED} and {OF_PRESETS}"),
        ("replay --verdicts r.jsonl --tail 0.1", f"does not apply to {OF_VERDICTS}; it is for {OF_FILE} and"),
        ("replay r.jsonl --verdicts --preset cascade", f"--verdicts does not apply to {OF_PRESETS}"),
        ("replay r.jsonl --preset=cascade --policy race", f"it is for {OF_FILE} and {OF_SYNTHETIC}\n"),
        ("replay r.jsonl --beta 0.1", f"it is for {OF_VERDICTS}\n"),
        ("tune x.csv --requests 3", "does not apply to `disco tune FILE`; it is for `disco tune synthetic`"),
        ("tune synthetic --format auto", "it is for `disco tune FILE`\n"),
        ("replay r.jsonl other.jsonl", "unrecognized arguments: other.jsonl"),
        ("replay", "required: FILE"),
        ("replay --events synthetic", "before all options: disco replay synthetic --events\n"),
        ("tune --requests 5 synthetic", "before all options: disco tune synthetic --requests 5\n"),
        ("replay r.jsonl --polcy race", "unrecognized arguments: --polcy race. Did you mean --policy?"),
        ("chat --presett cheap", "Did you mean --preset?"),
        ("adapter", "required: {train}"),
        ("state", "required: {show,export,forget,prompts}"),
        ("state show --all", "disco state show: error: unrecognized arguments: --all"),
    ],
)
def test_an_option_of_another_form_is_refused_with_its_place(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_shows_a_form_of_replay_with_its_own_options_only(capsys):
    def shown(arguments: str) -> set[str]:
        with pytest.raises(SystemExit, match="0"):
            main([*arguments.split(), "--help"])
        return set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.MULTILINE))

    verdicts = {"--verdicts", "--beta", "--histories", "--json"}
    assert shown("replay routes.jsonl --verdicts") == shown("replay --verdicts") == verdicts
    of_presets = {"--preset", "--pair", "--histories", "--max-tokens", "--seeds", "--json"}
    assert shown("replay FILE --preset P") == of_presets
    assert shown("replay synthetic") - shown("replay FILE") == {
        *("--requests", "--arrivals", "--mean-interval", "--lengths")
    }
    assert shown("replay FILE") - shown("replay synthetic") == {"--format", "--skip-invalid", "--chunk-rows"}
    assert shown("replay") == set()


@pytest.mark.parametrize(
    "arguments",
    [
        "replay IN --json IN",
        "replay IN --verdicts --json IN",
        "replay x.jsonl --preset IN --json IN",
        "replay x.jsonl --pair IN --json IN",
        "replay IN --html ./IN",
        "replay VIA --json IN",
        "replay synthetic --device IN --json IN",
        "tune x.csv --server IN --out IN",
        "chat --preset IN --record IN",
        "chat --local IN --record VIA",
        "serve --key-file IN --record IN",
    ],
)
def test_no_output_replaces_what_is_read(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.toml").write_text("precious")
    (tmp_path / "link.toml").symlink_to("in.toml")
    typed = arguments.replace("IN", "in.toml").replace("VIA", "link.toml").split()
    assert "the command reads this file and would overwrite it" in refused(capsys, *typed)
    assert (tmp_path / "in.toml").read_text() == "precious"


def test_an_answer_that_would_never_end_is_refused_where_it_is_run_token_by_token(tmp_path, capsys):
    path = tmp_path / "long.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,1000000000\n")
    message = refused(capsys, "replay", str(path), "--policy", "race", "--events")
    assert "request 2 has an answer of 1,000,000,000 tokens" in message
    assert "--max-tokens" in message
    assert main(["replay", str(path), "--policy", "race", "--events", "--max-tokens", "20"]) == 0
    assert main(["replay", str(path), "--policy", "race"]) == 0


def test_without_plotly_a_page_is_refused_before_the_work(path, capsys, monkeypatch):
    monkeypatch.setattr("disco.cli.output_files.find_spec", lambda _name: None)
    assert 'pip install "disco-llm[replay]"' in refused(capsys, "replay", path, "--html", "x.html")


def test_what_options_mean():
    assert parse_shares("0.1,0.3") == [0.1, 0.3]
    assert parse_shares("0:1:0.1") == [i / 10 for i in range(11)]
    assert parse_shares("0:1:0.3") == [0.0, 0.3, 0.6, 0.9]
    assert parse_shares("1:1:1") == [1.0]
    assert parse_price("0.15,0.60").usd_per_mtok_out == 0.6
    assert parse_exchange_rate("4e-12") == ExchangeRate(usd_per_mflop=4e-12)
    assert parse_exchange_rate("device-constrained") == PAPER_DEVICE_CONSTRAINED
    assert parse_policies(["race", "oracle", "race"]) == ["race", "oracle"]


def test_defaults_of_the_command_and_of_the_library_agree():
    assert float(DEFAULT_EXCHANGE_RATE) == load_preset("balanced").cost.exchange_rate
    assert Arm("random").tail == TAIL
