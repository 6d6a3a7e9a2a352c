"""Traces of requests with the paper's five fields, as JSON lines.

    {"prompt_length": 27, "output_length": 94, "acceptance_seq": [1, 0, 1], "arrival_time_ms": 5.3, "drafter_id": 38}

`acceptance_seq` has one entry for each token of the answer: whether the drafter, given the true tokens before it,
would have drafted it. So it does not depend on any window. (A list recorded in rounds of one window does: what is
behind the first wrong token of a round was drafted behind a wrong token.) An optional sixth field, `confidence_seq`,
has the drafter's top probability at each token, for windows that stop by it. `python -m papers.fleet record` makes
such traces.

Source of the fields: the DSD paper, Table 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Final

from disco.errors import ConfigurationError, nearest
from disco.record.text_files import text_of

__all__ = ["FIELDS", "DraftedRequest", "read_drafts", "write_drafts"]

FIELDS: Final = ("prompt_length", "output_length", "acceptance_seq", "arrival_time_ms", "drafter_id")
_CONFIDENCE: Final = "confidence_seq"


@dataclass(frozen=True)
class DraftedRequest:
    """A request.

    Attributes:
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        accepts: for each token of the answer 1 where the drafter agrees, else 0. A shorter sequence is repeated.
        arrival_s: used by arrivals of the kind "trace".
        drafter: number of its drafter; used by arrivals of the kind "trace", modulo the number of drafters.
        confidence: the drafter's top probability for each token; empty where it is not known.
    """

    prompt_tokens: int
    output_tokens: int
    accepts: bytes
    arrival_s: float = 0.0
    drafter: int = 0
    confidence: tuple[float, ...] = ()

    @cached_property
    def runs(self) -> list[int]:
        """For each position, how many tokens from there on are drafted rightly, one after another.

        Shape (output_tokens + 1,). Nothing is right from the answer's end on.
        """
        runs = [0] * (self.output_tokens + 1)
        accepts, length = self.accepts, len(self.accepts)
        for place in range(self.output_tokens - 1, -1, -1):
            if accepts[place % length]:
                runs[place] = runs[place + 1] + 1
        return runs

    def drafted_until_unsure(self, place: int, most: int, stop_below: float) -> int:
        """Return how many tokens are drafted, up to and including the first of which the drafter is not sure.

        Args:
            place: of the first drafted token in the answer, from 0.
            most: tokens at most.
            stop_below: the drafter's top probability below which it stops, 0 to 1.
        """
        confidence = self.confidence
        for count in range(most):
            if confidence[(place + count) % len(confidence)] < stop_below:
                return count + 1
        return most


def read_drafts(path: str | PathLike[str]) -> list[DraftedRequest]:
    """Read the requests of the file at `path`.

    Raises:
        ConfigurationError: the file cannot be read, is empty, or a line is wrong; the message names line and field.
    """
    requests = []
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            requests.append(_request(json.loads(line)))
        except (TypeError, ValueError) as error:  # JSON's own error is a ValueError
            raise ConfigurationError(f"{path}, line {number}: {error}") from error
    if not requests:
        raise ConfigurationError(f"{path} has no request")
    return requests


def write_drafts(path: str | PathLike[str], requests: Iterable[DraftedRequest]) -> None:
    """Write `requests` to the file at `path`, which is replaced if it exists."""
    with Path(path).open("w", encoding="utf-8") as file:
        for request in requests:
            record = {
                "prompt_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "acceptance_seq": list(request.accepts),
                "arrival_time_ms": request.arrival_s * 1e3,
                "drafter_id": request.drafter,
            }
            if request.confidence:
                record[_CONFIDENCE] = [round(value, 4) for value in request.confidence]
            file.write(json.dumps(record, separators=(",", ":")) + "\n")


def _request(record: Any) -> DraftedRequest:
    if not isinstance(record, dict):
        raise ValueError("a line must be an object with the fields " + ", ".join(FIELDS))
    for key in record:
        if key not in (*FIELDS, _CONFIDENCE):
            raise ValueError(f"there is no field {key!r}. {nearest(str(key), FIELDS)}")
    accepts = _sequence(record, "acceptance_seq")
    if not set(accepts) <= {0, 1}:
        raise ValueError("acceptance_seq must have only 0 and 1")
    confidence = _sequence(record, _CONFIDENCE) if _CONFIDENCE in record else ()
    if not all(isinstance(value, int | float) and 0 <= value <= 1 for value in confidence):
        raise ValueError("confidence_seq must have numbers from 0 to 1")
    arrival_ms = record.get("arrival_time_ms", 0.0)
    if not isinstance(arrival_ms, int | float) or not 0 <= arrival_ms < float("inf"):
        raise ValueError(f"arrival_time_ms must be a number from 0 on, not {arrival_ms!r}")
    return DraftedRequest(
        prompt_tokens=_whole(record, "prompt_length", 1),
        output_tokens=_whole(record, "output_length", 1),
        accepts=bytes(accepts),
        arrival_s=arrival_ms / 1e3,
        drafter=_whole(record, "drafter_id", 0) if "drafter_id" in record else 0,
        confidence=tuple(float(value) for value in confidence),
    )


def _sequence(record: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = record.get(name)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list with at least one entry")
    return value


def _whole(record: Mapping[str, Any], name: str, lowest: int) -> int:
    value = record.get(name)
    if type(value) is not int or value < lowest:
        raise ValueError(f"{name} must be a whole number from {lowest} on, not {value!r}")
    return value
