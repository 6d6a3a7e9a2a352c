"""A model that is not loaded yet: a server writes meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from disco.candidate import Candidate
from disco.plan import Start, Why

__all__ = ["with_writer"]


def with_writer(
    starts: tuple[Start, ...], able: Sequence[Candidate], spared: Collection[str], prompt_tokens: int
) -> tuple[Start, ...]:
    """Add a start of an endpoint that writes while the models of all others in `starts` are loaded.

    The starts stay: who loads may still be first, and otherwise has its model loaded for what comes next. None is added
    where one of them is ready, or where the models are loaded before any other endpoint would write.

    Args:
        starts: as the policy chose them.
        able: the endpoints that may serve the request, in order of preference.
        spared: names of the endpoints that are not to be used.
        prompt_tokens: length of the prompt.
    """
    by_name = {c.name: c for c in able}
    cold = [(start.after_s, by_name[start.endpoint]) for start in starts]
    if not all(c.load_s > 0 and c.loads for _, c in cold):
        return starts
    soonest_s = min(after_s + c.time_to_first_token_s(prompt_tokens) for after_s, c in cold)
    starting = {start.endpoint for start in starts}
    for c in able:
        is_free = c.name not in starting and c.name not in spared and not c.standby and c.load_s == 0
        if is_free and c.time_to_first_token_s(prompt_tokens) < soonest_s:
            loading = max(cold, key=lambda one: one[1].load_s)[1]
            why = Why(
                "loading",
                loading.load_s,
                c.usual_first_token_s(prompt_tokens),
                c.times_from,
                c.times_seen,
                loading.name,
            )
            return (*starts, Start(c.name, 0.0, why))
    return starts
