"""What a client counts for its servers: by host, the application's own, and a warning where it is not known well."""

from __future__ import annotations

import datetime as dt
import logging

import pytest
from defects.asking import client, create, preset
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread  # noqa: F401 - fixtures
from scripted_server import chunk, sse, usage

import disco
from disco import AsyncDisco
from disco.client.endpoint_catalog.pricing import Pricing
from disco.errors import ConfigurationError
from disco.profiles import load_prices
from disco.rates import Rates

pytestmark = pytest.mark.anyio
DAY = dt.date(2026, 12, 1)


def reply() -> Reply:
    return Reply([sse(chunk("Yes."), chunk(finish="stop"), usage(100, 10))])


def prices(day: dt.date = DAY) -> Pricing:
    return Pricing(load_prices(), lambda: day)


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and r.name == "disco"]


async def test_the_record_says_how_far_a_price_is_known_and_each_model_is_warned_of_once(caplog):
    server = MemoryServer(reply())
    async with client(server, policy=preset("server_only"), price=None) as one:
        one.router.catalog.pricing = prices()
        asked = [(await create(one, model=m)).route for m in ("unheard-of", "unheard-of", "gpt-4o")]
        named = [route.endpoints[-1].price for route in asked]
        assert named == ["assumed", "assumed", "elsewhere"]
        assert asked[0].to_dict()["endpoints"][-1]["price"] == "assumed"
        assert asked[0].bill_usd == pytest.approx((100 * 0.15 + 10 * 0.6) / 1e6)  # never zero
    unknown, elsewhere = warnings(caplog)
    assert unknown.startswith(
        "No price is known for the model 'unheard-of'. Costs are counted at the price of openai/"
    )
    assert "in no price table" in elsewhere
    assert "that gpt-4o has at openai" in elsewhere


async def test_the_applications_own_price_counts_with_cached_input_and_by_a_name(caplog):
    server = MemoryServer(reply())
    for price, rates in (
        ((1.0, 2.0), Rates(1e-6, 2e-6)),
        ((1.0, 2.0, 0.25), Rates(1e-6, 2e-6, 0.25)),
        ([0, 0], Rates()),
    ):
        async with client(server, policy=preset("server_only"), price=price) as one:
            (endpoint,) = (await create(one, model="unheard-of")).route.endpoints
            found = endpoint.cost_in, endpoint.cost_out, endpoint.cached_share, endpoint.price
            assert found == (rates.cost_in, rates.cost_out, rates.cached_share, "given")
    async with client(server, policy=preset("server_only"), price="azure/gpt-4o-mini") as one:
        one.router.catalog.pricing = prices()
        (endpoint,) = (await create(one, model="our-deployment")).route.endpoints
        assert (endpoint.cost_in, endpoint.cached_share) == (1.5e-7, 0.5)
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "wrong", [(1,), (1, -1), (1, 2, 3), (float("nan"), 1), 0.5, "gpt-4o-minni", "", ("a", "b")]
)
def test_a_price_that_is_none_is_refused_when_the_client_is_made(wrong):
    with pytest.raises(ConfigurationError, match="price"):
        AsyncDisco(api_key="k", price=wrong)
    with pytest.raises(ConfigurationError, match="price"):
        AsyncDisco(
            api_key="k",
            tiers=[disco.Tier(base_url="https://a.example/v1", model="m", api_key="k", price=wrong)],
        )


def test_a_stale_price_counts_and_is_warned_of(caplog):
    late = prices(dt.date(2028, 1, 1))
    assert late.rates("gpt-4o", "api.openai.com", None).basis == "stale"
    (said,) = warnings(caplog)
    assert "'gpt-4o' is of 2026-11-20, 407 days old (stale after 180)" in said
    assert prices().rates("gpt-4o", "api.openai.com", None).basis == "listed"
    assert len(warnings(caplog)) == 1


def test_the_same_name_costs_what_its_server_charges():
    at = {host: prices().rates("gpt-oss-120b", host, None).cost_out * 1e6 for host in ("api.cerebras.ai",)}
    assert at == {"api.cerebras.ai": pytest.approx(0.75)}
    assert prices().rates("openai/gpt-oss-120b", "api.groq.com", None).cost_out == pytest.approx(0.6e-6)
    assert prices().rates("gpt-oss-120b", "api.groq.com", None).basis == "assumed"
