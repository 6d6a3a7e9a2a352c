"""Which price counts for a model at a server: names, hosts, the user's own table, and how old a price is."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.errors import ConfigurationError
from disco.profiles import Price, PriceTable, PriceTables, ProviderPrices, load_paper_prices, load_prices
from disco.profiles.price_findings import look_up
from disco.profiles.price_lookup import spellings

SHIPPED = load_prices()
TODAY = dt.date(2026, 12, 1)
ROOT = Path(__file__).parents[2]


def price(read: float, written: float) -> Price:
    return Price(usd_per_mtok_in=read, usd_per_mtok_out=written)


def table(**facts: object) -> PriceTable:
    return PriceTable(date=TODAY, source="a test", **facts)


def test_every_shipped_price_has_a_day_a_source_and_a_licence_and_none_is_free():
    entries = list(SHIPPED.entries())
    assert 150 <= len(entries) <= 200
    for entry in entries:
        assert entry.date <= dt.date.today()
        assert entry.source
        assert 0 < entry.price.usd_per_mtok_in <= entry.price.usd_per_mtok_out <= 100
    ours = [e for e in entries if e.provider != "paper-2024"]
    assert {e.licence for e in ours} == {"MIT (litellm: Berri AI; genai-prices: Pydantic Services Inc.)"}
    assert all("https://" in e.source for e in ours)
    providers = {
        "openai",
        "anthropic",
        "google",
        "deepseek",
        "mistral",
        "qwen",
        "groq",
        "together",
        "fireworks",
    }
    assert {*providers, "openrouter", "azure"} <= {e.provider for e in ours}


@pytest.mark.parametrize(
    ("model", "host", "found"),
    [
        ("gpt-4o-mini", "api.openai.com", ("gpt-4o-mini", "openai", "server")),
        ("gpt-4o-mini-2024-07-18", "api.openai.com", ("gpt-4o-mini", "openai", "server")),
        ("claude-haiku-4-5-20251001", "api.anthropic.com", ("claude-haiku-4-5", "anthropic", "server")),
        (
            "ft:gpt-4o-mini-2024-07-18:me::x",
            "api.openai.com",
            ("ft:gpt-4o-mini-2024-07-18", "openai", "server"),
        ),
        ("ft:gpt-5:me::x", "api.openai.com", None),  # never at the price of gpt-5
        ("openai/gpt-4o-mini", "openrouter.ai", ("openai/gpt-4o-mini", "openrouter", "server")),
        ("gpt-4o-mini", "openrouter.ai", None),  # the server knows no such name
        ("gpt-4o", "mine.openai.azure.com", ("gpt-4o", "azure", "server")),
        ("gpt-4o-2024-05-13", "mine.openai.azure.com", ("gpt-4o-2024-05-13", "azure", "server")),  # is dearer
        ("gpt-4o", "MINE.openai.azure.com", ("gpt-4o", "azure", "server")),
        ("our-deployment", "mine.openai.azure.com", None),
        ("mistral-large-2402", "api.mistral.ai", None),  # was 16 times as dear as mistral-large-latest
        ("mistral-medium", "api.mistral.ai", ("mistral-medium-latest", "mistral", "server")),
        (
            "models/gemini-2.5-flash",
            "generativelanguage.googleapis.com",
            ("gemini-2.5-flash", "google", "server"),
        ),
        ("gpt-4o-mini", "llm.example.org", ("gpt-4o-mini", "openai", "elsewhere")),
        ("gemini/gemini-2.5-flash", "127.0.0.1", ("gemini-2.5-flash", "google", "elsewhere")),
        ("azure/gpt-4o-mini", None, ("gpt-4o-mini", "azure", "server")),
        ("gpt-4o-mini", "evil-api.openai.com", ("gpt-4o-mini", "openai", "elsewhere")),
        ("qwen3:4b", "127.0.0.1", None),
        ("", "api.openai.com", None),
        ("/", None, None),
    ],
)
def test_a_price_depends_on_the_name_and_on_the_server(model, host, found):
    entry = SHIPPED.find(model, host)
    assert (entry and (entry.model, entry.provider, entry.at)) == found


def test_where_a_name_has_several_prices_and_the_server_is_unknown_the_dearest_counts():
    at = {"openai/gpt-oss-120b": price(1, 2), "small": price(1, 1)}, {"openai/gpt-oss-120b": price(1, 3)}
    tables = PriceTables(
        (
            table(
                providers={
                    name: ProviderPrices(hosts=(f"{name}.example",), models=models)
                    for name, models in zip("ab", at, strict=True)
                }
            ),
        )
    )
    assert tables.find("openai/gpt-oss-120b", "a.example").price == price(1, 2)
    assert tables.find("openai/gpt-oss-120b", "c.example").price == price(1, 3)
    assert tables.find("openai/gpt-oss-120b").price == price(1, 3)
    assert tables.find("small", "b.example") is None


def test_the_users_own_price_holds_at_every_server_unless_it_names_one(tmp_path):
    own = tmp_path / "prices.toml"
    own.write_text(
        'kind = "prices"\ndate = 2026-12-01\nsource = "my invoice"\n'
        "[models]\nours = { usd_per_mtok_in = 1, usd_per_mtok_out = 2 }\n"
        "[providers.azure.models]\nours-too = { usd_per_mtok_in = 3, usd_per_mtok_out = 4 }\n"
        '[providers.house]\nhosts = ["llm.example.org"]\n[providers.house.models]\n'
        "gpt-4o = { usd_per_mtok_in = 0, usd_per_mtok_out = 0 }\n"
    )
    prices = load_prices(own)
    for host in (None, "api.groq.com", "llm.example.org"):
        assert (prices.find("ours", host).price, prices.find("ours", host).is_own) == (price(1, 2), True)
    assert prices.find("gpt-4o", "llm.example.org").price == price(0, 0)
    assert prices.find("gpt-4o", "api.openai.com").price.usd_per_mtok_out == 10
    assert prices.find("gpt-5-mini", "llm.example.org") is None
    # A section without hosts adds to the provider of that name.
    assert prices.find("azure/ours-too").price == price(3, 4)
    assert prices.find("ours-too", "mine.openai.azure.com").price == price(3, 4)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("[providers.mine.models]", r'\[providers.mine\] has no hosts.*hosts = \["llm.example.org"\]'),
        (
            '[providers.p]\nhosts = ["https://llm.example.org/v1"]\n[providers.p.models]',
            "hosts: give its name alone",
        ),
        (
            '[providers.p]\nhosts = ["llm.example.org:8080"]\n[providers.p.models]',
            "hosts: give its name alone",
        ),
    ],
)
def test_a_section_that_would_hold_at_no_server_is_refused(tmp_path, section, says):
    own = tmp_path / "prices.toml"
    own.write_text(
        f'kind = "prices"\ndate = 2026-12-01\nsource = "me"\n{section}\n'
        "m = { usd_per_mtok_in = 1, usd_per_mtok_out = 2 }\n"
    )
    with pytest.raises(ConfigurationError, match=says):
        load_prices(own)


def test_a_host_may_be_written_in_capitals_and_be_an_address():
    hosts = ("LLM.example.org", "192.168.0.7", "fd00::1", "localhost", "*.Example.com")
    section = ProviderPrices(hosts=hosts, models={"m": price(1, 2)})
    assert all(
        map(section.is_at, ("llm.example.org", "192.168.0.7", "fd00::1", "localhost", "a.example.com"))
    )
    assert not section.is_at("example.com")


def test_a_price_is_stale_by_the_day_of_its_own_section():
    old = ProviderPrices(date=dt.date(2026, 1, 1), models={"m": price(1, 2)})
    entry = PriceTables((table(providers={"p": old}, models={"n": price(1, 2)}),))
    assert entry.find("m").is_stale(TODAY)
    assert entry.find("m").age_days(TODAY) == 334
    assert not entry.find("m").is_stale(dt.date(2026, 6, 30))  # 180 days
    assert not entry.find("n").is_stale(TODAY)


def test_a_day_that_is_still_to_come_is_said_to_be_one():
    assert (
        "on 2026-12-01, a day to come."
        in look_up(PriceTables((table(models={"m": price(1, 2)}),)), "m", None, dt.date(2026, 11, 1)).text
    )


def test_the_papers_prices_are_those_it_prints_whatever_the_user_wrote():
    paper = load_paper_prices()
    assert (len(list(paper.entries())), paper.price("command")) == (8, price(1.25, 2.00))
    assert all(entry.is_stale(TODAY) for entry in paper.entries())


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("usd_per_mtok_in = 1", "usd_per_mtok_out: is missing"),
        ("usd_per_mtok_in = 1, usd_per_mtok_out = -2", "greater than or equal to 0"),
        ("usd_per_mtok_in = 1, usd_per_mtok_out = 2, usd_per_mtok_cached_in = 1.5", "must not be above"),
        ("usd_per_mtok_in = 1, usd_per_mtok_out = 2, usd_per_mtok_cached = 1", "no such key"),
    ],
)
def test_a_mistake_in_a_table_is_named(tmp_path, entry, says):
    own = tmp_path / "prices.toml"
    own.write_text(f'kind = "prices"\ndate = 2026-12-01\nsource = "me"\n[models]\nm = {{ {entry} }}\n')
    with pytest.raises(ConfigurationError, match=says):
        load_prices(own)


def test_what_an_answer_costs_and_what_a_cached_token_costs():
    mini = SHIPPED.price("openai/gpt-4o-mini")
    assert 1000 * mini.usd(500, 300) == pytest.approx(0.255)
    assert mini.cached_share == 0.5
    assert price(0, 1).cached_share == 1.0


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.none() | st.text(max_size=20))
def test_any_name_and_host_find_a_price_of_the_table_or_none(model, host):
    assert spellings(model)[0] == model
    found = SHIPPED.find(model, host)
    assert found is None or found.price.usd_per_mtok_out > 0


@given(st.sampled_from([e for e in SHIPPED.entries() if e.provider != "paper-2024"]))
def test_every_listed_name_is_found_at_its_provider(entry):
    hosts = next(t.providers[entry.provider].hosts for t in SHIPPED.tables if entry.provider in t.providers)
    for host in hosts:
        at_host = SHIPPED.find(entry.model, host.replace("*", "any"))
        assert (at_host.price, at_host.provider, at_host.at) == (entry.price, entry.provider, "server")


@pytest.fixture
def derive(monkeypatch) -> ModuleType:
    """`profiles/derive_prices.py`, with a small second source in the place of genai-prices."""
    spec = importlib.util.spec_from_file_location("derive_prices", ROOT / "profiles" / "derive_prices.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "derive_prices", module)
    spec.loader.exec_module(module)

    def model(name: str, read: float, written: float) -> SimpleNamespace:
        listed = SimpleNamespace(input_mtok=read, output_mtok=written)
        return SimpleNamespace(id=name, get_prices=lambda _: listed, is_match=lambda _: False)

    models = [model("gpt-4o", 2.5, 10), model("gpt-4o-mini", 0.3, 0.6)]
    routed = [model("openai/gpt-4o", 2.6, 11)]
    source = ModuleType("genai_prices.data")
    source.providers = [
        SimpleNamespace(id="openai", models=models),
        SimpleNamespace(id="openrouter", models=routed),
    ]
    monkeypatch.setitem(sys.modules, "genai_prices", ModuleType("genai_prices"))
    monkeypatch.setitem(sys.modules, "genai_prices.data", source)
    monkeypatch.setattr(module, "version", lambda _: "0")
    return module


def test_the_script_makes_a_table_that_loads_and_says_where_its_sources_differ(
    derive, tmp_path, monkeypatch, capsys
):
    listed = {
        "gpt-4o": {"input_cost_per_token": 2.5e-6, "output_cost_per_token": 1e-5},
        "gpt-4o-2024-05-13": {"input_cost_per_token": 5e-6, "output_cost_per_token": 1.5e-5},
        "gpt-4o-2024-08-06": {"input_cost_per_token": 2.5e-6, "output_cost_per_token": 1e-5},
        "gpt-4o-mini": {
            "input_cost_per_token": 1.5e-7,
            "output_cost_per_token": 6e-7,
            "cache_read_input_token_cost": 7.5e-8,
            "input_cost_per_token_above_272k_tokens": 1,
        },
        "gpt-5": {"input_cost_per_token": 1, "output_cost_per_token": 1, "deprecation_date": "2026-01-01"},
    }
    (tmp_path / "in.json").write_text(json.dumps(listed))
    out = tmp_path / "prices.toml"
    arguments = [
        str(tmp_path / "in.json"),
        "--date",
        "2026-11-20",
        "--version",
        "litellm 0",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["derive_prices.py", *arguments])
    assert derive.main() == 0
    said = capsys.readouterr()
    assert "3 entries, 1 same, 1 differ" in said.out
    assert "gpt-5 was retired on 2026-01-01" in said.err
    odd = [line for line in said.err.splitlines() if "costs otherwise" in line]
    assert [line.split()[1] for line in odd] == ["gpt-4o-2024-05-13"]
    assert "# genai-prices 0 has 0.3 in, 0.6 out for the next one.\n" in out.read_text()
    prices = load_prices(out)
    mini = prices.find("gpt-4o-mini", "api.openai.com")
    assert (mini.price.usd_per_mtok_in, mini.price.usd_per_mtok_cached_in) == (0.15, 0.075)
    assert (mini.price.up_to_prompt_tokens, mini.date) == (272_000, dt.date(2026, 11, 20))
    assert prices.find("openai/gpt-4o", "openrouter.ai").price == price(2.6, 11)
