"""What lasts: the state file, in which the programs of one user on one machine keep what they learnt and spent."""

from __future__ import annotations

from disco.state.database import Database, database_of, state_path

__all__ = ["Database", "database_of", "state_path"]
