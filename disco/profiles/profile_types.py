"""The contents of profile files: devices, servers and prompt lengths, checked when they are loaded.

Every number in a profile is measured or published, so its `source` is mandatory.
"""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from disco.profiles.length_distribution import Lengths
from disco.profiles.line_fit import LinearFit
from disco.profiles.time_distribution import Empirical

__all__ = [
    "DeviceProfile",
    "Energy",
    "FlopsPerToken",
    "LengthsProfile",
    "NonNegative",
    "Profile",
    "QuantileTable",
    "ServerProfile",
    "Strict",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """The content of a file, without unknown keys."""

    # A misspelt key must raise an error: if it were ignored, the setting would have no effect.
    model_config = ConfigDict(frozen=True, extra="forbid")


class QuantileTable(Strict):
    """A distribution as a table of a few dozen quantiles.

    Attributes:
        levels: probabilities, strictly increasing, first 0 and last 1.
        values: the quantiles at those levels.
        mean: the mean of the data that the table was derived from (the table's own mean is close to it).
    """

    levels: tuple[NonNegative, ...] = Field(min_length=2)
    values: tuple[NonNegative, ...] = Field(min_length=2)
    mean: NonNegative

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        Empirical.from_quantiles(self.levels, self.values)
        if (self.levels[0], self.levels[-1]) != (0.0, 1.0):
            raise ValueError("levels must run from 0 to 1")
        return self

    def empirical(self) -> Empirical:
        """Return the distribution with straight lines between the table's entries."""
        return Empirical.from_quantiles(self.levels, self.values)


class FlopsPerToken(Strict):
    """Floating-point operations per token; attention makes prefill more expensive for longer prompts.

    Attributes:
        prompt_tokens: prompt lengths at which `prefill` is given, strictly increasing.
        prefill: FLOPs per prompt token at those lengths.
        decode: FLOPs per generated token.
    """

    prompt_tokens: tuple[Positive, ...] = Field(min_length=1)
    prefill: tuple[Positive, ...] = Field(min_length=1)
    decode: Positive

    @model_validator(mode="after")
    def _fit_each_other(self) -> Self:
        if len(self.prompt_tokens) != len(self.prefill):
            raise ValueError("prompt_tokens and prefill must have the same number of entries")
        if any(b <= a for a, b in zip(self.prompt_tokens, self.prompt_tokens[1:], strict=False)):
            raise ValueError("prompt_tokens must increase")
        return self

    def prefill_at(self, prompt_tokens: float) -> float:
        """Return the FLOPs per prompt token at a prompt length: linear between the entries, constant outside.

        Args:
            prompt_tokens: length of the prompt.
        """
        return float(np.interp(prompt_tokens, self.prompt_tokens, self.prefill))


class Energy(Strict):
    """Measured energy, in joules per token."""

    prefill_j_per_token: NonNegative
    decode_j_per_token: NonNegative


class DeviceProfile(Strict):
    """How fast a model on a device is, and what a token costs in operations and energy.

    Attributes:
        name: the file's name without `.toml`.
        source: where the numbers come from.
        device, model: what was measured.
        prefill_tps, decode_tps: prompt and generated tokens per second.
        k_s_per_token, c_s: the line TTFT = k·l + c in seconds; without `k_s_per_token`, k is 1/prefill_tps.
        r2, n: quality of the fit and number of measurements, where the line is a fit.
        load_s: seconds to load the model; None when unknown.
        flops: operations per token; None when unknown.
        energy: energy per token; None when not measured.
        context_tokens: tokens of prompt and answer together; None when unknown.
        measured_on: date of measurement.
        notes: other information for a reader.
    """

    kind: Literal["device"] = "device"
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    licence: str | None = None
    device: str | None = None
    model: str | None = None
    measured_on: dt.date | None = None
    notes: str | None = None
    prefill_tps: Positive
    decode_tps: Positive
    k_s_per_token: Positive | None = None
    c_s: NonNegative = 0.0
    r2: float | None = None
    n: int | None = None
    load_s: NonNegative | None = None
    context_tokens: int | None = Field(default=None, gt=0)
    flops: FlopsPerToken | None = None
    energy: Energy | None = None

    @property
    def line(self) -> LinearFit:
        """TTFT in seconds as a line in the prompt length, with the model loaded."""
        k = 1.0 / self.prefill_tps if self.k_s_per_token is None else self.k_s_per_token
        return LinearFit(k_s_per_token=k, c_s=self.c_s, r2=1.0 if self.r2 is None else self.r2, n=self.n or 0)

    def ttft_s(self, prompt_tokens: float, *, cold: bool = False) -> float:
        """Return the seconds to the first token; `cold` adds the time to load the model, if known.

        Args:
            prompt_tokens: length of the prompt.
            cold: whether the model has to be loaded first.
        """
        return self.line.ttft_s(prompt_tokens) + ((self.load_s or 0.0) if cold else 0.0)


class ServerProfile(Strict):
    """How long a server takes to its first token, and what it charges.

    Attributes:
        name: the file's name without `.toml`.
        source, licence: where the data come from and under which terms.
        provider, model: what was measured.
        collected: when the data were collected, in words.
        stands_for: the service in the paper's experiments that this server replaces; None when it replaces none.
        rows: number of requests that the table is derived from, without failed ones.
        conditions: prompt, load and client of the measurement.
        price: the model's name in the price table; None when the table does not have it.
        ttft_s: seconds to the first token.
        tpot_s: seconds per output token, each an AVERAGE over one request. It says how fast a server writes, not how
            much the gaps vary within an answer. None where the source has no token counts.
    """

    kind: Literal["server"] = "server"
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    provider: str | None = None
    model: str | None = None
    collected: str | None = None
    stands_for: str | None = None
    conditions: str | None = None
    notes: str | None = None
    rows: int = Field(gt=0)
    price: str | None = None
    ttft_s: QuantileTable
    tpot_s: QuantileTable | None = None

    def ttft(self) -> Empirical:
        """Return the distribution of the time to first token, in seconds."""
        return self.ttft_s.empirical()

    def tpot(self) -> Empirical | None:
        """Return the distribution over requests of the mean time per output token, s; None when unknown."""
        return None if self.tpot_s is None else self.tpot_s.empirical()

    @property
    def decode_tps(self) -> float | None:
        """Generated tokens per second of the median request; None when unknown."""
        tpot = self.tpot()
        return None if tpot is None else 1.0 / tpot.quantile(0.5)


class LengthsProfile(Strict):
    """The lengths of a workload's prompts and answers; the two are treated as independent of each other."""

    kind: Literal["lengths"] = "lengths"
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    collected: str | None = None
    notes: str | None = None
    rows: int = Field(gt=0)
    prompt_tokens: QuantileTable
    output_tokens: QuantileTable

    def prompt(self, *, weight: float = 200.0, half_life: float | None = None) -> Lengths:
        """Return the prompt lengths as a distribution with the weight of `weight` observations.

        Args:
            weight: how many observations the profile counts as.
            half_life: number of observations after which one counts half; None: all count the same.
        """
        return _lengths(self.prompt_tokens, weight, half_life)

    def output(self, *, weight: float = 200.0, half_life: float | None = None) -> Lengths:
        """Return the answer lengths as a distribution with the weight of `weight` observations.

        Args:
            weight: how many observations the profile counts as.
            half_life: number of observations after which one counts half; None: all count the same.
        """
        return _lengths(self.output_tokens, weight, half_life)


Profile = DeviceProfile | ServerProfile | LengthsProfile


def _lengths(table: QuantileTable, weight: float, half_life: float | None) -> Lengths:
    # Equally spaced levels turn the continuous table into whole token counts.
    points = 4096
    values = table.empirical().quantile((np.arange(points) + 0.5) / points)
    tokens = np.rint(values).astype(np.int64)
    return Lengths.from_counts(tokens, np.full(points, weight / points), half_life=half_life)
