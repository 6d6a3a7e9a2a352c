"""The file of `disco serve --config`: what it sets, what it may not hold, and how its mistakes are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_process import ROOT

from disco.cli import main
from disco.cli.main import _parser
from disco.cli.serving import serve_clients
from disco.cli.serving.settings import ServeSettings, read_settings
from disco.errors import ConfigurationError

SECRET = "sk-canary-5rT8-in-the-file"
SERVER = 'base_url = "https://api.example.com/v1"\n'


@pytest.fixture
def settled(tmp_path, monkeypatch):
    """The settings of a file's text, and of what else stands on the command line."""
    monkeypatch.setenv("THE_KEY", SECRET)
    monkeypatch.setenv("TWO_WORDS", f"OPENAI_API_KEY={SECRET}\nx")

    def settle(text: str, *given: str):
        (tmp_path / "disco.toml").write_text(text, encoding="utf-8")
        return read_settings(
            _parser().parse_args(["serve", "--config", str(tmp_path / "disco.toml"), *given])
        )

    return settle


def test_what_the_file_says_replaces_the_usual_and_the_command_line_replaces_the_file(settled):
    text = """
        host = "::1"
        port = 1
        allow_origin = ["http://a.test"]
        max_body_mib = 2
        grace_s = 1.5
        log_level = "info"
        state = "off"
        preset = "cheap"
        attach = false
        prompt_cache = true
        [page]
        text = true
        answers = 7
    """
    options = settled(text, "--port", "2", "--preset", "private")
    assert (options.port, options.preset, options.host) == (2, "private", "::1")
    assert (options.max_body_mib, options.grace_s, options.log_level) == (2.0, 1.5, "info")
    assert (options.allow_origin, options.allow_host, options.state) == (["http://a.test"], [], "off")
    assert (options.attach, options.page.text, options.page.enabled) == (False, True, True)
    assert (options.page.answers, options.prompt_cache, options.usual_local()) == (7, True, "smollm2-135m")
    off = settled("attach = true\nprompt_cache = false\n[page]\nanswers = 7", "--no-page", "--no-attach")
    assert (off.page.enabled, off.page.answers, off.attach, off.prompt_cache) == (False, 7, False, False)


def test_an_empty_file_and_no_option_change_nothing(settled):
    assert settled("") == read_settings(_parser().parse_args(["serve"])) == ServeSettings()


def test_what_python_sets_is_checked_as_the_file_is():
    assert ServeSettings(port=1, page={"text": True}).page.text is True
    for wrong in ({"port": "x"}, {"prot": 1}, {"slots": 0}, {"prompt_cache": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServeSettings(**wrong)


def test_names_of_files_are_relative_to_the_file(settled, tmp_path):
    text = (
        'key_file = "k"\nrecord = "r.jsonl"\nlocal = "m.gguf"\npreset = "./p.toml"\nprompt_cache = "saved"\n'
    )
    options = settled(
        text + '[models.a]\npreset = "q.toml"\nlocal = "sub/n.gguf"\n[models.b]\nlocal = "hf:a/b/c.gguf"'
    )
    assert {options.key_file, options.record, options.local, options.preset, options.prompt_cache} == {
        str(tmp_path / name) for name in ("k", "r.jsonl", "m.gguf", "p.toml", "saved")
    }
    one, two = options.models.values()
    assert (one.preset, one.local) == (str(tmp_path / "q.toml"), str(tmp_path / "sub" / "n.gguf"))
    assert (two.preset, two.local) == (None, "hf:a/b/c.gguf")
    for no_file in ("command:llm -m a/b", "http://localhost:11434/v1#a/b", "smollm2-135m"):
        assert settled(f'local = "{no_file}"').local == no_file


def test_keys_come_from_the_environment_or_a_file_of_their_own(settled, tmp_path):
    (tmp_path / "second.key").write_text("from-a-file\n")
    text = (
        f'[models."a b"]\n{SERVER}key_env = "THE_KEY"\nprice = [1, 2.5]\n[[models."a b".backups]]\n{SERVER}'
    )
    text += 'model = "m"\nkey_file = "second.key"\n[[models."a b".tiers]]\nbase_url = "http://10.1.1.1/v1"\n'
    text += 'model = "t"\nreach = "own"\n[models.here]\nbase_url = "http://[::1]:99/v1"\nmodel = "m"'
    settings = settled(text)
    first, here = (serve_clients._server_of(name, table) for name, table in settings.models.items())
    assert (first["api_key"], first["price"], here["api_key"]) == (SECRET, (1.0, 2.5), "none")
    assert (first["backups"][0].api_key, first["tiers"][0].api_key) == ("from-a-file", None)
    assert SECRET not in repr(settings)


WITH = f"[models.big]\n{SERVER}"
MISTAKES = [
    ("port = 'x'", r"disco\.toml: port: input should be a valid integer"),
    ("port = 70000", "port: .*65535, not 70000"),
    ("prot = 1", r"prot: there is no such key. Did you mean 'port'"),
    ("max_body = 1", "Did you mean 'max_body_mib'"),
    ("grace_s = -1", "grace_s: must be at least 0, not -1"),
    ("grace_s = inf", "grace_s: must be a finite number"),
    ("state = ''", "state: must not be empty"),
    ("log_level = 'loud'", "log_level: .*'debug'"),
    ("[page]\ntxt = true", r"\[page\] txt: there is no such key. Did you mean 'text'"),
    ("[models.big]\npriec = [1, 2]", r"\[models.big\] priec: .*Did you mean 'price'"),
    (WITH + "price = [1]", r"\[models.big\] price: list should have at least 2 items"),
    (WITH + "price = [1, -2]", r"\[models.big\] price number 2: .*not -2"),
    (WITH + '[[models.big.backups]]\nmodel = "m"', r"\[\[models.big.backups\]\] number 1 base_url: .*is missing"),
    (WITH + "[[models.big.backups]]\nmodle = 1", r"\[\[models.big.backups\]\] number 1 modle: .*Did you mean 'model'"),
    (f'[models."a b"]\napi_key = "{SECRET}"', r'\[models."a b"\] api_key: a key does not belong .*key_env.*key_file'),
    (f'key = "{SECRET}"', "key: a key does not belong"),
    (WITH + f'key_env = "{SECRET}"', "must be the name of an environment variable, in capitals"),
    (WITH + 'key_env = "NOT_SET_HERE"', r"\[models.big\] key_env: the environment variable NOT_SET_HERE is not set"),
    (WITH + 'key_env = "THE_KEY"\nkey_file = "x"', "has key_env and key_file"),
    (WITH + 'key_file = "no-such-file"', r"\[models.big\] key_file: .*no-such-file cannot be read"),
    (WITH + 'key_env = "TWO_WORDS"', r"\[models.big\] key_env: .* TWO_WORDS holds more than a key"),
    (WITH, r"\[models.big\] has no key for its server.*key_env"),
    (f'[models.big]\nbase_url = "https://me:{SECRET}@example.com/v1"', "holds a password, .*key_env"),
    (f'[models.big]\nbase_url = "https://example.com/v1?k={SECRET}"', r"without \? and #"),
    ('[models.big]\nbase_url = "example.com"', "must begin with http"),
    ('[models.big]\nmodel = "m"', r"\[models.big\] says something of a server, but not where it is. Add base_url"),
    ("default = 'big'", r"default names a model, but there is no table"),
    ('[[tiers]]\nbase_url = "http://a/v1"\nmodel = "m"\nreach = "own"\n[models.a]', r"\[\[models.NAME.tiers"),
    ("[models.a", "is not valid TOML"),
    ("models.a = 1", r"\[models\] a: must be a table, not 1"),
    ("allow_origin = 'http://a'", "allow_origin: must be a list"),
    ("prompt_cache = 3", "prompt_cache: must be true, false or the name of a folder, not 3"),
    ('[tiers]\nbase_url = "http://a/v1"', r"tiers: must be an array of tables: write \[\[tiers\]\]"),
    ('[models.big]\nbase_url = "http://a:b/v1"', r"\[models.big\] base_url: is no address"),
    (f'[models.big]\nbase_url = "http://me:{SECRET}/x@a/v1"', r"\[models.big\] base_url: is no address"),
    ('[models.big]\nbase_url = "https://"', r"\[models.big\] base_url: names no host"),
    ('[models.a-b]\nlocal = "x.gguf"\ncontinuation = "none"', r"\[models.a-b\] says something of a server, but not"),
    ('[models."a\\nb"]\nx = 1', r'\[models."a\\nb"\] x: there is no such key'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), MISTAKES, ids=[text[:30] for text, _ in MISTAKES])
def test_a_mistake_names_file_table_key_and_remedy_and_repeats_no_secret(
    tmp_path, monkeypatch, capsys, text, says
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THE_KEY", SECRET)
    monkeypatch.setenv("TWO_WORDS", f"OPENAI_API_KEY={SECRET}\nx")
    Path("disco.toml").write_text(text, encoding="utf-8")
    assert main(["serve", "--config", "disco.toml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(("disco: disco.toml: ", "disco: --config disco.toml "))
    assert re.search(says, told), told
    assert SECRET not in told


def test_the_command_line_cannot_say_for_which_model_a_tier_is(settled):
    with pytest.raises(ConfigurationError, match=r"--backup does not say for which model"):
        settled('[models.a]\nlocal = "smollm2-135m"', "--backup", "http://a/v1", "m")
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read_settings(_parser().parse_args(["serve", "--config", "no-such.toml"]))


def test_the_example_is_a_file_that_can_be_used(settled, monkeypatch, capsys):
    assert main(["serve", "--example-config"]) == 0
    text = capsys.readouterr().out
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    options = settled(text)
    assert list(options.models) == ["fast", "private", "big"]
    # And with everything that it only mentions.
    more = re.sub(r"^# (?=\[\[|\w+ = )", "", text, flags=re.MULTILINE)
    monkeypatch.setenv("OPENROUTER_API_KEY", "k")
    assert len(settled(more).models["big"].backups) == 1
    assert settled(more).record is not None
    assert options.default == "fast"


def test_a_file_of_windows_is_read_or_told_to_be_saved_anew(tmp_path):
    arguments = _parser().parse_args(["serve", "--config", str(tmp_path / "disco.toml")])
    (tmp_path / "disco.toml").write_text("port = 1\r\n", encoding="utf-8-sig")
    assert read_settings(arguments).port == 1
    (tmp_path / "disco.toml").write_text("port = 1", encoding="utf-16")
    with pytest.raises(ConfigurationError, match=r"disco\.toml is no UTF-8 text\. Save it as UTF-8"):
        read_settings(arguments)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slots = 4", "--slots is for a verify server"),
        ('preset = "fsat"', "no preset is called 'fsat'"),
        ('key_file = "no-key"', "no-key cannot be read"),
        ('local = "no.gguf"\nport = 0\nstate = "off"', "There is no model file no.gguf"),
        ('allow_origin = ["*"]', "is no origin"),
        (
            "budget = 5",
            'budget: must say of what and for how long, such as budget = { usd = 5, per = "month" }',
        ),
        ("[budget]\nusd = -1\nwindow_s = 9", "budget: usd: Input should be greater than 0"),
    ],
)
def test_a_mistake_that_is_found_later_names_the_file_as_well(tmp_path, monkeypatch, capsys, text, says):
    monkeypatch.chdir(tmp_path)
    Path("disco.toml").write_text(text)
    assert main(["serve", "--config", "disco.toml"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("disco: disco.toml: ")
    assert says in told


def test_no_output_file_is_the_file_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("disco.toml").write_text('preset = "private"\nrecord = "disco.toml"\n')
    assert main(["serve", "--config", "disco.toml"]) == 2
    assert "reads this file" in " ".join(capsys.readouterr().err.split())


def test_text_on_the_page_needs_a_key_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("disco.toml").write_text('preset = "private"\n[page]\ntext = true\n')
    assert main(["serve", "--config", "disco.toml"]) == 2
    assert "no key is set. Set a key in DISCO_SERVER_KEY" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv("DISCO_SERVER_KEY", "k" * 20)
    assert main(["serve", "--config", "disco.toml", "--no-page"]) == 2
    assert "the page is off" in " ".join(capsys.readouterr().err.split())


PAGE = (ROOT / "docs" / "how-to" / "serve-config.md").read_text(encoding="utf-8")


def test_the_page_shows_a_file_that_can_be_used(settled, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    (file,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    options = settled(file)
    assert (list(options.models), options.default) == (["fast", "private", "big"], "fast")
    assert options.models["big"].budget == {"usd": 2, "per": "day"}


def test_the_mistakes_that_the_page_quotes_are_told_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for text in ("[models.big]\npriec = 1", f'[models.fast]\n{SERVER}key_env = "OPENAI_API_KEY"'):
        Path("disco.toml").write_text(text, encoding="utf-8")
        assert main(["serve", "--config", "disco.toml"]) == 2
        assert capsys.readouterr().err in PAGE
