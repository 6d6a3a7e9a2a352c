"""Money, energy, spans and shares read the same wherever people see them."""

import datetime as dt
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.amounts import compared, date, joules, money, number, share, span, spent, tokens


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "0.00 $"),
        (2e-5, "0.000020 $"),
        (0.0023, "0.0023 $"),
        (0.0123, "0.012 $"),
        (0.5, "0.50 $"),
        (1234.5, "1,234.50 $"),
        (-0.0023, "-0.0023 $"),
        (3e-12, "under 0.000000001 $"),
        (0.00999, "0.0100 $"),
    ],
)
def test_money_is_a_plain_number_with_what_matters_of_it(usd, text):
    assert money(usd) == text
    assert "e-" not in money(usd)


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (0.0, "0 J"),
        (0.003, "under 0.01 J"),
        (0.054, "0.05 J"),
        (3.42, "3.4 J"),
        (9.96, "10 J"),
        (31.4, "31 J"),
    ],
)
def test_energy_is_in_joules(energy_j, text):
    assert joules(energy_j) == text


def test_large_energies_are_in_thousands_of_joules_and_what_is_not_known_is_left_out():
    assert joules(123_456.0) == "123 kJ"
    assert spent(0.0, 12.0) == "0.00 $, 12 J"
    assert spent(0.0023, 0.0) == spent(0.0023, None) == "0.0023 $"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.05, "0.05 s"),
        (1.5, "1.5 s"),
        (60, "60 s"),
        (120, "2 minutes"),
        (9000, "2.5 hours"),
        (86_400, "24 hours"),
        (172_800, "2 days"),
        (2.592e6, "30 days"),
    ],
)
def test_a_span_is_told_in_the_largest_unit_of_which_it_has_two(seconds, told):
    assert span(seconds) == told


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (1.0, "the same"),
        (0.9994, "the same"),
        (0.8, "20 % less"),
        (1.3, "30 % more"),
        (2.34, "2.3 times as much"),
        (241.3, "240 times as much"),
        (1e6, "1,000,000 times as much"),
    ],
)
def test_much_more_is_told_as_times_as_much(ratio, told):
    assert compared(ratio) == told


def test_the_end_of_a_day_is_a_date_and_an_hour_of_it_a_time():
    now = dt.datetime(2026, 11, 30, 12, 30, tzinfo=dt.UTC).timestamp()
    assert date(now + 1800, now) == "13:00 UTC"
    assert date(now + 11.5 * 3600, now) == "1 December, UTC"
    assert date(now + 40 * 86_400, now) == "9 January, UTC"


def test_numbers_and_shares_have_few_digits():
    assert (number(12345.6), number(0.05), number(0)) == ("12,350", "0.05", "0")
    assert (share(0.034), share(0.00042), share(240.3)) == ("3 %", "0.04 %", "24,030 %")
    assert (tokens(1), tokens(1234)) == ("1 token", "1,234 tokens")


@given(st.floats(1e-12, 1e12))
def test_nothing_has_an_exponent(value):
    for told in (money(value), span(value), number(value), compared(value), share(value), tokens(value)):
        assert not re.search(r"\de[+-]?\d", told)
