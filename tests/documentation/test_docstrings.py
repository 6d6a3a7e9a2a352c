"""Every public name says what it takes, in which unit, and what it raises."""

from __future__ import annotations

import pytest
from documentation import public_names
from documentation.public_names import gaps, public

from disco.errors import DiscoError


def test_no_public_name_lacks_a_description_a_unit_or_an_error():
    assert "disco.AsyncDisco" in public()
    assert list(gaps()) == []


class Undocumented:
    pass


class Vague:
    """Has a length.

    Args:
        size: how large it is.
        name: its name.
        kind: what it is.
    """

    def __init__(self, size: float, name: str, kind: str, other: str) -> None: ...

    def at(self, where: int) -> int:
        """Return what is there."""
        if where < 0:
            raise DiscoError("nothing is there")
        return where

    def on(self): ...


def test_each_kind_of_gap_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(public_names, "public", lambda: {"u": Undocumented, "v": Vague})
    Vague.on.__module__ = Vague.at.__module__ = "disco.tests"
    assert list(gaps()) == [
        "u has no docstring",
        "v does not describe other",
        "v gives no unit of size",
        "v.at does not describe where",
        "v.at gives no unit of where",
        "v.at does not say that it raises DiscoError",
        "v.on has no docstring",
    ]
