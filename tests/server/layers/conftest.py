"""A layer server with a model of random weights, on a socket."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "endpoints" / "llamacpp" / "layers"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from layer_client import layer_server
from tiny_model import tiny_llama

from disco.endpoints.llamacpp.layers.cut import cut_model


@pytest.fixture(scope="session")
def cut_files(tmp_path_factory):
    """The three files of a model of four layers, cut behind the second; by part, and the whole one's."""
    folder = tmp_path_factory.mktemp("tiny")
    whole = tiny_llama(folder / "tiny.gguf")
    return {**cut_model(whole, 2, folder), "whole": whole}


@pytest.fixture(scope="module")
def served(cut_files):
    with layer_server(cut_files["cloud"]) as server:
        yield server
