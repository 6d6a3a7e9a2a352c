"""Rates and the ledger: energy and prices in one currency, and every token charged once."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cost import (
    PAPER_DEVICE_CONSTRAINED,
    PAPER_SERVER_CONSTRAINED,
    ExchangeRate,
    Ledger,
    Phase,
    Rates,
    device_rates,
    server_rates,
)
from disco.dispatch import regime
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, Energy, Price, load_device, load_prices

RATES = {
    "device": Rates(3e-7, 7e-7, cached_share=0.0),
    "server": Rates(1.5e-7, 6e-7),
    "other": Rates(0.1, 0.7, 0.25),
}
KINDS = ("prompt_tokens", "completion_tokens", "cached_tokens")
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "attempt": st.integers(0, 5),
            "endpoint": st.sampled_from(sorted(RATES)),
            "phase": st.sampled_from(Phase),
            **dict.fromkeys(KINDS, st.integers(0, 10**6)),
        }
    ),
    max_size=25,
)
COST = st.floats(0, 1e3)
ANY_RATES = st.builds(Rates, COST, COST)


def filled(entries):
    ledger = Ledger(RATES)
    for entry in entries:
        ledger.charge(**entry)
    return ledger


@given(ENTRIES)
def test_every_token_is_charged_once_and_the_total_is_exactly_the_sum_in_any_order(entries):
    ledger = filled(entries)
    for entry, charge in zip(entries, ledger.charges, strict=True):
        # A server that counts more cached tokens than there were prompt tokens gives nothing back.
        assert charge.cached_tokens == min(entry["cached_tokens"], entry["prompt_tokens"])
        rates, fresh = RATES[charge.endpoint], charge.prompt_tokens - charge.cached_tokens
        paid = (fresh + rates.cached_share * charge.cached_tokens) * rates.cost_in
        assert charge.policy_cost == pytest.approx(paid + rates.cost_out * charge.completion_tokens)
    assert ledger.totals().policy_cost == math.fsum(charge.policy_cost for charge in ledger.charges)
    assert ledger.totals().policy_cost == filled(entries[::-1]).totals().policy_cost
    groups = ledger.by_endpoint()
    assert set(groups) == {entry["endpoint"] for entry in entries}
    for what in KINDS:
        total = getattr(ledger.totals(), what)
        assert sum(getattr(group, what) for group in groups.values()) == total
        assert sum(getattr(charge, what) for charge in ledger.charges) == total
    for name, group in groups.items():
        paid = [charge.policy_cost for charge in ledger.charges if charge.endpoint == name]
        assert group.policy_cost == pytest.approx(math.fsum(paid), rel=1e-12)
    # It can be written down, and read again.
    data = json.loads(json.dumps(ledger.to_dict()))
    assert data["policy_cost"] == math.fsum(charge["policy_cost"] for charge in data["charges"])
    entered = "attempt", "endpoint", "phase", *KINDS
    again = filled([{name: charge[name] for name in entered} for charge in data["charges"]])
    assert again.totals().policy_cost == ledger.totals().policy_cost


def test_nothing_is_free_by_mistake():
    ledger = Ledger(RATES)
    with pytest.raises(KeyError):
        ledger.charge(attempt=0, endpoint="unknown", phase=Phase.ANSWER, prompt_tokens=1)
    for wrong in ("attempt", *KINDS):
        with pytest.raises(ValueError, match="must not be negative"):
            ledger.charge(**{"attempt": 0, "endpoint": "server", "phase": Phase.FAILED, wrong: -1})
    assert (ledger.charges, ledger.totals().policy_cost) == ((), 0)


# ---------------------------------------------------------------------- rates


@given(ANY_RATES, ANY_RATES)
def test_the_regime_is_the_papers(device, server):
    cheapest, dearest = min(device.cost_in, device.cost_out), max(server.cost_in, server.cost_out)
    assert (regime(device, server) == "device-constrained") == (cheapest > dearest)
    assert regime(device, device) == "server-constrained"


def test_flops_joules_and_prices_become_money_and_what_was_not_measured_is_not_invented():
    phone = load_device("pixel7pro-bloom-1.1b")
    rates = device_rates(phone, ExchangeRate(usd_per_mflop=1e-9), prompt_tokens=64)
    assert (rates.cost_in, rates.cost_out) == pytest.approx((0.93e9 / 1e6 * 1e-9, 0.82e9 / 1e6 * 1e-9))
    assert rates.cached_share == 0
    energy = Energy(prefill_j_per_token=0.1, decode_j_per_token=0.4)
    mine = DeviceProfile(name="mine", source="x", prefill_tps=1, decode_tps=1, energy=energy)
    rates = device_rates(mine, ExchangeRate(usd_per_joule=1e-6))
    assert (rates.cost_in, rates.cost_out) == pytest.approx((1e-7, 4e-7))
    server = server_rates(load_prices().price("gpt-4o-mini"))
    paper = [
        regime(device_rates(phone, rate), server)
        for rate in (PAPER_SERVER_CONSTRAINED, PAPER_DEVICE_CONSTRAINED)
    ]
    assert paper == ["server-constrained", "device-constrained"]
    with pytest.raises(ConfigurationError, match=r"no \[energy\]"):
        device_rates(phone, ExchangeRate(usd_per_joule=1e-6))
    with pytest.raises(ConfigurationError, match=r"'mine' has no \[flops\]"):
        device_rates(mine, ExchangeRate(usd_per_mflop=1e-9))
    assert device_rates(phone, ExchangeRate(usd_per_joule=0.0)).cost_out == 0
    assert device_rates(mine, ExchangeRate(usd_per_mflop=0)) == Rates(
        0, 0, 0, is_money=False, j_in=0.1, j_out=0.4
    )
    rates = server_rates(Price(usd_per_mtok_in=0.15, usd_per_mtok_out=0.6), cached_share=0.5)
    assert (rates.cost_in, rates.cost_out) == pytest.approx((0.15e-6, 0.6e-6))
    assert rates.cost(1000, 0, 1000) == pytest.approx(0.075e-3)


def test_contradictory_exchange_rates_and_impossible_rates_are_refused():
    mflop, joule = "usd_per_mflop", "usd_per_joule"
    for given_rates in ({}, {mflop: 1, joule: 1}, {mflop: -1}, {joule: math.inf}):
        with pytest.raises(ConfigurationError, match="exchange rate"):
            ExchangeRate(**given_rates)
    for wrong in [(-1, 0), (0, math.nan), (math.inf, 0), (0, 0, 1.5), (0, 0, -0.1)]:
        with pytest.raises(ValueError, match=r"cost|cached_share"):
            Rates(*wrong)
