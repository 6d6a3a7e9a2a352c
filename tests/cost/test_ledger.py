"""The ledger: every token charged once, and a total that is the sum of what was charged."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.cost import Ledger, Phase, Rates

RATES = {
    "device": Rates(3e-7, 7e-7, cached_share=0.0),
    "server": Rates(1.5e-7, 6e-7),
    "other": Rates(0.1, 0.7, 0.25),
}
TOKENS = st.integers(0, 10**6)
ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "attempt": st.integers(0, 5),
            "endpoint": st.sampled_from(sorted(RATES)),
            "phase": st.sampled_from(Phase),
            "prompt_tokens": TOKENS,
            "completion_tokens": TOKENS,
            "cached_tokens": TOKENS,
        }
    ),
    max_size=25,
)


def filled(entries):
    ledger = Ledger(RATES)
    for entry in entries:
        ledger.charge(**entry)
    return ledger


@given(ENTRIES)
def test_every_token_is_charged_once_and_the_total_is_exactly_the_sum_in_any_order(entries):
    ledger = filled(entries)
    assert len(ledger.charges) == len(entries)
    assert ledger.total_cost == math.fsum(charge.cost for charge in ledger.charges)
    assert ledger.total_cost == ledger.tokens().cost == filled(entries[::-1]).total_cost
    groups = ledger.by_endpoint()
    assert set(groups) == {entry["endpoint"] for entry in entries}
    for what in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        assert sum(getattr(group, what) for group in groups.values()) == getattr(ledger.tokens(), what)
    assert ledger.tokens().prompt_tokens == sum(entry["prompt_tokens"] for entry in entries)
    assert ledger.tokens().completion_tokens == sum(entry["completion_tokens"] for entry in entries)
    assert math.fsum(g.cost for g in groups.values()) == pytest.approx(ledger.total_cost, rel=1e-12)
    # It can be written down, and read again.
    data = json.loads(json.dumps(ledger.to_dict()))
    assert data["total_cost"] == math.fsum(charge["cost"] for charge in data["charges"])
    again = filled([{k: v for k, v in charge.items() if k != "cost"} for charge in data["charges"]])
    assert again.total_cost == ledger.total_cost


def test_cached_prompt_tokens_cost_by_the_endpoints_share():
    ledger = Ledger(RATES)

    def cost(endpoint, cached):
        return ledger.charge(
            attempt=0, endpoint=endpoint, phase=Phase.MIGRATION, prompt_tokens=100, cached_tokens=cached
        ).cost

    assert cost("device", 100) == 0
    assert cost("device", 60) == pytest.approx(40 * 3e-7)
    assert cost("server", 100) == pytest.approx(100 * 1.5e-7)
    assert cost("other", 100) == pytest.approx(25 * 0.1)
    # A server that counts more cached tokens than there were prompt tokens gives nothing back.
    assert cost("device", 150) == 0
    assert ledger.charges[-1].cached_tokens == 100


def test_a_race_with_a_migration_is_billed_as_it_happened():
    """Server wins and writes 10 tokens of which 2 are cut off; the device parked its prefill and goes on."""
    ledger = Ledger(RATES)
    ledger.charge(attempt=0, endpoint="server", phase=Phase.ANSWER, prompt_tokens=50, completion_tokens=8)
    ledger.charge(attempt=0, endpoint="server", phase=Phase.DISCARDED, completion_tokens=2)
    ledger.charge(attempt=1, endpoint="device", phase=Phase.PARKED, prompt_tokens=50)
    ledger.charge(attempt=2, endpoint="device", phase=Phase.MIGRATION, prompt_tokens=58, cached_tokens=50)
    ledger.charge(attempt=2, endpoint="device", phase=Phase.ANSWER, completion_tokens=30)
    assert ledger.by_endpoint()["server"].cost == pytest.approx(50 * 1.5e-7 + 10 * 6e-7)
    assert ledger.by_endpoint()["device"].cost == pytest.approx(58 * 3e-7 + 30 * 7e-7)


def test_nothing_is_free_by_mistake():
    ledger = Ledger(RATES)
    with pytest.raises(KeyError):
        ledger.charge(attempt=0, endpoint="unknown", phase=Phase.ANSWER, prompt_tokens=1)
    for wrong in ("attempt", "prompt_tokens", "completion_tokens", "cached_tokens"):
        with pytest.raises(ValueError, match="must not be negative"):
            ledger.charge(**{"attempt": 0, "endpoint": "server", "phase": Phase.FAILED, wrong: -1})
    assert ledger.charges == ()
    assert ledger.total_cost == 0
