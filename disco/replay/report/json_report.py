"""A report as JSON, for scripts.

Schema 1: an object with the keys

- `schema`: 1; it changes when a key changes its meaning or is removed, not when a key is added;
- `title`, `notes`, `findings`: text;
- `cdf_levels`: the levels at which each summary's `ttft_quantiles_s` are given;
- `cells`: one object per cell, as `disco.replay.metrics.over_seeds.Cell.to_dict`; a figure is
  `{"mean", "low", "high"}`; a figure that was not measured is null;
- `example`: the route record of an answer that migrated, as `RouteRecord.to_dict` with its timelines; null when there
  is none.

Names contain the units. A number that is not finite (a quantile of no answers) is null.
"""

from __future__ import annotations

import json

from disco.replay.metrics.over_seeds import CDF_LEVELS
from disco.replay.report.findings import findings
from disco.replay.report.report_data import Report

__all__ = ["SCHEMA", "to_json"]

SCHEMA = 1


def to_json(report: Report, *, indent: int | None = 2) -> str:
    """Return the report as JSON; see the module's docstring for its keys.

    Args:
        report: what to write.
        indent: spaces of each level; None: on one line.
    """
    document = {
        "schema": SCHEMA,
        "title": report.title,
        "notes": report.notes,
        "findings": findings(report),
        "cdf_levels": CDF_LEVELS,
        "cells": [cell.to_dict() for cell in report.cells],
        "example": None if report.example is None else report.example.to_dict(timelines=True),
    }
    return json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
