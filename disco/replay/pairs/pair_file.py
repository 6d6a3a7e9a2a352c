"""A pair of a drafter and a verify server as a TOML file. Times are milliseconds there, as in the files of fleets."""

from __future__ import annotations

from os import PathLike
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from disco.dispatch.sections import SpeculateSection
from disco.profiles.profile_toml import read_toml, validate
from disco.record.text_files import existing_file
from disco.replay.pairs.draft_trace import read_drafts
from disco.replay.pairs.simulated_pair import Pair
from disco.speculate.seen import VerifyCurve

__all__ = ["load_pair"]

_Ms = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _PairFile(BaseModel):
    """The keys of the file; see `Pair`.

    Attributes:
        draft_ms: per drafted token; None: not said.
        verify_ms: pairs of rows and the time of a pass of the server with so many.
        acceptance: probability that a drafted token is right.
        trace: in its place, a trace of `python -m papers.fleet record`; a path from the file's folder on.
        rtt_ms, jitter_ms, queue_ms: see `Pair`.
        read_tps: prompt tokens that the drafter reads in a second; None: not said.
        speculate: as in a preset.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    draft_ms: _Ms | None = None
    verify_ms: tuple[tuple[Annotated[int, Field(ge=1)], _Positive], ...] = Field(min_length=1)
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    trace: str | None = None
    rtt_ms: _Ms = 0.0
    jitter_ms: _Ms = 0.0
    queue_ms: _Ms = 0.0
    read_tps: _Positive | None = None
    speculate: SpeculateSection = SpeculateSection()

    @model_validator(mode="after")
    def _one_acceptance(self) -> Self:
        if (self.acceptance is None) == (self.trace is None):
            raise ValueError(
                "needs either acceptance (a probability) or trace (a file of `python -m papers.fleet record`)"
            )
        return self


def load_pair(path: str | PathLike[str]) -> Pair:
    """Read a pair from a file. Who drafts, and at which rates, is not in it: `Scenario.stations` says so.

    Raises:
        ConfigurationError: the file, or the trace that it names, cannot be read or is wrong; the message names the key.
    """
    path = existing_file(path)
    content = validate(_PairFile, read_toml(path), path)
    rules = content.speculate
    acceptance = content.acceptance
    return Pair(
        draft_s=None if content.draft_ms is None else content.draft_ms / 1e3,
        verify=VerifyCurve((rows, ms / 1e3) for rows, ms in content.verify_ms),
        acceptance=tuple(read_drafts(path.parent / str(content.trace))) if acceptance is None else acceptance,
        round_trip_s=content.rtt_ms / 1e3,
        jitter_s=content.jitter_ms / 1e3,
        queue_s=content.queue_ms / 1e3,
        read_tps=content.read_tps,
        window=rules.window,
        max_window=rules.max_window,
        parallel=rules.parallel,
        min_gain=rules.min_gain,
        drafter="n-gram" if rules.drafter == "ngram" else "device",
    )
