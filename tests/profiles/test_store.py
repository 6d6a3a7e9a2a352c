"""Profiles on disk: what ships, what the user adds, and what is said about broken files."""

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
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
    load_prices,
    load_profile,
    load_server,
    save_profile,
    user_profile_dir,
)
from disco.profiles.profile_toml import dump_toml, read_toml

# mean, P50, P99 in seconds and rows, as published with the traces (P50 None where it is not).
SERVERS = {
    "deepseek-v3-2025": (1.38, 1.14, 6.50, 3159),
    "gpt-4.1-nano-2026": (0.57, None, 1.48, 769),
    "gpt-4o-mini-2024": (0.57, None, 1.49, 63),
    "llama-2-70b-together-2023": (0.62, None, 0.87, 150),
    "llama-2-70b-replicate-2023": (5.08, None, 63.6, 145),
    "llama-2-70b-anyscale-2023": (0.25, None, 0.47, 150),
}
# prefill and decode tokens/s, GFLOPs per token at 32, 64, 128 prompt tokens and for decode, as printed.
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


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_ships_loads_under_its_own_name_and_names_its_source():
    names = available_profiles()
    assert {*SERVERS, *DEVICES, "lengths-azure-conv-2023"} <= set(names)
    for name in names:
        profile = load_profile(name)
        assert profile.name == name
        assert profile.source
    assert set(available_profiles("server")) == set(SERVERS)
    assert set(available_profiles("device")) == set(DEVICES)
    files = {path.stem for path in resource_dir("profiles").glob("*.toml")}
    assert files == {*names, "prices"}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_profile_is_what_was_measured(name):
    mean, p50, p99, rows = SERVERS[name]
    profile = load_server(name)
    assert profile.rows == rows
    assert profile.licence in {"MIT", "Apache-2.0"}
    assert profile.ttft_s.mean == pytest.approx(mean, abs=0.005)
    assert profile.ttft().quantile(0.99) == pytest.approx(p99, rel=0.01)
    if p50 is not None:
        assert profile.ttft().quantile(0.5) == pytest.approx(p50, abs=0.005)
    # A table through so few rows shortens the very last step of the tail.
    assert profile.ttft().mean() == pytest.approx(profile.ttft_s.mean, rel=0.05)
    assert len(profile.ttft_s.levels) < 50
    if profile.tpot_s is None:
        assert profile.decode_tps is None
    else:
        assert profile.tpot().mean() == pytest.approx(profile.tpot_s.mean, rel=0.01)
        assert profile.decode_tps == pytest.approx(1 / profile.tpot().quantile(0.5))
    assert profile.price in load_prices().models
    stands_for = {
        "deepseek-v3-2025": "DeepSeek-V2.5",
        "gpt-4.1-nano-2026": "GPT-4o-mini",
        "gpt-4o-mini-2024": None,
    }
    assert profile.stands_for == stands_for.get(name, profile.stands_for)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_profile_is_what_the_paper_prints(name):
    prefill, decode, at_32, at_64, at_128, flops = DEVICES[name]
    profile = load_device(name)
    assert (profile.prefill_tps, profile.decode_tps) == (prefill, decode)
    assert [profile.flops.prefill_at(n) / 1e9 for n in (32, 64, 128)] == pytest.approx([at_32, at_64, at_128])
    assert profile.flops.prefill_at(48) / 1e9 == pytest.approx((at_32 + at_64) / 2)
    assert profile.flops.prefill_at(9999) / 1e9 == pytest.approx(at_128)
    assert profile.flops.decode == pytest.approx(flops * 1e9)
    assert profile.ttft_s(100) == pytest.approx(100 / prefill)
    assert profile.line.c_s == 0


def test_lengths_are_those_of_the_trace():
    profile = load_lengths("lengths-azure-conv-2023")
    assert profile.rows == 19366
    assert profile.licence == "CC-BY-4.0"
    for known, table, mean in (
        (profile.prompt(weight=50), profile.prompt_tokens, 1154.7),
        (profile.output(weight=50), profile.output_tokens, 211.1),
    ):
        assert table.mean == pytest.approx(mean, abs=0.05)
        assert known.mean() == pytest.approx(mean, rel=0.01)
        assert known.weight == pytest.approx(50)
        median = known.lengths[known.p.cumsum().searchsorted(0.5)]
        assert median == pytest.approx(table.empirical().quantile(0.5), abs=1)


def test_prices_are_the_printed_ones():
    prices = load_prices()
    assert prices.date == dt.date(2024, 10, 28)
    printed = {
        "deepseek-v2.5": (0.14, 0.28),
        "gpt-4o-mini": (0.15, 0.60),
        "llama-3.1-70b-hyperbolic": (0.40, 0.40),
        "llama-3.1-70b-amazon": (0.99, 0.99),
        "command": (1.25, 2.00),
        "gpt-4o": (2.50, 10.0),
        "claude-3.5-sonnet": (3.0, 15.0),
        "o1-preview": (15.0, 60.0),
    }
    assert {name: (p.usd_per_mtok_in, p.usd_per_mtok_out) for name, p in prices.models.items()} == printed
    with pytest.raises(ConfigurationError, match="Did you mean 'gpt-4o-mini'"):
        prices.price("gpt4o-mini")


OWN_PRICES = """
kind = "prices"
date = 2026-02-01
source = "my invoice"
[models]
"gpt-4o-mini" = { usd_per_mtok_in = 0.1, usd_per_mtok_out = 0.2 }
"mine" = { usd_per_mtok_in = 1, usd_per_mtok_out = 2 }
"""


def test_the_users_prices_lie_over_the_shipped_ones(users_folder, tmp_path):
    elsewhere = write(tmp_path, "elsewhere.toml", OWN_PRICES)
    for at in (elsewhere, str(elsewhere), None):
        if at is None:
            write(users_folder, "prices.toml", OWN_PRICES)
        prices = load_prices(at)
        assert prices.price("gpt-4o-mini").usd_per_mtok_out == 0.2
        assert prices.price("mine").usd_per_mtok_in == 1
        assert prices.price("gpt-4o").usd_per_mtok_out == 10
        assert prices.date == dt.date(2026, 2, 1)
    assert "prices" not in available_profiles()
    with pytest.raises(ConfigurationError, match="no price file"):
        load_prices(tmp_path / "nowhere.toml")


def device(**changes):
    return DeviceProfile(
        **{"name": "mine", "source": "measured", "prefill_tps": 240.0, "decode_tps": 149.0, **changes}
    )


def test_a_saved_profile_is_found_by_name_before_the_shipped_one(users_folder):
    mine = device(
        name="pixel7pro-bloom-1.1b",
        k_s_per_token=4e-3,
        c_s=0.009,
        load_s=1.5,
        measured_on=dt.date(2026, 1, 2),
    )
    path = save_profile(mine, user_profile_dir() / "pixel7pro-bloom-1.1b.toml", comment="two\nlines")
    assert path.parent == users_folder
    assert load_device("pixel7pro-bloom-1.1b") == mine
    assert load_device(path) == load_device(str(path)) == mine
    assert mine.ttft_s(100) == pytest.approx(0.409)
    assert mine.ttft_s(100, cold=True) == pytest.approx(1.909)
    save_profile(device(name="pixel7pro-bloom-1.1b"), path)
    assert load_device("pixel7pro-bloom-1.1b").load_s is None
    assert [p.name for p in users_folder.iterdir()] == [path.name]
    for price in (0.1, 0.2):  # a file that was written again is read again
        own = {'odd "name".v1': Price(usd_per_mtok_in=price, usd_per_mtok_out=price)}
        table = PriceTable(kind="prices", date=dt.date(2026, 1, 1), source="me", models=own)
        save_profile(table, users_folder / "prices.toml")
        assert load_prices().price('odd "name".v1') == own['odd "name".v1']


TABLE = QuantileTable(levels=(0, 0.5, 1), values=(0.1, 0.2, 3.5e-7 + 1), mean=0.4)


@pytest.mark.parametrize(
    "profile",
    [
        device(
            notes='quote " backslash \\ tab \t newline \n umlaut ü λ \x7f',
            flops=FlopsPerToken(prompt_tokens=(32, 64), prefill=(1e9, 2e9), decode=1e22),
            energy=Energy(prefill_j_per_token=0, decode_j_per_token=1e-7),
        ),
        ServerProfile(name="s", source="x", licence="MIT", rows=3, ttft_s=TABLE, tpot_s=TABLE),
        LengthsProfile(name="l", source="x", licence="MIT", rows=3, prompt_tokens=TABLE, output_tokens=TABLE),
    ],
)
def test_what_is_saved_is_what_is_loaded(profile, tmp_path):
    assert load_profile(save_profile(profile, tmp_path / "deep" / "er" / "it.toml")) == profile


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEAF = TEXT | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.dates()


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


@pytest.mark.parametrize(
    ("load", "name", "said"),
    [
        (load_profile, "deepseek-v3", "Did you mean 'deepseek-v3-2025'"),
        (load_profile, "somewhere/else.toml", "no profile file"),
        (load_device, "deepseek-v3-2025", "a device profile is needed here; known: pixel7pro"),
        (load_server, "pixel7pro-bloom-1.1b", "a server profile is needed"),
        (load_lengths, "deepseek-v3-2025", "a lengths profile is needed"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(load, name, said):
    with pytest.raises(ConfigurationError, match=said):
        load(name)


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
        (GOOD, "\xff\xfe", "cannot be read"),
    ],
    ids=lambda text: "" if text == GOOD else None,
)
def test_a_broken_file_is_named_with_line_and_fault(tmp_path, old, new, said):
    assert load_profile(write(tmp_path, "good.toml", GOOD)).rows == 3
    path = tmp_path / "bad.toml"
    path.write_bytes(GOOD.replace(old, new).encode("latin-1"))
    with pytest.raises(ConfigurationError, match=said) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_contradictory_flops_are_refused():
    with pytest.raises(ValueError, match="same number"):
        FlopsPerToken(prompt_tokens=(1, 2), prefill=(1,), decode=1)
    with pytest.raises(ValueError, match="increase"):
        FlopsPerToken(prompt_tokens=(2, 1), prefill=(1, 1), decode=1)


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
