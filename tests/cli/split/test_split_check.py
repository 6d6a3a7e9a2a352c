"""`disco split check`, on a tiny model and a layer server in this process."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from disco.cli.main import main
from disco.cli.split.split_check_report import chunk_rows, verdict
from disco.speculate.chunks import SplitPath, makespan_chunk, prompt_s
from disco.speculate.seen import VerifyCurve
from tests.endpoints.split.conftest import stand_in, tiny  # noqa: F401 - fixtures
from tests.endpoints.split.layer_stand_in import LayerStandIn

real = pytest.mark.real


def check(device, server, *more):
    return main(["split", "check", str(device), "--base-url", server.base_url, "--tokens", "12", *more])


@real
def test_it_measures_and_gives_a_verdict(tiny, stand_in, capsys):  # noqa: F811 - as above
    stand_in.delay_s = 0.02
    assert check(tiny.device, stand_in, "--wire", "float32", "--json") == 0
    out, said = capsys.readouterr()
    found = json.loads(out)
    assert found["server"]["fingerprint"] == stand_in.facts.fingerprint
    assert 0.02 < found["link"]["rtt_s"] < 1.0
    assert found["link"]["state_bytes"] == 4 * 64
    assert [row["prompt_tokens"] for row in found["chunks"]] == [64, 128, 256, 512]
    assert all(row["chunk_s"] <= min(row["paper_s"], row["whole_s"]) for row in found["chunks"])
    assert found["asked"] == found["alike"] == 4
    assert found["judged"] > found["accepted"] > 0
    assert found["verdict"] == verdict(found["token_s"], found["drafted_token_s"])[1]
    assert found["verdict"] in said
    assert "layers 3 to 6 of 6" in said


@real
def test_without_an_adapter_it_says_what_is_missing(tiny, stand_in, capsys):  # noqa: F811 - as above
    assert check(tiny.undrafted, stand_in) == 0
    said = capsys.readouterr().out
    assert "no trained adapter" in said
    assert "ms a token without drafts" in said


@real
def test_what_cannot_be_checked_is_refused_with_a_remedy(tiny, stand_in, capsys, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.delenv("DISCO_SERVER_KEY", raising=False)
    key = tmp_path / "key"
    key.write_text("sk-a-wrong-one\n")
    with closing(LayerStandIn(tiny.cloud, key="sk-right")) as server:
        assert check(tiny.device, server) == 2
        assert check(tiny.device, server, "--key-file", str(key)) == 2
    said = capsys.readouterr().err
    assert said.count("refuses the key") == 2
    assert "sk-a-wrong-one" not in said
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["split", "check", str(tiny.device), "--base-url", f"http://127.0.0.1:{port}"]) == 2
    assert "disco serve --layers" in capsys.readouterr().err
    assert check(tiny.whole, stand_in) == 2
    assert "disco split cut" in capsys.readouterr().err
    for wrong, message in ((("--tokens", "3"), "at least 8"), (("--threads", "0"), "at least 1")):
        assert check(tiny.device, stand_in, *wrong) == 2
        assert message in capsys.readouterr().err


def test_chunks_are_those_that_the_device_can_send():
    path = SplitPath(
        50_000.0, 1e6, 0.02, 1152, VerifyCurve([(1, 0.002), (64, 0.02)]), VerifyCurve([(1, 0.01), (64, 0.1)])
    )
    rows = chunk_rows(path, most=100, context_tokens=1000)
    assert [row.prompt_tokens for row in rows] == [64, 128, 256, 512]
    assert all(max(row.chunk, row.paper) <= 100 for row in rows)
    assert rows[0].whole_s == prompt_s(path, 64, 64)
    assert rows[-1].whole_s == prompt_s(path, 512, 100)
    assert rows[0].chunk == makespan_chunk(path, 64) < 64


@pytest.mark.parametrize(
    ("drafted_s", "pays", "words"),
    [
        (0.05, True, "pays: 2.00 x"),
        (0.095, False, "hardly pays here: 1.05 x"),
        (0.2, False, "does not pay here: 0.50 x"),
    ],
)
def test_the_verdict_in_words(drafted_s, pays, words):
    found, said = verdict(0.1, drafted_s)
    assert found is pays
    assert words in said
