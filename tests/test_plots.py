"""The plots of the documentation show what the code does now."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGE = (ROOT / "docs" / "concepts" / "policies.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def series():
    sys.path.insert(0, str(PICTURES))
    try:
        from plot_series import SERIES
    finally:
        sys.path.remove(str(PICTURES))
    return {name: make() for name, make in SERIES.items()}


def test_every_plot_shows_what_the_policies_compute_now(series):
    drawn = json.loads((PICTURES / "plots.json").read_text(encoding="utf-8"))
    assert list(drawn) == list(series)
    for name, now in series.items():
        assert list(now) == list(drawn[name]), f"{name}: draw again: python docs/pictures/plots.py"
        for label, line in now.items():
            for axis in ("x", "y"):
                assert line[axis] == pytest.approx(drawn[name][label][axis], rel=1e-3, abs=1e-3), (
                    f"{name}, {label}: draw again: python docs/pictures/plots.py"
                )


def test_every_plot_was_drawn_with_its_legend_and_is_on_the_page(series):
    for name, now in series.items():
        svg = (PICTURES / f"{name}.svg").read_text(encoding="utf-8")
        shown = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
        assert set(now) <= {text.replace("&lt;", "<") for text in shown}, name
        assert f"../pictures/{name}.svg" in PAGE
