"""Derive the shipped price table from two public collections of prices, and compare the two.

    python profiles/derive_prices.py MODEL_PRICES_JSON --date DATE --version TEXT [--out FILE]

MODEL_PRICES_JSON is litellm's `model_prices_and_context_window.json` (MIT; the wheel of litellm on PyPI holds it as
`litellm/model_prices_and_context_window_backup.json`). DATE is the day of that snapshot, TEXT names it. The package
`genai-prices` (MIT, Pydantic) must be installed: OpenRouter's prices come from it, and every other entry is compared
with it. Only numbers and names are taken, of the models named below.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from disco.profiles.price_lookup import spellings

OUT = Path(__file__).parent / "prices.toml"
HEADER = """\
# What models cost, in USD per million tokens. Written by profiles/derive_prices.py; do not edit.
#
# Prices change, and yours may differ (contracts, regions, batch and priority tiers). Write what you pay into a
# prices.toml of your own (docs/how-to/prices.md); it takes precedence over this table. An entry without
# `usd_per_mtok_cached_in` has no discount for cached input. `up_to_prompt_tokens`: longer prompts cost more.
"""
ABOVE = re.compile(r"input_cost_per_token_above_(\d+)k_tokens$")
SAME = 0.005  # two sources agree where no price differs by more than this share


@dataclass(frozen=True)
class Provider:
    """One section of the table.

    Attributes:
        key: its name in the table.
        hosts: the hosts of its API; "*." stands for any one subdomain.
        page: where the provider publishes its prices.
        names: the models' names at the provider.
        prefix: what litellm puts before those names.
        other: the provider's id in genai-prices; None: it is not there.
    """

    key: str
    hosts: tuple[str, ...]
    page: str
    names: tuple[str, ...]
    prefix: str = ""
    other: str | None = field(default=None)


def words(text: str) -> tuple[str, ...]:
    """Return the names in a block of text."""
    return tuple(text.split())


PROVIDERS = (
    Provider(
        "openai",
        ("api.openai.com",),
        "https://developers.openai.com/api/docs/pricing",
        words("""
            gpt-6-astra gpt-6.1-sol gpt-6.1-terra gpt-6-sol gpt-6-luna gpt-5.6 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna
            gpt-5.5 gpt-5.4 gpt-5.4-mini gpt-5.4-nano gpt-5.2 gpt-5.1 gpt-5 gpt-5-mini gpt-5-nano chat-latest gpt-4.1
            gpt-4.1-mini gpt-4o gpt-4o-mini o3 ft:gpt-4.1-2025-04-14 ft:gpt-4.1-mini-2025-04-14 ft:gpt-4o-2024-08-06
            ft:gpt-4o-mini-2024-07-18
        """),
        other="openai",
    ),
    Provider(
        "anthropic",
        ("api.anthropic.com",),
        "https://claude.com/pricing#api",
        words("""
            claude-fable-5-1 claude-opus-5-5 claude-sonnet-5-5 claude-haiku-5-5 claude-fable-5 claude-opus-5
            claude-sonnet-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6 claude-opus-4-5 claude-sonnet-4-6
            claude-sonnet-4-5 claude-haiku-4-5
        """),
        other="anthropic",
    ),
    Provider(
        "google",
        ("generativelanguage.googleapis.com",),
        "https://ai.google.dev/gemini-api/docs/pricing",
        words("""
            gemini-4-argon gemini-4-hydrogen gemini-3.8-flash gemini-3.7-flash gemini-3.5-flash gemini-3.5-flash-lite
            gemini-3.6-flash gemini-3-flash-preview gemini-3.1-pro-preview gemini-3.1-flash-lite gemini-2.5-pro
            gemini-2.5-flash gemini-2.5-flash-lite
            gemini-pro-latest gemini-flash-latest gemini-flash-lite-latest
        """),
        prefix="gemini/",
        other="google",
    ),
    Provider(
        "deepseek",
        ("api.deepseek.com",),
        "https://api-docs.deepseek.com/quick_start/pricing",
        words("deepseek-v4-pro deepseek-v4-flash deepseek-flash"),
        prefix="deepseek/",
        other="deepseek",
    ),
    Provider(
        "mistral",
        ("api.mistral.ai",),
        "https://mistral.ai/pricing",
        words("""
            mistral-large-4 mistral-large-latest mistral-medium-latest mistral-small-latest ministral-14b-latest
            ministral-8b-latest ministral-3b-latest codestral-latest devstral-medium-latest devstral-small-latest
        """),
        prefix="mistral/",
        other="mistral",
    ),
    Provider(
        "xai",
        ("api.x.ai",),
        "https://docs.x.ai/docs/models",
        words("grok-4.7 grok-4.6 grok-4.5 grok-4.3"),
        prefix="xai/",
        other="x-ai",
    ),
    Provider(
        "qwen",
        ("dashscope-intl.aliyuncs.com",),
        "https://www.alibabacloud.com/help/en/model-studio/models",
        words("""
            qwen3.8-max qwen3.8-flash qwen3.7-max qwen3.7-plus qwen3.5-plus qwen3-coder-plus qwen-max qwen-plus
            qwen-flash
        """),
        prefix="dashscope/",
    ),
    Provider(
        "moonshot",
        ("api.moonshot.ai",),
        "https://platform.moonshot.ai/docs/pricing",
        words("kimi-k3.1-pro kimi-k3 kimi-k2.7-code kimi-k2.6"),
        prefix="moonshot/",
        other="moonshotai",
    ),
    Provider(
        "zai",
        ("api.z.ai",),
        "https://docs.z.ai/guides/overview/pricing",
        words("glm-5.3 glm-5.3-flash glm-5.2 glm-4.5-air"),
        prefix="zai/",
        other="zai",
    ),
    Provider(
        "cohere",
        ("api.cohere.com", "api.cohere.ai"),
        "https://cohere.com/pricing",
        words("command-a-03-2025 command-r-plus-08-2024 command-r-08-2024 command-r7b-12-2024"),
        other="cohere",
    ),
    Provider(
        "groq",
        ("api.groq.com",),
        "https://groq.com/pricing",
        words("openai/gpt-oss-120b openai/gpt-oss-20b qwen/qwen3.8-27b"),
        prefix="groq/",
        other="groq",
    ),
    Provider(
        "cerebras",
        ("api.cerebras.ai",),
        "https://www.cerebras.ai/pricing",
        words("gpt-oss-120b gemma-4-31b qwen-3.8-27b"),
        prefix="cerebras/",
        other="cerebras",
    ),
    Provider(
        "together",
        ("api.together.xyz", "api.together.ai"),
        "https://www.together.ai/pricing",
        words("""
            openai/gpt-oss-120b meta-models/Muse-Spark-Open-816B-A42B
            meta-models/Muse-Glimmer-30B deepseek-ai/DeepSeek-V4-Pro-0813 deepseek-ai/DeepSeek-V4.1-Flash
            Qwen/Qwen3.8-Flash Qwen/Qwen3.7-Plus Qwen/Qwen3.5-9B Qwen/Qwen2.5-7B-Instruct-Turbo
            moonshotai/Kimi-K3.1-Pro moonshotai/Kimi-K3 zai-org/GLM-5.3 zai-org/GLM-5.3-Flash
            MiniMaxAI/MiniMax-M3.1-Flash
        """),
        prefix="together_ai/",
        other="together",
    ),
    Provider(
        "fireworks",
        ("api.fireworks.ai",),
        "https://fireworks.ai/pricing",
        tuple(
            f"accounts/fireworks/models/{name}"
            for name in words("""
                deepseek-v4p1-flash kimi-k3p1-pro kimi-k3 glm-5p3 glm-5p3-flash gpt-oss-20b minimax-m3p1-flash
                muse-spark-open qwen3p8-max qwen3p7-plus llama-v3p3-70b-instruct
            """)
        ),
        prefix="fireworks_ai/",
        other="fireworks",
    ),
    Provider(
        "azure",
        ("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com"),
        "https://azure.microsoft.com/en-us/pricing/details/azure-openai/",
        words("""
            gpt-6-astra gpt-6.1-sol gpt-6.1-terra gpt-6-sol gpt-6-luna gpt-5.6 gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna
            gpt-5.5 gpt-5.4 gpt-5.4-mini gpt-5.4-nano gpt-5.2 gpt-5.1 gpt-5 gpt-5-mini gpt-5-nano gpt-4.1 gpt-4.1-mini
            gpt-4.1-nano gpt-4o gpt-4o-2024-05-13 gpt-4o-mini
        """),
        prefix="azure/",
        other="azure",
    ),
)
OPENROUTER = Provider(
    "openrouter",
    ("openrouter.ai",),
    "https://openrouter.ai/models",
    words("""
        openai/gpt-6-astra openai/gpt-6.1-sol openai/gpt-6.1-terra openai/gpt-6-luna openai/gpt-5.5 openai/gpt-5.4
        openai/gpt-5.4-mini openai/gpt-5.4-nano openai/gpt-5-mini openai/gpt-5-nano openai/gpt-4.1 openai/gpt-4.1-mini
        openai/gpt-4o openai/gpt-4o-2024-05-13 openai/gpt-4o-mini anthropic/claude-fable-5.1 anthropic/claude-opus-5.5
        anthropic/claude-sonnet-5.5 anthropic/claude-haiku-5.5 anthropic/claude-sonnet-4.6 anthropic/claude-haiku-4.5
        google/gemini-4-argon google/gemini-3.8-flash google/gemini-3.5-flash google/gemini-3.5-flash-lite
        google/gemini-2.5-pro google/gemini-2.5-flash x-ai/grok-4.7 x-ai/grok-4.6 z-ai/glm-5.3 z-ai/glm-5.3-flash
        moonshotai/kimi-k3 meta-llama/llama-3.3-70b-instruct
    """),
    other="openrouter",
)

Numbers = dict[str, float | int]


def main() -> int:
    """Write the table, with a comment where the two sources differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prices", type=Path, metavar="MODEL_PRICES_JSON")
    parser.add_argument("--date", type=dt.date.fromisoformat, required=True)
    parser.add_argument("--version", required=True, help='such as "litellm 1.110.2"')
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    listed = json.loads(arguments.prices.read_text(encoding="utf-8"))
    second = f"genai-prices {version('genai-prices')}"
    lines = [
        HEADER,
        'kind = "prices"',
        f"date = {arguments.date}",
        f'source = "{arguments.version}, model_prices_and_context_window.json; OpenRouter: {second}"',
        'licence = "MIT (litellm: Berri AI; genai-prices: Pydantic Services Inc.)"',
    ]
    tally = {"entries": 0, "same": 0, "differ": 0, "only here": 0}
    for provider in (*PROVIDERS, OPENROUTER):
        source = second if provider is OPENROUTER else arguments.version
        lines += ["", f"[providers.{provider.key}]", f"hosts = {json.dumps(list(provider.hosts))}"]
        lines += [f'source = "{source}, from {provider.page}"', f"[providers.{provider.key}.models]"]
        for name in provider.names:
            other = second_opinion(provider, name, arguments.date)
            if provider is OPENROUTER:
                numbers = other
                if numbers is None:
                    sys.stderr.write(f"{provider.key}: {name} is not in {second}\n")
                    continue
            else:
                entry = listed.get(provider.prefix + name)
                numbers = priced(provider, name, entry, arguments.date)
                if numbers is None:
                    continue
                verdict = agreement(numbers, other)
                tally[verdict] += 1
                if verdict == "differ" and other is not None:
                    read, written = other["usd_per_mtok_in"], other["usd_per_mtok_out"]
                    lines.append(f"# {second} has {read} in, {written} out for the next one.")
            tally["entries"] += 1
            inside = ", ".join(f"{key} = {value}" for key, value in numbers.items())
            lines.append(f'"{name}" = {{ {inside} }}')
        for name in odd_snapshots(provider, listed, arguments.date):
            sys.stderr.write(f"{provider.key}: {name} costs otherwise than the model it would be found as\n")
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.stdout.write(f"{arguments.out}: {', '.join(f'{n} {what}' for what, n in tally.items())}\n")
    return 0


def priced(provider: Provider, name: str, entry: Mapping[str, Any] | None, date: dt.date) -> Numbers | None:
    """Return an entry of litellm's in USD per million tokens; None where there is none, or the model is retired."""
    what = f"{provider.key}: {name}"
    if entry is None:
        sys.stderr.write(f"{what} is not in the first source\n")
        return None
    if is_retired(entry, date):
        sys.stderr.write(f"{what} was retired on {entry['deprecation_date']}\n")
        return None
    up_to = next((int(found[1]) * 1000 for key in entry if (found := ABOVE.match(key))), None)
    tiers = entry.get("tiered_pricing")
    if tiers:
        up_to, entry = int(tiers[0]["range"][1]), tiers[0]
    return numbers_of(
        entry["input_cost_per_token"] * 1e6,
        entry["output_cost_per_token"] * 1e6,
        (entry.get("cache_read_input_token_cost") or 0) * 1e6,
        (entry.get("cache_creation_input_token_cost") or 0) * 1e6,
        up_to,
    )


def odd_snapshots(provider: Provider, listed: Mapping[str, Any], date: dt.date) -> Iterator[str]:
    """Yield names that the table would price as another name of the provider's, at a price that is not theirs."""
    for key, entry in listed.items():
        name = key.removeprefix(provider.prefix)
        as_name = next((one for one in spellings(name) if one in provider.names), name)
        if as_name == name or not key.startswith(provider.prefix) or is_retired(entry, date):
            continue
        base = listed.get(provider.prefix + as_name, {})
        costs = [(entry.get(key), base.get(key)) for key in ("input_cost_per_token", "output_cost_per_token")]
        if any(None not in pair and pair[0] != pair[1] for pair in costs):
            yield name


def is_retired(entry: Mapping[str, Any], date: dt.date) -> bool:
    """Return whether a model was retired by a day."""
    retired = entry.get("deprecation_date")
    return retired is not None and dt.date.fromisoformat(retired) <= date


def numbers_of(read: float, written: float, cached: float, cache_write: float, up_to: int | None) -> Numbers:
    """Return the keys of an entry; a 0 in the sources stands for "no price of its own"."""
    numbers: Numbers = {"usd_per_mtok_in": tidy(read), "usd_per_mtok_out": tidy(written)}
    if 0 < cached < read:
        numbers["usd_per_mtok_cached_in"] = tidy(cached)
    if cache_write > read:
        numbers["usd_per_mtok_cache_write"] = tidy(cache_write)
    if up_to is not None:
        numbers["up_to_prompt_tokens"] = up_to
    return numbers


def tidy(value: float) -> float:
    """Return a price without the noise of its conversion."""
    return float(f"{value:.6g}")


def second_opinion(provider: Provider, name: str, date: dt.date) -> Numbers | None:
    """Return the prices of genai-prices for a model on a day; None where it has none."""
    from genai_prices.data import providers  # noqa: PLC0415 - needed only where a table is derived

    for one in providers:
        if one.id != provider.other:
            continue
        for model in candidates(one.models, name):
            price = model.get_prices(dt.datetime(date.year, date.month, date.day, tzinfo=dt.UTC))
            base, up_to = {}, None
            for key in ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"):
                value = getattr(price, key, None)
                if hasattr(value, "base"):
                    up_to, value = value.tiers[0].start, value.base
                base[key] = float(value or 0)
            if base["input_mtok"] and base["output_mtok"]:
                return numbers_of(*base.values(), up_to)
    return None


def candidates(models: Any, name: str) -> Iterator[Any]:
    """Yield the model of that name, then those that say they match it."""
    yield from (m for m in models if m.id == name)
    yield from (m for m in models if m.id != name and m.is_match(name))


def agreement(numbers: Numbers, other: Numbers | None) -> str:
    """Return whether the second source has the same prices of input and output."""
    if other is None:
        return "only here"
    pairs = ((numbers[key], other[key]) for key in ("usd_per_mtok_in", "usd_per_mtok_out"))
    return "differ" if any(abs(one - two) > SAME * one for one, two in pairs) else "same"


if __name__ == "__main__":
    raise SystemExit(main())
