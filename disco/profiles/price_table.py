"""What models cost: the contents of price files, with the day and the source of every price."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from disco.profiles.profile_types import NonNegative, Strict

__all__ = ["Price", "PriceTable", "ProviderPrices"]

# A host's name, an IPv4 address, or an IPv6 address as URLs have it, without the brackets.
_HOST: Final = re.compile(r"(?:\*\.)?[\w-]+(?:\.[\w-]+)*|[\da-fA-F:]+:[\da-fA-F:.]*")


class Price(Strict):
    """What a server charges, in USD per million tokens.

    Attributes:
        usd_per_mtok_in: for input (prompt) tokens.
        usd_per_mtok_out: for output tokens, reasoning included.
        usd_per_mtok_cached_in: for input tokens that the server has in its cache; None: as for other input.
        usd_per_mtok_cache_write: for input tokens that it writes into its cache; None: as for other input.
        up_to_prompt_tokens: the prices hold up to this length of the prompt, longer prompts cost more; None: always.
    """

    usd_per_mtok_in: NonNegative
    usd_per_mtok_out: NonNegative
    usd_per_mtok_cached_in: NonNegative | None = None
    usd_per_mtok_cache_write: NonNegative | None = None
    up_to_prompt_tokens: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _cached_input_is_no_dearer(self) -> Self:
        if (self.usd_per_mtok_cached_in or 0.0) > self.usd_per_mtok_in:
            raise ValueError("usd_per_mtok_cached_in must not be above usd_per_mtok_in")
        return self

    @property
    def cached_share(self) -> float:
        """The part of the input price that a cached input token costs, 0 to 1."""
        if self.usd_per_mtok_cached_in is None or self.usd_per_mtok_in == 0:
            return 1.0
        return self.usd_per_mtok_cached_in / self.usd_per_mtok_in

    def usd(self, prompt_tokens: int, answer_tokens: int) -> float:
        """Return what an answer of `answer_tokens` tokens to a prompt of `prompt_tokens` costs, USD, nothing cached."""
        return (self.usd_per_mtok_in * prompt_tokens + self.usd_per_mtok_out * answer_tokens) / 1e6


class ProviderPrices(Strict):
    """The prices of one provider.

    Attributes:
        hosts: the hosts of its API; "*.example.com" stands for every host under example.com.
        date: the day the prices were valid; None: the table's.
        source: where they come from; None: the table's.
        models: price by model name, as the provider's API takes it.
    """

    hosts: tuple[str, ...] = ()
    date: dt.date | None = None
    source: str | None = None
    models: Mapping[str, Price]

    @field_validator("hosts")
    @classmethod
    def _hosts_are_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"give its name alone, such as llm.example.org, not {host!r}")
        return tuple(host.lower() for host in hosts)

    def is_at(self, host: str) -> bool:
        """Return whether its API is at this host."""
        return any(
            host.endswith(known[1:]) if known.startswith("*.") else host == known for known in self.hosts
        )


class PriceTable(Strict):
    """The content of a price file. Prices change: override those that are out of date.

    Attributes:
        date: the day the prices were valid.
        source: where they come from.
        licence: the terms of that source; None: none are stated.
        models: price by model name, whatever server answers.
        providers: the prices of each provider, by its name.
    """

    kind: Literal["prices"] = "prices"
    date: dt.date
    source: str = Field(min_length=1)
    licence: str | None = None
    models: Mapping[str, Price] = Field(default_factory=dict)
    providers: Mapping[str, ProviderPrices] = Field(default_factory=dict)
