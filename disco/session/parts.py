"""What the parts of one session share, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from disco.cost.purse import Purse
from disco.plan import Candidate, Plan
from disco.session.attempt_table import AttemptTable
from disco.session.handover import Mover
from disco.session.race import Race
from disco.session.terms import Terms
from disco.session.transcript import Transcript

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """One answer's plan and terms, and the parts of its session that others act on."""

    plan: Plan
    candidates: Mapping[str, Candidate]
    terms: Terms
    purse: Purse | None
    attempts: AttemptTable
    transcript: Transcript
    mover: Mover
    race: Race
