"""What lasts: the state file, in which the programs of one user on one machine keep what they learnt and spent."""

from __future__ import annotations

from disco.state.database import Database, database_of, state_path
from disco.state.shared_tally import SharedBudgets, limiter_of

__all__ = ["Database", "SharedBudgets", "database_of", "limiter_of", "state_path"]
