"""Survey of a trace too long to hold in memory: the lengths and times that policies plan on, in one pass."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disco.profiles import Empirical, Lengths
from disco.replay.formats import Skipped, read_chunks

__all__ = ["Survey", "survey"]

KEPT = 1 << 18  # limit on the times to first token that are kept


@dataclass(frozen=True, slots=True)
class Survey:
    """Summary of a whole trace.

    Attributes:
        name: name of the trace.
        source: where the trace comes from, in words.
        requests: number of requests.
        lasts_s: from the first request to the last, s.
        lengths: of all prompts, tokens.
        output_tokens: mean length of the answers, tokens.
        ttft: of the server; None if fewer than half of the requests have one. From every k-th request of a long trace.
        ttft_known: share of requests with a TTFT of the server.
        skipped: rows that were left out.
    """

    name: str
    source: str
    requests: int
    lasts_s: float
    lengths: Lengths
    output_tokens: float
    ttft: Empirical | None
    ttft_known: float
    skipped: Skipped


def survey(
    path: str | os.PathLike[str],
    *,
    chunk_rows: int,
    format: str = "auto",  # noqa: A002 (the users' word)
    skip_invalid: bool = False,
) -> Survey:
    """Read a trace once, `chunk_rows` requests at a time.

    Args:
        path: as for `formats.read_chunks`, like the rest.
        chunk_rows: at least 1.
        format: of the file.
        skip_invalid: leave out rows that are not valid.

    Raises:
        ConfigurationError: as for `formats.read_chunks`.
    """
    counts: dict[int, int] = {}
    requests = known = outputs = 0
    first_s, last_s = np.nan, 0.0
    name = source = ""
    kept = _Thinning()
    with read_chunks(
        os.fspath(path), chunk_rows=chunk_rows, format=format, skip_invalid=skip_invalid
    ) as chunks:
        for chunk in chunks:
            lengths, each = np.unique(chunk.prompt_tokens, return_counts=True)
            for length, count in zip(lengths.tolist(), each.tolist(), strict=True):
                counts[length] = counts.get(length, 0) + count
            seen = chunk.ttft_s[~np.isnan(chunk.ttft_s)]
            kept.add(seen)
            requests, known, outputs = (
                requests + len(chunk),
                known + seen.size,
                outputs + int(chunk.output_tokens.sum()),
            )
            if np.isnan(first_s):
                first_s, name, source = float(chunk.arrival_s[0]), chunk.name, chunk.source
            last_s = float(chunk.arrival_s[-1])
        skipped = chunks.skipped
    return Survey(
        name=name,
        source=source,
        requests=requests,
        lasts_s=last_s - first_s,
        lengths=Lengths.from_counts(list(counts), list(counts.values())),
        output_tokens=outputs / requests,
        ttft=Empirical.from_samples(kept.values()) if known * 2 > requests else None,
        ttft_known=known / requests,
        skipped=skipped,
    )


class _Thinning:
    """Every k-th of a stream of values; k grows so that at most `KEPT` are held. Mutable: all fields."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.float64]] = []
        self.held = 0
        self.stride = 1
        self.skip = 0  # values of the stream to skip before the next one that is kept

    def add(self, values: NDArray[np.float64]) -> None:
        """Take the next values of the stream."""
        # Copies: a slice would keep the whole chunk alive.
        self.parts.append(values[self.skip :: self.stride].copy())
        self.skip = (self.skip - values.size) % self.stride
        self.held += self.parts[-1].size
        while self.held > KEPT:
            last = self.held - 1
            self.parts = [np.concatenate(self.parts)[::2].copy()]
            self.held = self.parts[0].size
            # If the last value held is kept, its index is even: the value after it is dropped.
            self.skip += 0 if last % 2 else self.stride
            self.stride *= 2

    def values(self) -> NDArray[np.float64]:
        """Return the values kept, in order."""
        return np.concatenate(self.parts)
