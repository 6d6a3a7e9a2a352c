"""Energy and prices in one currency, and the regime that follows."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cost import (
    PAPER_DEVICE_CONSTRAINED,
    PAPER_SERVER_CONSTRAINED,
    ExchangeRate,
    Rates,
    device_rates,
    server_rates,
)
from disco.dispatch import regime
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, Energy, Price, load_device, load_prices

COST = st.floats(0, 1e3)
RATES = st.builds(Rates, COST, COST)
DEVICES = ("pixel7pro-bloom-1.1b", "pixel7pro-bloom-560m", "xiaomi14-qwen1.5-0.5b")


@given(RATES, RATES)
def test_the_regime_is_the_papers(device, server):
    cheapest, dearest = min(device.cost_in, device.cost_out), max(server.cost_in, server.cost_out)
    assert (regime(device, server) == "device-constrained") == (cheapest > dearest)
    assert regime(device, device) == "server-constrained"


@pytest.mark.parametrize("name", DEVICES)
def test_the_papers_exchange_rates_give_the_papers_regimes(name):
    """Command against the smallest device is left out: 1.85 against 2.00 USD, printed as it is."""
    prices = load_prices()
    for model in (
        "deepseek-v2.5",
        "gpt-4o-mini",
        "llama-3.1-70b-hyperbolic",
        "llama-3.1-70b-amazon",
        "command",
    ):
        server = server_rates(prices.price(model))
        cheap = device_rates(load_device(name), PAPER_SERVER_CONSTRAINED)
        dear = device_rates(load_device(name), PAPER_DEVICE_CONSTRAINED)
        assert regime(cheap, server) == "server-constrained"
        if (name, model) != ("xiaomi14-qwen1.5-0.5b", "command"):
            assert regime(dear, server) == "device-constrained"
    # As printed, at 0.3 USD per 10⁶ FLOPs, a token costs over 100 USD, and no server could be constrained.
    printed = device_rates(load_device(name), ExchangeRate(usd_per_mflop=0.3))
    assert printed.cost_out > 100
    for price in prices.models.values():
        assert regime(printed, server_rates(price)) == "device-constrained"


def test_flops_and_joules_become_money_and_what_was_not_measured_is_not_invented():
    phone = load_device("pixel7pro-bloom-1.1b")
    rates = device_rates(phone, ExchangeRate(usd_per_mflop=1e-9), prompt_tokens=64)
    assert (rates.cost_in, rates.cost_out) == pytest.approx((0.93e9 / 1e6 * 1e-9, 0.82e9 / 1e6 * 1e-9))
    assert rates.cached_share == 0
    with pytest.raises(ConfigurationError, match=r"no \[energy\]"):
        device_rates(phone, ExchangeRate(usd_per_joule=1e-6))
    assert device_rates(phone, ExchangeRate(usd_per_joule=0.0)).cost_out == 0
    profile = DeviceProfile(
        name="mine",
        source="x",
        prefill_tps=1,
        decode_tps=1,
        energy=Energy(prefill_j_per_token=0.1, decode_j_per_token=0.4),
    )
    rates = device_rates(profile, ExchangeRate(usd_per_joule=1e-6))
    assert (rates.cost_in, rates.cost_out) == (pytest.approx(1e-7), pytest.approx(4e-7))
    with pytest.raises(ConfigurationError, match=r"'mine' has no \[flops\]"):
        device_rates(profile, ExchangeRate(usd_per_mflop=1e-9))
    assert device_rates(profile, ExchangeRate(usd_per_mflop=0)) == Rates(0, 0, 0)


def test_prices_become_money_per_token():
    rates = server_rates(Price(usd_per_mtok_in=0.15, usd_per_mtok_out=0.6), cached_share=0.5)
    assert (rates.cost_in, rates.cost_out) == (pytest.approx(0.15e-6), pytest.approx(0.6e-6))
    assert rates.cost(1000, 0, 1000) == pytest.approx(0.075e-3)


@pytest.mark.parametrize(
    "given",
    [{}, {"usd_per_mflop": 1, "usd_per_joule": 1}, {"usd_per_mflop": -1}, {"usd_per_joule": math.inf}],
)
def test_a_contradictory_exchange_rate_is_refused(given):
    with pytest.raises(ConfigurationError, match="exchange rate"):
        ExchangeRate(**given)


@pytest.mark.parametrize("wrong", [(-1, 0), (0, math.nan), (math.inf, 0), (0, 0, 1.5), (0, 0, -0.1)])
def test_impossible_rates_are_refused(wrong):
    with pytest.raises(ValueError, match=r"cost|cached_share"):
        Rates(*wrong)
