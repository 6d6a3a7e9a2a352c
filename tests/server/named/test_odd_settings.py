"""Settings that a program or a stranger wrote: each is refused in one line that names it, and none is read for ever."""

from __future__ import annotations

import os

import pytest

from disco import AsyncDisco, ConfigurationError
from disco.cli import main

DEEP = "a = " + "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize("option", ["--config", "--preset", "--key-file"])
@pytest.mark.parametrize("path", ["a\0b/x.toml", "x" * 100_000 + "/x.toml", "/dev/zero", "pipe"])
def test_an_odd_path_is_named_in_one_short_line(option, path, tmp_path, monkeypatch, capsys):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert main(["serve", option, "./pipe" if path == "pipe" else path]) == 2
    said = capsys.readouterr().err
    assert said.startswith("disco: ")
    assert len(said.splitlines()) <= 20  # a name that is no path lists the presets there are
    assert len(said) < 4_000


@pytest.mark.parametrize("text", [DEEP, "max_body_mib = 1e308", "grace_s = nan", "x" * 2_000_000])
def test_so_is_an_odd_file(text, tmp_path, capsys):
    path = tmp_path / "disco.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["serve", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("disco: ")
    assert len(said) < 1_000


@pytest.mark.parametrize(
    "budget", [{"server_usd": 1e308}, {"usd": 1e308, "per": "day"}, {"usd": float("nan"), "per": "day"}]
)
def test_so_is_a_budget_beyond_all_amounts(budget):
    with pytest.raises(ConfigurationError, match="budget"):
        AsyncDisco(api_key="k", budget=budget)


@pytest.mark.parametrize("preset", ["/dev/zero", "a\0b.toml", "x" * 100_000])
def test_so_is_a_preset_of_a_client(preset):
    with pytest.raises(ConfigurationError):
        AsyncDisco(api_key="k", preset=preset)
