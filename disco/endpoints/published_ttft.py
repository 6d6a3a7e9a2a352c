"""What a `disco serve` says of its own TTFT: at most 100 quantiles, how many answers they are of, and how old.

A server that publishes says so by a header of its answers and of its list of models, so no other server is asked. What
it says is checked, and may still be wrong: see `profiles.told_times` for what it counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self

import httpx2
import openai
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

__all__ = ["HEADER", "MOST_QUANTILES", "PATH", "VERSION", "PublishedTtft", "Told", "ask_ttft"]

HEADER: Final = "x-disco-ttft"
"""The header of a server that publishes; its value is the version of the document."""
VERSION: Final = "1"
PATH: Final = "/disco/ttft"
"""Below the API's `/v1`; the query names the model."""
MOST_QUANTILES: Final = 100
_LONGEST_S: Final = 1000.0
_LIMIT_S: Final = 5.0

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PublishedTtft(BaseModel):
    """The document. Times are in seconds.

    Attributes:
        version, unit: of the document.
        model: that the requests named.
        count: answers whose first content came, as far as they still count.
        censored: answers given up before, as far as they still count.
        newest_age_s, oldest_age_s: since the newest and the oldest of these answers.
        quantiles_s: n of them, rising, at the levels 1/n, 2/n, ... 1; of the time from a request's arrival to the first
            content sent, so without the network. Empty where nothing was measured.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    version: Literal[1] = 1
    unit: Literal["s"] = "s"
    model: Annotated[str, Field(max_length=1000)]
    count: Annotated[int, Field(ge=0, le=10**9)]
    censored: Annotated[int, Field(ge=0, le=10**9)] = 0
    newest_age_s: Seconds = 0.0
    oldest_age_s: Seconds = 0.0
    quantiles_s: Annotated[
        list[Annotated[float, Field(ge=0, le=_LONGEST_S)]], Field(max_length=MOST_QUANTILES)
    ] = []

    @model_validator(mode="after")
    def _is_a_distribution(self) -> Self:
        values = self.quantiles_s
        if any(later < earlier for earlier, later in pairwise(values)):
            raise ValueError("quantiles_s must not fall")
        if self.newest_age_s > self.oldest_age_s:
            raise ValueError("the newest answer must not be older than the oldest")
        if bool(values) != (self.count > 0):
            raise ValueError("there must be quantiles where there are answers, and only there")
        return self

    @staticmethod
    def is_in(headers: Mapping[str, str]) -> bool:
        """Return whether a response with these headers is of a server that publishes."""
        return headers.get(HEADER) == VERSION


@dataclass(frozen=True, slots=True)
class Told:
    """What a server said.

    Attributes:
        published: the document.
        round_trip_s: how long the question took: the network, and next to nothing else.
        at: when the answer came, monotonic clock, s.
    """

    published: PublishedTtft
    round_trip_s: float
    at: float


async def ask_ttft(client: openai.AsyncOpenAI, model: str) -> Told | None:
    """Ask a server for its TTFT under a model's name; None where it gives no proper answer in time."""
    options: Any = {
        "max_retries": 0,
        "timeout": _LIMIT_S,
        "security": {"bearer_auth": True},
        "params": {"model": model},
    }
    began_at = time.monotonic()
    try:
        answer = await client.get(PATH, cast_to=httpx2.Response, options=options)
        now = time.monotonic()
        published = PublishedTtft.model_validate_json(answer.content)
    except (openai.OpenAIError, httpx2.HTTPError, ValidationError, ValueError):
        return None
    return Told(published, now - began_at, now)
