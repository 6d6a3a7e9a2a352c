"""SQL that every Python takes."""

from __future__ import annotations

import re
from pathlib import Path

STATE = Path(__file__).parents[2] / "disco" / "state"


def test_no_statement_numbers_its_values():
    """Python 3.14 refuses "?1" with a sequence of values, and 3.12 warns; 3.11, which takes it, would not tell."""
    sources = [path.read_text(encoding="utf-8") for path in STATE.glob("*.py")]
    assert sum(source.count(".execute") for source in sources) > 20
    assert [found for source in sources for found in re.findall(r"\?\d", source)] == []
