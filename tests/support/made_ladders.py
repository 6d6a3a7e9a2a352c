"""Ladders of made-up numbers: tiers of rising accuracy, whose confidence tells something of their answers."""

import numpy as np
from papers.ladder.label_trace import LabelTrace, TraceTier
from papers.ladder.ladder_columns import LadderColumns

TIERS = (
    TraceTier("small", 8.0, 0.001, 1e4),
    TraceTier("middle", 8.0, 0.002, 1e5),
    TraceTier("large", 9.0, 0.5, 1e9),
)


def label_trace(n=400, seed=0):
    """Three tiers of rising accuracy, each with a liking for one label."""
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, 2, n)
    sides = 2 * gold[:, None] - 1
    strength = draw.normal(np.array([0.4, 1.0, 2.0]), 1.2, (n, 3)) * sides + np.array([0.0, 0.5, -2.0])
    scores = np.stack((-strength / 2, strength / 2), axis=2)
    return LabelTrace("made up", "none", "none", ("no", "yes"), TIERS, gold, draw.integers(5, 200, n), scores)


def columns(n=300, seed=0, tiers=3):
    draw = np.random.default_rng(seed)
    quality = (draw.random((n, tiers)) < np.linspace(0.5, 0.9, tiers)).astype(float)
    confidence = np.clip(draw.normal(0.4 + 0.3 * quality[:, :-1], 0.2), 0.01, 0.99)
    return LadderColumns(
        confidence,
        quality,
        draw.integers(10, 400, n).astype(float),
        np.full((n, tiers), 8.0) + draw.integers(0, 9, (n, tiers)),
    )
