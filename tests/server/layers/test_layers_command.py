"""`disco serve --layers`: what it says, what it refuses, and its end in mid-stream."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess

import numpy as np
import pytest
from command_process import KEY, running, signals, tell_to_end, what_it_said
from layer_client import device, states
from websockets.exceptions import ConnectionClosed

from disco.cli import main
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file

pytestmark = pytest.mark.real
OPTIONS = ("--slots", "2", "--context", "128", "--threads", "1")


@pytest.fixture
def without_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ADMIN_KEY", "DISCO_SERVER_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("which", "more", "says"),
    [
        ("whole", (), "is a whole model"),
        ("device", (), "is the part 'device' of a model, and the part 'cloud' is needed"),
        ("cloud", ("--verify", "smollm2-135m"), "--verify and --layers cannot be used together"),
        ("cloud", ("--slots", "0"), "--slots must be at least 1"),
        ("cloud", ("--context", "8"), "context_tokens must be at least 32"),
    ],
)
def test_what_cannot_be_served_is_said(cut_files, capsys, without_keys, which, more, says):
    assert main(["serve", "--layers", str(cut_files[which]), *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_without_websockets_the_remedy_is_named(cut_files, capsys, without_keys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "websockets" else find(name, *more)
    )
    assert main(["serve", "--layers", str(cut_files["cloud"])]) == 2
    assert 'pip install "disco-llm[server,split]"' in " ".join(capsys.readouterr().err.split())


@signals
def test_it_serves_layers_alone_ends_orderly_and_dies_with_an_end_of_stream(cut_files):
    fingerprint = read_layer_file(cut_files["cloud"], "cloud").fingerprint
    rows, headers = states(5, seed=1), {"Authorization": f"Bearer {KEY}"}
    arguments = ("--layers", str(cut_files["cloud"]), *OPTIONS)
    outs = []
    for kill in (False, True):
        with (
            running(*arguments, DISCO_SERVER_KEY=KEY) as (process, address),
            device(address[1], fingerprint, headers=headers) as one,
        ):
            outs.append(one.ask(0, rows).states)
            if kill:
                process.kill()
            else:
                tell_to_end(process, address)
            with pytest.raises(ConnectionClosed) as closed:
                one.take()
            assert (closed.value.rcvd is None) == kill
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if not kill:
                said = what_it_said(process)
                assert "no model answers here" in said
                assert "computes layers 3 to 4 of tiny: 2 slots of 128 tokens" in said
    assert np.array_equal(*outs)
