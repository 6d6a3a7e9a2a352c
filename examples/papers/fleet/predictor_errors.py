"""How far the cost predictor is from measured passes and answers that it has not seen.

A predictor is fitted to every second number of rows of a profile: the times behind an empty cache are its curve, and
two more numbers say what cached tokens add. It then predicts the other half, and whole answers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from disco.errors import ConfigurationError
from papers.fleet.pass_costs import PassCosts, step_costs

__all__ = ["Errors", "Profile", "fitted", "load_profile", "predictor_errors", "write_profile"]

Kind = Literal["decode", "prompt", "answer"]
_COLUMNS: Final = ("model", "kind", "rows", "before", "output", "ms")


class Measured(NamedTuple):
    """A line of a profile.

    Attributes:
        kind: "decode": a pass with logits of all rows; "prompt": with those of the last one; "answer": passes of
            `rows` rows until `output` tokens are written, behind a prompt of `before`.
        rows, before, output: see `kind`.
        seconds: the shortest of several.
    """

    kind: Kind
    rows: int
    before: int
    output: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured of one model."""

    model: str
    lines: tuple[Measured, ...]

    def of(self, kind: Kind) -> list[Measured]:
        """Return the lines of a kind, by rows and tokens before."""
        return sorted(line for line in self.lines if line.kind == kind)


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean sizes of relative errors, and their mean with sign (below 0: the prediction is too low).

    Attributes:
        model: whose.
        decode, prompt: of passes that were not fitted.
        answers: of whole answers, behind their prompts.
        points: how many passes and answers were predicted.
    """

    model: str
    decode: tuple[float, float]
    prompt: tuple[float, float]
    answers: tuple[float, float]
    points: int


def fitted(lines: Sequence[Measured]) -> PassCosts:
    """Return costs through passes of one kind: a curve over rows, and what cached tokens add (least squares)."""
    empty = min(line.before for line in lines)
    curve = [(line.rows, line.seconds) for line in lines if line.before == empty]
    base = step_costs(curve)
    rest = [line for line in lines if line.before != empty]
    if not rest:
        return base
    added = np.array([line.seconds - base.verify_s(line.rows, 0) for line in rest])
    terms = np.array([(line.before - empty, line.rows * (line.before - empty)) for line in rest], float)
    size = np.array([1 / line.seconds for line in rest])  # relative errors count
    kv_s, row_kv_s = np.linalg.lstsq(terms * size[:, None], added * size, rcond=None)[0]
    if kv_s < 0 or row_kv_s < 0:  # noise: one of them alone
        slope = float((added * terms[:, 1] * size**2).sum() / ((terms[:, 1] * size) ** 2).sum())
        kv_s, row_kv_s = 0.0, max(0.0, slope)
    return step_costs(curve, kv_s=float(kv_s), row_kv_s=float(row_kv_s))


def predictor_errors(profile: Profile) -> Errors:
    """Return the errors on what was not fitted."""
    decode_costs, decode = _halved(profile.of("decode"))
    _, prompt = _halved(profile.of("prompt"))
    answers = []
    for line in profile.of("answer"):
        passes = range(line.before, line.before + line.output, line.rows)
        seconds = sum(decode_costs.verify_s(line.rows, before) for before in passes)
        answers.append(seconds / line.seconds - 1)
    return Errors(
        model=profile.model,
        decode=_sizes(decode),
        prompt=_sizes(prompt),
        answers=_sizes(answers),
        points=len(decode) + len(prompt) + len(answers),
    )


def _halved(lines: Sequence[Measured]) -> tuple[PassCosts, list[float]]:
    """Fit to every second number of rows, and to the last one; return the costs, and the errors of the others."""
    sizes = sorted({line.rows for line in lines})
    known = {*sizes[::2], sizes[-1]}
    costs = fitted([line for line in lines if line.rows in known])
    others = [line for line in lines if line.rows not in known]
    return costs, [costs.verify_s(line.rows, line.before) / line.seconds - 1 for line in others]


def _sizes(errors: Sequence[float]) -> tuple[float, float]:
    return fmean(map(abs, errors)), fmean(errors)


def write_profile(path: str | PathLike[str], profiles: Iterable[Profile], source: str) -> None:
    """Write profiles as CSV, with a first line that says where they are from."""
    with Path(path).open("w", encoding="utf-8", newline="") as file:
        file.write(f"# source: {' '.join(source.split())}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for profile in profiles:
            for line in profile.lines:
                writer.writerow(
                    (
                        profile.model,
                        line.kind,
                        line.rows,
                        line.before,
                        line.output,
                        f"{1e3 * line.seconds:.3f}",
                    )
                )


def _kind(text: str) -> Kind:
    for kind in get_args(Kind):
        if kind == text:
            found: Kind = kind
            return found
    raise ValueError(f"there is no kind {text!r}")


def load_profile(path: str | PathLike[str]) -> tuple[str, list[Profile]]:
    """Return a file's source, and the profiles in it.

    Raises:
        ConfigurationError: the file cannot be read, or is no profile.
    """
    try:
        first, *lines = Path(path).read_text(encoding="utf-8").splitlines()
        by_model: dict[str, list[Measured]] = {}
        for row in csv.DictReader(lines):
            kind = _kind(row["kind"])
            rows, before, output = (int(row[name]) for name in ("rows", "before", "output"))
            by_model.setdefault(row["model"], []).append(
                Measured(kind, rows, before, output, float(row["ms"]) / 1e3)
            )
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the profile {path} cannot be read: {error}") from error
    return first.removeprefix("# source: "), [
        Profile(model, tuple(lines_)) for model, lines_ in by_model.items()
    ]
