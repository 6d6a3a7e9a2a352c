"""The bill: what each provider counts in its own way is charged once, at its price."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from answers.two_servers import MODEL, stub, told, two
from faults.in_memory import MemoryServer, Reply
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import chunk, sse

from disco import AsyncDisco
from disco.endpoints.openai_api.chunk_repair import usage_from

pytestmark = pytest.mark.anyio

# The same work by each provider: 1,000 tokens of prompt, 800 of them cached, 100 written, 60 of these thoughts.
SAME = {
    "OpenAI": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 800}, "completion_tokens_details": {"reasoning_tokens": 60},
    },
    "OpenAI, responses": {
        "input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100,
        "input_tokens_details": {"cached_tokens": 800}, "output_tokens_details": {"reasoning_tokens": 60},
    },
    "DeepSeek": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_cache_hit_tokens": 800, "prompt_cache_miss_tokens": 200,
        "completion_tokens_details": {"reasoning_tokens": 60},
    },
    "DeepSeek, as in the report": {
        "prompt_tokens": 1000, "completion_tokens": 100, "prompt_cache_hit_tokens": 800
    },
    "Moonshot": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cached_tokens": 800},
    "Anthropic": {"input_tokens": 200, "output_tokens": 100, "cache_read_input_tokens": 800},
    "Anthropic, naive total": {
        "input_tokens": 200, "output_tokens": 100, "total_tokens": 300, "cache_read_input_tokens": 800
    },
    "a bridge to Anthropic": {
        "prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300, "cache_read_input_tokens": 800,
    },
    "another, with a true total": {
        "prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 1100, "cache_read_input_tokens": 800,
    },
    "LiteLLM": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 800}, "cache_read_input_tokens": 800,
        "cache_creation_input_tokens": 0,
    },
    "Bedrock": {
        "inputTokens": 200, "outputTokens": 100, "totalTokens": 1100, "cacheReadInputTokens": 800,
        "cacheWriteInputTokens": 0,
    },
    "xAI": {
        "prompt_tokens": 1000, "completion_tokens": 40, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 800}, "completion_tokens_details": {"reasoning_tokens": 60},
    },
    "xAI, without a total": {
        "prompt_tokens": 1000, "completion_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 800}, "completion_tokens_details": {"reasoning_tokens": 60},
    },
    "Gemini": {
        "prompt_tokens": 1000, "completion_tokens": 40, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 800},
    },
    "Gemini's own": {
        "promptTokenCount": 1000, "candidatesTokenCount": 40, "thoughtsTokenCount": 60, "totalTokenCount": 1100,
        "cachedContentTokenCount": 800,
    },
    "OpenRouter": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cost": 0.5,
        "prompt_tokens_details": {"cached_tokens": 800, "cache_write_tokens": 0},
    },
}  # fmt: skip
# 1,000 tokens of prompt, 300 of them cached and 500 written into the cache; 100 written.
WRITES = {
    "Anthropic": {
        "input_tokens": 200, "output_tokens": 100, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 500,
    },
    "LiteLLM": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100, "cache_read_input_tokens": 300,
        "prompt_tokens_details": {"cached_tokens": 300, "cache_creation_tokens": 500},
        "cache_creation_input_tokens": 500,
    },
    "OpenRouter": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 300, "cache_write_tokens": 500},
    },
    "Alibaba": {
        "prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100,
        "prompt_tokens_details": {"cached_tokens": 300, "cache_creation_input_tokens": 500},
    },
    "Bedrock": {
        "inputTokens": 200, "outputTokens": 100, "totalTokens": 1100, "cacheReadInputTokens": 300,
        "cacheWriteInputTokens": 500,
    },
}  # fmt: skip


async def charged(usage: dict[str, Any], price: tuple[float, ...], way: str) -> Any:
    """The route of an answer with that usage, alone (the SDK's own way) or through a session with a budget."""
    server = MemoryServer(stub({"content": "The Rhine."}, finish="stop", usage=usage))
    http = httpx2.AsyncClient(transport=server)
    more = {"budget": {"server_tokens": 100_000, "per": "hour"}} if way == "session" else {}
    async with AsyncDisco(
        base_url=server.base_url, api_key="secret-key-1234", http_client=http, price=price, **more
    ) as client:
        got = await told(client, stream=True)
        return got.route


@pytest.mark.parametrize("way", ["alone", "session"])
@pytest.mark.parametrize("usage", SAME.values(), ids=SAME.keys())
async def test_cached_tokens_and_thoughts_are_billed_once(usage, way):
    route = await charged(usage, (1.0, 10.0, 0.1), way)
    (one,) = route.attempts
    assert (one.prompt_tokens, one.completion_tokens, one.cached_tokens) == (1000, 100, 800)
    assert route.bill_usd == pytest.approx((200 * 1.0 + 800 * 0.1 + 100 * 10.0) / 1e6)
    if way == "session":
        assert route.budget["server_tokens"]["spent"] == 1100


@pytest.mark.parametrize("way", ["alone", "session"])
@pytest.mark.parametrize("usage", WRITES.values(), ids=WRITES.keys())
async def test_writing_into_the_cache_has_its_price(usage, way):
    route = await charged(usage, (1.0, 10.0, 0.1, 1.25), way)
    assert route.bill_usd == pytest.approx((200 * 1.0 + 300 * 0.1 + 500 * 1.25 + 100 * 10.0) / 1e6)
    route = await charged(usage, (1.0, 10.0, 0.1), way)  # without one, that of other input
    assert route.bill_usd == pytest.approx((700 * 1.0 + 300 * 0.1 + 100 * 10.0) / 1e6)


# The same counts, each elsewhere than in the last chunk's usage, or not all in one chunk.
COUNTS = {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500}
FIRST = {"prompt_tokens": 1000, "completion_tokens": 1, "total_tokens": 1001}
REST = {"completion_tokens": 500, "total_tokens": 500}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
ELSEWHERE: dict[str, list[dict[str, Any]]] = {
    "Moonshot, in the choice": [{"choices": [{**LAST["choices"][0], "usage": COUNTS}]}],
    "Groq": [{**LAST, "x_groq": {"id": "r", "usage": COUNTS}}],
    "Cohere": [LAST, {"choices": [], "usage": {
        "billed_units": {"input_tokens": 1000, "output_tokens": 500},
        "tokens": {"input_tokens": 1070, "output_tokens": 500},
    }}],
    "Bedrock": [LAST, {"choices": [], "amazon-bedrock-invocationMetrics": {
        "inputTokenCount": 1000, "outputTokenCount": 500,
    }}],
    "Gemini": [{**LAST, "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 500}}],
    "the prompt first, the answer last": [
        {"choices": [], "usage": FIRST}, LAST, {"choices": [], "usage": {**REST, "prompt_tokens": 0}},
    ],
    "a smaller prompt in the last chunk": [
        {"choices": [], "usage": FIRST}, {**LAST, "usage": {**REST, "prompt_tokens": 3}},
    ],
    "once more, without counts": [
        {**LAST, "usage": COUNTS}, {"choices": [], "usage": dict.fromkeys(COUNTS, 0)},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("way", "stream"), [("alone", True), ("session", True), ("session", False)])
@pytest.mark.parametrize("chunks", ELSEWHERE.values(), ids=ELSEWHERE.keys())
async def test_counts_are_found_wherever_they_are_and_none_is_lost(chunks, way, stream):
    said = [chunk("The Rhine."), *({**chunk(), **fields} for fields in chunks)]
    server = MemoryServer(Reply([sse(*said)]))
    http = httpx2.AsyncClient(transport=server)
    more = {"budget": {"server_tokens": 100_000, "per": "hour"}} if way == "session" else {}
    async with AsyncDisco(
        base_url=server.base_url, api_key="secret-key-1234", http_client=http, price=(1.0, 10.0), **more
    ) as client:
        got = await told(client, stream=stream)
    (one,) = got.route.attempts
    assert (one.prompt_tokens, one.completion_tokens) == (1000, 500)
    assert got.route.bill_usd == pytest.approx((1000 * 1.0 + 500 * 10.0) / 1e6)


async def test_a_budget_in_money_counts_what_was_written_into_the_cache():
    usage = WRITES["OpenRouter"]
    client, _ = two(
        stub({"content": "The Rhine."}, finish="stop", usage=usage),
        stub(finish="stop"),
        price=(1.0, 10.0, 0.1, 1.25),
        budget={"usd": 1, "per": "hour"},
    )
    async with client:
        got = await told(client, stream=True)
    assert got.route.budget["usd"]["spent"] == pytest.approx(got.route.bill_usd, abs=1e-9)


async def test_a_failed_answer_is_billed_once_and_its_successor_too():
    usage = {"prompt_tokens": 1000, "completion_tokens": 3, "total_tokens": 1003}
    client, _ = two(stub(finish="stop", usage=usage), stub({"content": "Rhine."}, finish="stop", usage=usage))
    async with client:
        got = await told(client, stream=False, model=MODEL)
    assert [(c.endpoint, c.prompt_tokens) for c in got.route.ledger.charges if c.prompt_tokens] == [
        ("server", 1000),
        ("good", 1000),
    ]
    assert got.route.bill_usd == pytest.approx(2 * 1003 / 1e6)


NUMBERS = st.integers(-5, 5000) | st.floats() | st.none() | st.text(max_size=2) | st.booleans()
NAMES = sorted({name for usage in (*SAME.values(), *WRITES.values()) for name in usage})
INNER = st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens"]), NUMBERS, max_size=3
)


@given(st.dictionaries(st.sampled_from(NAMES), NUMBERS | INNER, max_size=6))
def test_any_usage_is_counted_sensibly(usage):
    found = usage_from(usage)
    if found is not None:
        assert found.cached_tokens + found.cache_write_tokens <= found.prompt_tokens
        assert min(found.prompt_tokens, found.completion_tokens) >= 0
