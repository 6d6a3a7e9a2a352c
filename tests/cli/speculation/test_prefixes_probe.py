"""The probe of the rung "prefixes" against the real servers of other makes."""

from __future__ import annotations

import re

import pytest
from quirks.llama_cpp_python import LlamaCppPython
from quirks.server import KnownText, running

from disco.cli import main
from disco.cli.speculation.prefixes_probe import Prefixes, llama_server_root


def test_it_pays_only_where_it_is_exact_and_faster():
    assert Prefixes(20, 0, 0.03, 0.02, 5.0).pays
    assert not Prefixes(20, 1, 0.03, 0.02, 5.0).pays
    assert not Prefixes(20, 0, 0.03, 0.03, 5.0).pays
    assert "differ in 1 tokens" in Prefixes(20, 1, 0.03, 0.02, 5.0).in_words()


def test_the_root_is_the_address_without_the_version():
    assert llama_server_root("http://host:1/v1/") == llama_server_root("http://host:1") == "http://host:1"


@pytest.mark.real
def test_llama_server_verifies_by_prefixes_exactly_and_recomputes(native_server, capsys):
    assert main(["speculate", "check", native_server.base_url, "--tokens", "16"]) == 1
    said = capsys.readouterr().out
    assert "This is no verify server" in said
    tokens, differing = re.search(r"prefixes: (\d+) tokens (equal|differ)", said).groups()
    assert (tokens, differing) == ("15", "equal")
    rows = float(re.search(r"([\d.]+) rows a round", said)[1])
    assert rows >= 5  # at least one for each prompt; one batch would do with five


@pytest.mark.real
def test_a_server_that_takes_no_ids(capsys):
    with running(LlamaCppPython(KnownText("Tides rise and fall."))) as server:
        assert main(["speculate", "check", server.base_url, "--json"]) == 1
    said = capsys.readouterr()
    assert '"prefixes": null' in said.out
    assert "prefixes: no; it does not take prompts of token ids" in said.err
