"""A trace: many requests as columns, checked when they are read.

This is the one record format for everything that can be replayed: public workloads, benchmark output, recordings of
a live client, and synthetic requests. Values that a source does not have are NaN, and are drawn from profiles when the
trace is replayed (`scenario.resolve`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError

__all__ = ["Gaps", "Trace"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between tokens of many answers, concatenated.

    Attributes:
        offsets: answer i has the gaps `offsets[i]` to `offsets[i + 1]`; int64, shape (n + 1,), from 0.
        values_s: seconds, float64, shape (offsets[-1],).
    """

    offsets: Ints
    values_s: Floats

    def of(self, i: int) -> Floats:
        """Return the gaps of answer i; empty if none are known."""
        return self.values_s[self.offsets[i] : self.offsets[i + 1]]

    def take(self, start: int, stop: int) -> Gaps:
        """Return the gaps of answers `start` to `stop`."""
        offsets = self.offsets[start : stop + 1]
        return Gaps(offsets - offsets[0], self.values_s[offsets[0] : offsets[-1]])

    def without(self, answers: NDArray[np.bool_]) -> Gaps:
        """Return the gaps without those of some answers; `answers` has shape (n,)."""
        lengths = np.diff(self.offsets)
        offsets = np.concatenate([[0], np.cumsum(np.where(answers, 0, lengths))])
        return Gaps(offsets, self.values_s[np.repeat(~answers, lengths)])


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival. All columns have shape (n,), n >= 1; build one with `Trace.of`.

    Attributes:
        arrival_s: seconds since the first request, not decreasing.
        prompt_tokens: at least 0.
        output_tokens: length of the complete answer, at least 0.
        ttft_s: the server's time to first token as the user saw it; NaN where unknown.
        device_ttft_s: the device's, without queueing; NaN where unknown.
        tpot_s: the server's mean time per output token after the first; NaN where unknown.
        device_tpot_s: the device's; NaN where unknown.
        confidence: a score in [0, 1] for policies that judge answers; NaN where unknown.
        gaps: the server's times between tokens, if known; they take precedence over `tpot_s`.
        features: further columns by name (a client's id, a model's name): arrays of shape (n,).
        name: for tables and plots.
        source: where the trace comes from, in words.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    device_ttft_s: Floats
    tpot_s: Floats
    device_tpot_s: Floats
    confidence: Floats
    gaps: Gaps | None = None
    features: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    name: str = "trace"
    source: str = ""

    @classmethod
    def of(
        cls,
        *,
        arrival_s: Sequence[float] | Floats,
        prompt_tokens: Sequence[int] | Ints,
        output_tokens: Sequence[int] | Ints,
        ttft_s: Sequence[float] | Floats | None = None,
        device_ttft_s: Sequence[float] | Floats | None = None,
        tpot_s: Sequence[float] | Floats | None = None,
        device_tpot_s: Sequence[float] | Floats | None = None,
        confidence: Sequence[float] | Floats | None = None,
        gaps: Gaps | None = None,
        features: Mapping[str, NDArray[Any]] | None = None,
        name: str = "trace",
        source: str = "",
    ) -> Trace:
        """Build and check a trace; a column that is not given is unknown for all requests.

        Args:
            arrival_s: when each request came, s, not falling.
            prompt_tokens: lengths of the prompts.
            output_tokens: lengths of the complete answers.
            ttft_s: the server's times to first token, s; NaN: not known.
            device_ttft_s: the device's.
            tpot_s: the server's times per output token, s; NaN: not known.
            device_tpot_s: the device's.
            confidence: how sure the device's model was, in [0, 1]; NaN: not known.
            gaps: the server's times between tokens; None: not known.
            features: further columns, by name.
            name: of the trace, for reports.
            source: where it comes from.

        Raises:
            ConfigurationError: columns of different lengths, no request, times that are negative, not finite or
                not sorted; the message names the column and the row (from 0).
        """
        arrivals = np.asarray(arrival_s, dtype=np.float64)
        n = arrivals.size

        def known(values: Sequence[float] | Floats | None) -> Floats:
            return np.full(n, np.nan) if values is None else np.asarray(values, dtype=np.float64)

        trace = cls(
            arrival_s=arrivals,
            prompt_tokens=np.asarray(prompt_tokens, dtype=np.int64),
            output_tokens=np.asarray(output_tokens, dtype=np.int64),
            ttft_s=known(ttft_s),
            device_ttft_s=known(device_ttft_s),
            tpot_s=known(tpot_s),
            device_tpot_s=known(device_tpot_s),
            confidence=known(confidence),
            gaps=gaps,
            features=dict(features or {}),
            name=name,
            source=source,
        )
        trace.check()
        return trace

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def check(self) -> None:
        """Check the columns; raises as `of`.

        Raises:
            ConfigurationError: as `of`.
        """
        n = len(self)
        if n == 0:
            raise ConfigurationError(f"trace {self.name!r} holds no request")
        for column in _COLUMNS:
            values = getattr(self, column)
            if values.shape != (n,):
                raise ConfigurationError(
                    f"trace {self.name!r}: column {column} has shape {values.shape}, arrival_s has ({n},)"
                )
            unknown = np.isnan(values) if column in _MAY_BE_UNKNOWN else np.zeros(n, dtype=bool)
            bad = ~unknown & ~(np.isfinite(values) & (values >= 0))
            if bad.any():
                row = int(bad.argmax())
                raise ConfigurationError(
                    f"trace {self.name!r}, row {row}, column {column}: {values[row]} is negative or not finite"
                )
        steps = np.diff(self.arrival_s)
        if (steps < 0).any():
            row = int((steps < 0).argmax()) + 1
            raise ConfigurationError(
                f"trace {self.name!r}, row {row}: the request arrives at {self.arrival_s[row]} s, before the row above "
                f"it ({self.arrival_s[row - 1]} s); sort the trace by arrival time"
            )
        if self.gaps is not None and self.gaps.offsets.shape != (n + 1,):
            raise ConfigurationError(
                f"trace {self.name!r}: gaps do not match its {n} requests; give {n + 1} offsets"
            )
        for name, values in self.features.items():
            if values.shape != (n,):
                raise ConfigurationError(
                    f"trace {self.name!r}: feature {name} does not match its {n} requests; give one value per request"
                )

    def take(self, start: int, stop: int) -> Trace:
        """Return requests `start` to `stop`, with unchanged times."""
        stop = min(stop, len(self))
        columns = {column: getattr(self, column)[start:stop] for column in _COLUMNS}
        return replace(
            self,
            **columns,
            gaps=None if self.gaps is None else self.gaps.take(start, stop),
            features={name: values[start:stop] for name, values in self.features.items()},
        )


_COLUMNS = tuple(f.name for f in fields(Trace) if f.name not in ("gaps", "features", "name", "source"))
_MAY_BE_UNKNOWN = frozenset(("ttft_s", "device_ttft_s", "tpot_s", "device_tpot_s", "confidence"))
