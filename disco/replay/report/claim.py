"""A claim of a paper beside what a run shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from disco.replay.report.table import Table

__all__ = ["Claim", "claim_table"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, what was printed, what a run shows, and what follows.

    Attributes:
        claim: what is claimed; a contradiction within a paper is a claim, too.
        printed: the paper's figure, as text; "" where the claim says it.
        ours: the same here, as text.
        holds: whether it does; None where that cannot be answered by yes or no, and `reason` says what follows.
        reason: why it holds or not, or what to know.
        place: where it stands, for instance "Figure 7c"; "" where the claim says it.
        cases: of how many cases the claim was checked on; 0 where it was not checked case by case.
        held: in how many of them it holds.
        but: the cases in which it does not.
    """

    claim: str
    printed: str = ""
    ours: str = ""
    holds: bool | None = None
    reason: str = ""
    place: str = ""
    cases: int = 0
    held: int = 0
    but: tuple[str, ...] = ()

    @classmethod
    def checked(
        cls, claim: str, cases: Iterable[tuple[str, bool]], *, reason: str = "", place: str = ""
    ) -> Claim:
        """Return a claim that was checked case by case.

        Args:
            claim: what is claimed.
            cases: the name of each case, and whether the claim holds there. Where there is none, `holds` is None.
            reason: what follows.
            place: where it stands.
        """
        found = list(cases)
        but = tuple(name for name, holds in found if not holds)
        held = len(found) - len(but)
        return cls(
            claim,
            ours=f"in {held} of {len(found)}",
            holds=not but if found else None,
            reason=reason,
            place=place,
            cases=len(found),
            held=held,
            but=but,
        )

    @property
    def verdict(self) -> str:
        """Whether the claim holds, and why, in one line."""
        if self.holds is None:
            return self.reason
        word = "holds" if self.holds else "does not hold"
        return f"{word}: {self.reason}" if self.reason else word


def claim_table(title: str, claims: Iterable[Claim], *, notes: tuple[str, ...] = ()) -> Table:
    """Return the claims as a table, without the columns in which no claim has anything to say.

    Args:
        title: of the table.
        claims: in the order of the rows.
        notes: sentences below the table.
    """
    header = ("where", "claim", "printed", "here", "verdict", "but not")
    rows = [(one.place, one.claim, one.printed, one.ours, one.verdict, ", ".join(one.but)) for one in claims]
    kept = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return Table(
        title,
        tuple(header[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in rows),
        notes,
    )
