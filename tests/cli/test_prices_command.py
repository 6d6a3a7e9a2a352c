"""`disco prices`: lists prices with their day and source, and says of one model what a client would count."""

from __future__ import annotations

import datetime as dt

import pytest

from disco.cli import main


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("disco.cli.prices.today", lambda: dt.date(2026, 12, 1))
    return tmp_path / "disco" / "profiles"


def said(capsys, *arguments: str, status: int = 0) -> str:
    assert main(["prices", *arguments]) == status
    return " ".join(capsys.readouterr().out.split())


def test_the_list_has_every_model_with_its_day_its_source_and_what_answers_cost(capsys):
    whole = said(capsys)
    assert "1,000 answers of 500 + 300 tokens" in whole
    assert "│ openai │ gpt-4o-mini │ 0.15 │ 0.075 │ – │ 0.6 │ 0.26 $ │ 2026-11-20" in whole
    assert "│ paper-2024 │ o1-preview │ 15 │ – │ – │ 60 │ 25.50 $ │ 2024-10-28 stale" in whole
    assert "openai: litellm 1.110.2, from https://developers.openai.com/api/docs/pricing" in whole
    assert "MIT" in whole


def test_words_choose_and_the_users_own_prices_come_first(capsys, own_folder):
    own_folder.mkdir(parents=True)
    (own_folder / "prices.toml").write_text(
        'kind = "prices"\ndate = 2026-11-01\nsource = "my invoice"\n'
        '[models]\n"gpt-4o-mini" = { usd_per_mtok_in = 0.1, usd_per_mtok_out = 0.2 }\n'
    )
    listed = said(capsys, "list", "4o-mini", "--tokens", "1000,1000")
    assert "any server │ gpt-4o-mini │ 0.1 │ – │ – │ 0.2 │ 0.30 $ │ 2026-11-01 (yours)" in listed
    assert "any server: my invoice" in listed
    assert "openrouter │ openai/gpt-4o-mini" in listed
    assert "claude" not in listed
    said(capsys, "list", "4o-mini", "azure", status=1)  # the user's holds there, too
    assert "No model and no provider has 'nonesuch'" in said(capsys, "list", "nonesuch", status=1)


def test_one_model_is_explained(capsys):
    at_openai = said(capsys, "check", "gpt-4o-mini-2024-07-18", "--base-url", "https://api.openai.com/v1")
    assert "Listed as 'gpt-4o-mini' of openai on 2026-11-20" in at_openai
    assert "0.15 in, 0.075 cached input, 0.6 out" in at_openai
    assert "1,000 answers of 500 + 300 tokens: 0.26 $." in at_openai
    elsewhere = said(capsys, "check", "gpt-6-astra", "--base-url", "https://llm.example.org/v1")
    assert "The server at llm.example.org is in no table." in elsewhere
    assert "12.5 written to the cache" in elsewhere
    assert "Prompts of more than 272,000 tokens cost more." in elsewhere
    unknown = said(capsys, "check", "qwen3:4b", "--base-url", "http://localhost:11434/v1", status=1)
    assert (
        "No price is known for 'qwen3:4b' at localhost; a client counts that of openai/gpt-4o-mini."
        in unknown
    )
    assert "(0, 0) if it costs nothing" in unknown
    assert "stale: older than 180 days" in said(capsys, "check", "o1-preview", status=1)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["check", "m", "--base-url", "api.openai.com"], "must be a URL, such as https://api.openai.com/v1"),
        (["check", "m", "--tokens", "3"], "such as 500,300"),
        (["list", "--tokens", "3,-1"], "such as 500,300"),
    ],
)
def test_mistakes_are_named(capsys, arguments, remedy):
    try:
        status = main(["prices", *arguments])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert remedy in " ".join(capsys.readouterr().err.split())
