"""Profiles on disk: what ships, what the user adds, and what is said about broken files."""

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco._resources import resource_dir
from disco.errors import ConfigurationError
from disco.profiles import (
    DeviceProfile,
    Energy,
    FlopsPerToken,
    LengthsProfile,
    Price,
    PriceTable,
    QuantileTable,
    ServerProfile,
    available_profiles,
    load_device,
    load_lengths,
    load_paper_prices,
    load_prices,
    load_profile,
    load_server,
    save_profile,
    user_profile_dir,
)
from disco.profiles.profile_toml import dump_toml, read_toml

# Mean and P99 in seconds and rows, as published with the traces.
SERVERS = {
    "deepseek-v3-2025": (1.38, 6.50, 3159),
    "gpt-4.1-nano-2026": (0.57, 1.48, 769),
    "gpt-4o-mini-2024": (0.57, 1.49, 63),
    "llama-2-70b-together-2023": (0.62, 0.87, 150),
    "llama-2-70b-replicate-2023": (5.08, 63.6, 145),
    "llama-2-70b-anyscale-2023": (0.25, 0.47, 150),
}
# Prefill and decode tokens/s, GFLOPs per token at 32, 64, 128 prompt tokens and for decode, as printed.
DEVICES = {
    "pixel7pro-bloom-1.1b": (31.32, 13.93, 0.85, 0.93, 1.25, 0.82),
    "pixel7pro-bloom-560m": (51.80, 20.14, 0.45, 0.50, 0.65, 0.42),
    "xiaomi14-qwen1.5-0.5b": (79.90, 21.47, 0.39, 0.45, 0.69, 0.37),
}


@pytest.fixture(autouse=True)
def users_folder(tmp_path, monkeypatch):
    """No test sees, or touches, the profiles of whoever runs it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "disco" / "profiles"


def test_what_ships_names_its_source_and_is_what_was_measured_and_printed():
    names = available_profiles()
    profiles = {name: load_profile(name) for name in names}
    assert all(profile.name == name and profile.source for name, profile in profiles.items())
    assert {path.stem for path in resource_dir("profiles").glob("*.toml")} == {
        *names,
        "prices",
        "prices-2024-10",
    }
    assert (set(available_profiles("server")), set(available_profiles("device"))) == (
        set(SERVERS),
        set(DEVICES),
    )
    for name, (mean, p99, rows) in SERVERS.items():
        one = profiles[name]
        assert (one.rows, one.ttft_s.mean) == (rows, pytest.approx(mean, abs=0.005))
        assert one.ttft().quantile(0.99) == pytest.approx(p99, rel=0.01)
        # A table through so few rows shortens the very last step of the tail.
        assert one.ttft().mean() == pytest.approx(one.ttft_s.mean, rel=0.05)
        assert one.decode_tps == (one.tpot_s and pytest.approx(1 / one.tpot().quantile(0.5)))
        assert load_prices().price(one.price)
    for name, (prefill, decode, at_32, at_64, at_128, flops) in DEVICES.items():
        one = profiles[name]
        assert (one.prefill_tps, one.decode_tps, one.line.c_s) == (prefill, decode, 0)
        per_token = [one.flops.prefill_at(n) / 1e9 for n in (32, 48, 64, 128, 9999)]
        assert per_token == pytest.approx([at_32, (at_32 + at_64) / 2, at_64, at_128, at_128])
        assert (one.flops.decode, one.ttft_s(100)) == pytest.approx((flops * 1e9, 100 / prefill))
    lengths = profiles["lengths-azure-conv-2023"]
    for known, mean in ((lengths.prompt(weight=50), 1154.7), (lengths.output(weight=50), 211.1)):
        assert (known.mean(), known.weight) == (pytest.approx(mean, rel=0.01), pytest.approx(50))
    prices = {
        e.model: (e.price.usd_per_mtok_in, e.price.usd_per_mtok_out) for e in load_paper_prices().entries()
    }
    assert (len(prices), prices["gpt-4o-mini"], prices["command"]) == (8, (0.15, 0.60), (1.25, 2.00))


OWN_PRICES = """
kind = "prices"
date = 2026-02-01
source = "my invoice"
[models]
"gpt-4o-mini" = { usd_per_mtok_in = 0.1, usd_per_mtok_out = 0.2 }
"mine" = { usd_per_mtok_in = 1, usd_per_mtok_out = 2 }
"""


def test_the_users_prices_lie_over_the_shipped_ones(users_folder, tmp_path):
    users_folder.mkdir(parents=True)
    own, elsewhere = users_folder / "prices.toml", tmp_path / "elsewhere.toml"
    for at, place in ((elsewhere, elsewhere), (str(elsewhere), elsewhere), (None, own)):
        place.write_text(OWN_PRICES)
        prices = load_prices(at)
        assert prices.find("mine").date == dt.date(2026, 2, 1)
        names = ("gpt-4o-mini", "mine", "gpt-4o")
        assert [prices.price(name).usd_per_mtok_out for name in names] == [0.2, 2, 10]
    assert "prices" not in available_profiles()
    for price in (0.1, 0.2):  # a file that was written again is read again
        mine = {'odd "name".v1': Price(usd_per_mtok_in=price, usd_per_mtok_out=price)}
        save_profile(PriceTable(kind="prices", date=dt.date(2026, 1, 1), source="me", models=mine), own)
        assert load_prices().price('odd "name".v1') == mine['odd "name".v1']


def device(**changes):
    facts = {"name": "mine", "source": "measured", "prefill_tps": 240.0, "decode_tps": 149.0}
    return DeviceProfile(**facts | changes)


def test_a_saved_profile_is_found_by_name_before_the_shipped_one(users_folder):
    name = "pixel7pro-bloom-1.1b"
    measured = {"k_s_per_token": 4e-3, "c_s": 0.009, "load_s": 1.5, "measured_on": dt.date(2026, 1, 2)}
    mine = device(name=name, **measured)
    path = save_profile(mine, user_profile_dir() / f"{name}.toml", comment="two\nlines")
    assert path.parent == users_folder
    assert load_device(name) == load_device(path) == load_device(str(path)) == mine
    assert (mine.ttft_s(100), mine.ttft_s(100, cold=True)) == pytest.approx((0.409, 1.909))
    save_profile(device(name=name), path)
    assert load_device(name).load_s is None
    assert [p.name for p in users_folder.iterdir()] == [path.name]
    flops = FlopsPerToken(prompt_tokens=(32, 64), prefill=(1e9, 2e9), decode=1e22)
    table = QuantileTable(levels=(0, 0.5, 1), values=(0.1, 0.2, 3.5e-7 + 1), mean=0.4)
    facts = {"name": "it", "source": "x", "licence": "MIT", "rows": 3}
    for one in (
        device(
            notes="two\nlines", flops=flops, energy=Energy(prefill_j_per_token=0, decode_j_per_token=1e-7)
        ),
        ServerProfile(**facts, ttft_s=table, tpot_s=table),
        LengthsProfile(**facts, prompt_tokens=table, output_tokens=table),
    ):
        assert load_profile(save_profile(one, users_folder / "deep" / "er" / "it.toml")) == one


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAF = TEXT | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.dates()


@settings(max_examples=60)
@given(
    st.recursive(
        st.dictionaries(TEXT, LEAF | st.lists(LEAF, max_size=40), max_size=4),
        lambda inner: st.dictionaries(TEXT, LEAF | inner, max_size=4),
        max_leaves=12,
    )
)
def test_the_writer_writes_what_the_reader_reads(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("toml") / "it.toml"
    path.write_text(dump_toml(data), encoding="utf-8", newline="")
    assert read_toml(path) == data


def test_an_unknown_name_is_answered_with_the_nearest_and_contradictory_flops_are_refused():
    for load, name, said in [
        (load_profile, "deepseek-v3", "Did you mean 'deepseek-v3-2025'"),
        (load_profile, "somewhere/else.toml", "no profile file"),
        (load_device, "deepseek-v3-2025", "a device profile is needed here; known: pixel7pro"),
        (load_server, "pixel7pro-bloom-1.1b", "a server profile is needed"),
        (load_lengths, "deepseek-v3-2025", "a lengths profile is needed"),
        (load_prices, "nowhere.toml", "no price file"),
        (load_prices().price, "gpt4o-mini", "Did you mean 'gpt-4o-mini'"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            load(name)
    for at, flops, said in [((1, 2), (1,), "same number"), ((2, 1), (1, 1), "increase")]:
        with pytest.raises(ValueError, match=said):
            FlopsPerToken(prompt_tokens=at, prefill=flops, decode=1)


GOOD = """kind = "server"
name = "it"
source = "x"
licence = "MIT"
rows = 3

[ttft_s]
levels = [0, 0.5, 1]
values = [1, 2, 3]
mean = 2
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rows = 3", "rows = ", "line 5"),
        ("rows = 3", "rows = -3", r"line 5: rows: Input should be greater than 0 \(is -3\)"),
        ("rows = 3", "rowz = 3", r"line 5: rowz: no such key. Did you mean 'rows'"),
        ("rows = 3", "", "rows: is missing"),
        ("[0, 0.5, 1]", "[0, 0.5, 0.9]", r"line 7: ttft_s: levels must run from 0 to 1"),
        ("[0, 0.5, 1]", "[0, 0.5, 0.5, 1]", r"line 7: ttft_s: 4 levels do not fit 3 values"),
        ("values = [1, 2, 3]", "values = [3, 2, 1]", "must not decrease"),
        ("values = [1, 2, 3]", "values = [1, -2, 3]", r"line 9: ttft_s.values.1: .* \(is -2\)"),
        ("mean = 2", 'mean = "two"', r"line 10: ttft_s.mean: .*'two'"),
        ('"server"', '"sever"', "kind must be one of 'device', 'server', 'lengths' .is 'sever'"),
        ('kind = "server"', "", "kind must be one of"),
        (GOOD, "\xff\xfe", "is no UTF-8 text"),
    ],
    ids=lambda text: "" if text == GOOD else None,
)
def test_a_broken_file_is_named_with_line_and_fault(tmp_path, old, new, said):
    path = tmp_path / "it.toml"
    path.write_text(GOOD)
    assert load_profile(path).rows == 3
    path.write_bytes(GOOD.replace(old, new).encode("latin-1"))
    with pytest.raises(ConfigurationError, match=said) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_the_users_folder_follows_xdg_and_without_a_home_the_shipped_profiles_are_still_there(
    monkeypatch, tmp_path
):
    """As in a container that runs under a user without an account."""

    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert user_profile_dir() == tmp_path / ".local" / "share" / "disco" / "profiles"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert load_device("pixel7pro-bloom-1.1b").decode_tps == 13.93
    assert load_prices().price("gpt-4o").usd_per_mtok_out == 10
    with pytest.raises(ConfigurationError, match="set XDG_DATA_HOME"):
        user_profile_dir()
