"""Which endpoints may start because another one is silent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from disco.candidate import Candidate
from disco.dispatch.arranging import Arrangement

__all__ = ["heirs_of"]


def heirs_of(able: Sequence[Candidate], arranged: Arrangement, excluded: Collection[str]) -> tuple[str, ...]:
    """Return the names of the endpoints that may start on a silence, in order of preference.

    In a cascade these are the endpoints of the tier that starts: a silence is no reason to rise. Otherwise all that
    the preset does not spare.

    Args:
        able: the endpoints that may serve the request, in order of preference.
        arranged: what the policy decided.
        excluded: names of endpoints that cool down or are probed.
    """
    if len(arranged.tiers) > 1:
        first = arranged.starts[0].endpoint
        tier = next((t for t in arranged.tiers if first in t), ())
        return tuple([name for name in tier if name not in excluded])
    out = arranged.spared | arranged.last | arranged.used_up
    return tuple([c.name for c in able if c.name not in excluded and c.name not in out])
