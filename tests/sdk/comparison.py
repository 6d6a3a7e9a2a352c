"""From the outcomes of the arms to a table per file, the tests that only ours fail, and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["ARMS", "WANTED", "Arm", "Missed", "lines_per_file", "misses", "shares"]

ARMS = {"plain": "the plain SDK", "server": "ours, server alone", "local": "ours, a local model behind"}
WANTED = {"server": 0.99, "local": 0.98}  # of the tests that pass with the plain SDK


@dataclass(frozen=True, slots=True)
class Arm:
    """What the tests did with one set of classes: outcome, error and kind (`sync`, `async`) by the test's name."""

    outcomes: Mapping[str, str]
    errors: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> Arm:
        """Return the arm from what the plugin wrote."""
        return cls(made["outcomes"], made["errors"], made["kinds"])

    def passed(self, name: str) -> bool:
        """Whether the test passed; a test that was not collected did not."""
        return self.outcomes.get(name) == "passed"


@dataclass(frozen=True, slots=True)
class Missed:
    """A test that passes with the plain SDK and not with ours; `reason` is empty where none is known."""

    name: str
    error: str
    reason: str


def compared(plain: Arm) -> list[str]:
    """Return the tests that count: those which pass with the plain SDK."""
    return [name for name in plain.outcomes if plain.passed(name)]


def shares(arms: Mapping[str, Arm]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (passed, of) by arm and kind: `sync`, `async`, and `` for both together."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    plain = arms["plain"]
    for arm in arms:
        for kind in ("sync", "async", ""):
            of = [n for n in compared(plain) if not kind or plain.kinds.get(n) == kind]
            found[arm, kind] = (sum(arms[arm].passed(n) for n in of), len(of))
    return found


def lines_per_file(arms: Mapping[str, Arm]) -> Iterator[str]:
    """Yield a table: for each file how many tests pass in each arm, synchronous and asynchronous."""
    plain = arms["plain"]
    counts: Counter[tuple[str, str, str]] = Counter()
    for arm, name in ((arm, name) for arm in arms for name in compared(plain) if arms[arm].passed(name)):
        counts[name.partition("::")[0], arm, plain.kinds[name]] += 1
    files = sorted({file for file, _, _ in counts})
    width = max(map(len, files), default=4)
    yield " " * width + "".join(f"  {ARMS[arm]:>27}" for arm in arms)
    yield f"{'file':<{width}}" + f"  {'sync':>20} {'async':>6}" * len(arms)
    for file in files:
        cells = [(counts[file, arm, "sync"], counts[file, arm, "async"]) for arm in arms]
        marked = "" if len(set(cells)) == 1 else "  <"
        yield f"{file:<{width}}" + "".join(f"  {a:>20} {b:>6}" for a, b in cells) + marked


def misses(arms: Mapping[str, Arm], arm: str, reasons: Iterable[tuple[str, str, str]]) -> list[Missed]:
    """Return the tests that pass with the plain SDK and fail in the arm.

    Args:
        arms: the outcomes by arm.
        arm: the arm.
        reasons: (arms, pattern of names, reason); the first that fits is taken.
    """
    known = [(pattern, reason) for where, pattern, reason in reasons if arm in where.split()]
    missed = []
    for name in compared(arms["plain"]):
        if not arms[arm].passed(name):
            error = arms[arm].errors.get(name) or f"outcome: {arms[arm].outcomes.get(name, 'not run')}"
            reason = next((reason for pattern, reason in known if fnmatchcase(name, pattern)), "")
            missed.append(Missed(name, next(iter(error.splitlines()), ""), reason))
    return missed
