"""Requests of each run: lengths like Alpaca's or from the user's file, one request in 30 s on average."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError
from disco.replay import Trace, alpaca_like
from papers.text_files import open_text

__all__ = ["LengthSample", "Requests", "read_lengths"]

MEAN_INTERVAL_S: Final = 30.0

# Far from the seeds of later draws (TTFT, time per token), so that the streams are not correlated.
_SEED_OFFSET: Final = 1_000_003

_COLUMNS: Final = ("prompt_tokens", "output_tokens")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthSample:
    """Lengths of prompts and their answers, in tokens.

    Attributes:
        prompt_tokens, output_tokens: of each request; int64, shape (n,).
        name: name of the file.
    """

    prompt_tokens: Ints
    output_tokens: Ints
    name: str


@dataclass(frozen=True, slots=True)
class Requests:
    """Function that returns the requests of a run from its seed; can be pickled.

    Attributes:
        requests: number of requests in a run.
        lengths: sample from which lengths are drawn, prompts with their answers; None: `synthetic.alpaca_like`.
    """

    requests: int
    lengths: LengthSample | None = None

    @property
    def what(self) -> str:
        """Description of the lengths, for tables."""
        if self.lengths is None:
            return "lengths: stand-in for Alpaca, log-normal with its means and P99"
        return f"lengths: {self.lengths.prompt_tokens.size:,} prompts of {self.lengths.name}"

    def __call__(self, seed: int) -> Trace:
        seed += _SEED_OFFSET
        if self.lengths is None:
            return alpaca_like(self.requests, seed, mean_interval_s=MEAN_INTERVAL_S)
        rng = np.random.default_rng(seed)
        known = self.lengths.prompt_tokens.size
        rows = rng.choice(known, self.requests, replace=known < self.requests)
        return Trace.of(
            arrival_s=np.concatenate([[0.0], rng.exponential(MEAN_INTERVAL_S, self.requests - 1).cumsum()]),
            prompt_tokens=self.lengths.prompt_tokens[rows],
            output_tokens=self.lengths.output_tokens[rows],
            name=self.lengths.name,
        )


def read_lengths(path: str | os.PathLike[str]) -> LengthSample:
    """Read a CSV file with the columns prompt_tokens and output_tokens; other columns are ignored.

    Raises:
        ConfigurationError: no such file, no such column, no row, or a value that is not a number of tokens (with line
            and column).
    """
    file = Path(path)
    values: dict[str, list[int]] = {column: [] for column in _COLUMNS}
    with open_text(file) as text:
        reader = csv.DictReader(text)
        missing = [column for column in _COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise ConfigurationError(
                f"{file} has no column {missing[0]}; its first line must name prompt_tokens and output_tokens"
            )
        for row in reader:
            for column in _COLUMNS:
                cell = (row[column] or "").strip()
                least = 1 if column == "prompt_tokens" else 0  # an empty prompt has nothing to prefill
                if not (cell.isascii() and cell.isdigit() and int(cell) >= least):
                    raise ConfigurationError(
                        f"{file}, line {reader.line_num}, column {column}: not a whole number of tokens, at least "
                        f"{least}; fix the value or leave the line out"
                    )
                values[column].append(int(cell))
    if not values["prompt_tokens"]:
        raise ConfigurationError(f"{file} has no lengths below its first line; add at least one row")
    return LengthSample(
        np.array(values["prompt_tokens"], dtype=np.int64),
        np.array(values["output_tokens"], dtype=np.int64),
        file.name,
    )
