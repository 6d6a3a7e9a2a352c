"""The policy "cascade": the smallest tier answers first, and a judge may hand its answer up to the next (RecServe).

The tiers are the endpoints in the user's order (`Candidate.rank`). Endpoints of one rank stand in for each other: a
server and its backups are one tier. Dispatch decides which tier starts and which ones an answer may rise to; the
session judges. An endpoint that cools down, or that is too slow for the request's deadline, is skipped: the tier above
takes its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from disco.candidate import Candidate
from disco.dispatch.arranging import Arrangement, BudgetClass
from disco.dispatch.request_features import Features
from disco.plan import Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["CascadePolicy", "in_time", "tiers"]


def in_time(candidate: Candidate, features: Features) -> bool:
    """Whether the endpoint is expected to complete an answer within the request's deadline; True without one.

    How long the answer is expected to be: see `Features.expected_tokens`.
    """
    return features.deadline_s is None or _answer_s(candidate, features) <= features.deadline_s


def tiers(able: Sequence[Candidate], features: Features, start: Candidate) -> tuple[tuple[str, ...], ...]:
    """Return the tiers that an answer may rise through, from that of `start` to the highest.

    A tier is the names of its endpoints, in order of preference: those of one rank that can answer within the deadline.

    Args:
        able: the endpoints that may serve the request now, in order of rank; none of them cools down.
        features: the request's features.
        start: the endpoint that starts.
    """
    found: dict[int, list[str]] = {start.rank: [start.name]}
    for candidate in able:
        if candidate.rank >= start.rank and candidate is not start and in_time(candidate, features):
            found.setdefault(candidate.rank, []).append(candidate.name)
    return tuple(tuple(names) for names in found.values())


class CascadePolicy:
    """Starts the lowest tier alone; no answer moves only to save money."""

    __slots__ = ()

    def arrange(
        self, features: Features, able: Sequence[Candidate], budget_class: BudgetClass
    ) -> Arrangement:
        """Start the lowest tier that can answer in time; if there is none, the endpoint that is done first.

        "background" answers do not rise. "urgent" changes nothing here: it only lets the answer use what an absolute
        budget keeps in reserve.
        """
        timely = [c for c in able if in_time(c, features)]
        first = timely[0] if timely else min(able, key=lambda c: _answer_s(c, features))
        late = frozenset(c.name for c in able if c not in timely)
        return Arrangement(
            starts=(Start(first.name, 0.0, _why(first, timely, able, features)),),
            chosen=(first.name,),
            spared=frozenset(c.name for c in able),
            tiers=() if budget_class == "background" else tiers(able, features, first),
            last=late,
        )

    def limited(self, able: Sequence[Candidate]) -> frozenset[str]:
        """Return no name: the policy has no budget of tokens."""
        del able
        return frozenset()

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Do nothing: the policy is not fitted to distributions."""
        del lengths, ttft


def _why(first: Candidate, timely: list[Candidate], able: Sequence[Candidate], features: Features) -> Why:
    """Return why this tier starts: it is the lowest, the lowest that is in time, or the soonest of all."""
    times = first.times_from, first.times_seen
    if len(timely) == len(able):
        return Why("lowest_tier", first.usual_first_token_s(features.prompt_tokens), None, *times)
    code = "lowest_in_time" if timely else "soonest"
    return Why(code, _answer_s(first, features), features.deadline_s, *times)


def _answer_s(candidate: Candidate, features: Features) -> float:
    return candidate.answer_s(features.prompt_tokens, features.expected_tokens)
