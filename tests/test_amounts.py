"""Money and energy read the same wherever people see them."""

import pytest

from disco.amounts import joules, money, spent


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
