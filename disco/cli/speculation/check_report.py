"""What `disco speculate check` says: times for each window, a verdict in words, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final

from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve

__all__ = [
    "MIN_GAIN",
    "MODES",
    "WINDOWS",
    "Choice",
    "Costs",
    "Pace",
    "Result",
    "best",
    "mode_of",
    "remedies",
    "table",
    "verdict",
]

WINDOWS: Final = (0, 1, 2, 4, 8, 12)
MODES: Final[Mapping[int, str]] = {1: "in turn", 2: "two in flight"}
"""Windows in flight, and what that is called."""
MIN_GAIN: Final = 0.1
"""The share of the time per token that drafting has to save; that of the presets (`[speculate] min_gain`)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens of answers, and the seconds between the first and the last of each. `tokens` does not count the first."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def token_s(self) -> float:
        """Seconds per token; infinite where nothing was written."""
        return self.seconds / self.tokens if self.tokens else inf

    def __add__(self, other: Pace) -> Pace:
        return Pace(self.tokens + other.tokens, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round costs and brings, as measured.

    Attributes:
        draft_s: per drafted token, s.
        round_trip_s: of a round, beside the server's work, s.
        queue_s: that a round waited for the server's model, s.
        verify_s: (rows, seconds) of the server's batch.
        accepted: drafted tokens that were right.
        compared: these, and the first wrong one of each draft; a position without a guess counts as wrong.
    """

    draft_s: float
    round_trip_s: float
    queue_s: float
    verify_s: tuple[tuple[int, float], ...]
    accepted: int
    compared: int

    def seen(self) -> Seen:
        """Return the costs as windows see them."""
        return Seen(
            acceptance=self.accepted / self.compared if self.compared else 0.0,
            draft_s=self.draft_s,
            round_trip_s=self.round_trip_s,
            queue_s=self.queue_s,
            verify=VerifyCurve(self.verify_s),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """A window and a mode: drafted tokens of a round, and windows in flight."""

    window: int
    parallel: int

    def __str__(self) -> str:
        return f"window {self.window}, {mode_of(self.parallel)}"


def mode_of(parallel: int) -> str:
    """Return what so many windows in flight are called."""
    return MODES.get(parallel, f"{parallel} in flight")


def best(seen: Seen, windows: Sequence[int] = WINDOWS) -> tuple[Choice, float]:
    """Return the window above 0 and the mode with the lowest predicted time per token, and that time, s."""
    choices = [Choice(window, parallel) for window in windows if window > 0 for parallel in MODES]
    times = [(token_s(one.window, seen, one.parallel), number) for number, one in enumerate(choices)]
    seconds, number = min(times)
    return choices[number], seconds


def table(seen: Seen, windows: Sequence[int] = WINDOWS) -> list[tuple[str, ...]]:
    """Return the rows of the table of predicted times per token, in ms."""
    rows = []
    for window in windows:
        by_mode = [_ms(token_s(window, seen, parallel)) for parallel in MODES]
        # The server alone has no rounds that could be in flight.
        rows.append((str(window), *(by_mode if window else [by_mode[0], *("–" for _ in by_mode[1:])])))
    return rows


def verdict(alone_s: float, best_s: float, choice: Choice, min_gain: float = MIN_GAIN) -> tuple[bool, str]:
    """Return whether drafting pays, and that in words.

    Args:
        alone_s: measured time per token of the server alone, s.
        best_s: that of `choice`, s.
        choice: the best window and mode.
        min_gain: the share of `alone_s` that has to be saved.
    """
    ratio = alone_s / best_s
    figures = (
        f"the server alone writes a token in {_ms(alone_s)} ms, the best ({choice}) needs {_ms(best_s)} ms"
    )
    if best_s < (1 - min_gain) * alone_s:
        return True, f"Worth it: {choice}: {ratio:.2f} x; {figures}."
    if best_s < alone_s:
        return (
            False,
            f"Hardly worth it here: {ratio:.2f} x, and {1 / (1 - min_gain):.2f} x is asked for: {figures}.",
        )
    return False, f"Not worth it here: {figures}."


def remedies(seen: Seen, min_gain: float = MIN_GAIN) -> str:
    """Say which single change would make drafting pay, by prediction; how many times as fast it would then be."""
    alone_s = token_s(0, seen)
    changed = {
        "a network without delay": replace(seen, round_trip_s=0.0),
        "drafts that take no time": replace(seen, draft_s=0.0),
        "drafts that are always right": replace(seen, acceptance=1.0),
        "a server that computes many tokens as fast as one": replace(
            seen, verify=VerifyCurve([(1, seen.verify.s(1))])
        ),
    }
    ratios = {what: alone_s / best(one)[1] for what, one in changed.items()}
    would = [f"{what} ({ratio:.1f} x)" for what, ratio in ratios.items() if ratio > 1 / (1 - min_gain)]
    if not would:
        return f"No single one of these would change that, by prediction: {', '.join(changed)}."
    return f"By prediction it would be worth it with any one of these: {', '.join(would)}."


@dataclass(frozen=True, slots=True)
class Result:
    """All that one check has found.

    Attributes:
        model: the server's.
        drafter: its name.
        answers, windows: of the proof: answers that were drafted, and windows sent for them.
        differing: of these answers, how many differ from what the server alone writes.
        costs: measured.
        choice: the best window and mode by prediction.
        alone, drafted: measured from end to end, without and with drafts.
        waited: tokens of the answers with drafts that the server wrote alone, mostly while the drafter read the prompt.
        alike: of the answers written with drafts in that measurement, how many have the text of the server alone.
        asked: answers of that measurement.
    """

    model: str
    drafter: str
    answers: int
    windows: int
    differing: int
    costs: Costs
    choice: Choice
    alone: Pace
    drafted: Pace
    waited: int
    alike: int
    asked: int

    @property
    def verdict(self) -> tuple[bool, str]:
        """Whether drafting pays, and that in words."""
        return verdict(self.alone.token_s, self.drafted.token_s, self.choice)

    @property
    def disappointment(self) -> str:
        """Why drafting does not pay though that was predicted; empty where it was not predicted."""
        seen = self.costs.seen()
        alone_s, predicted_s = token_s(0, seen), token_s(self.choice.window, seen, self.choice.parallel)
        if predicted_s >= (1 - MIN_GAIN) * alone_s:
            return ""
        return (
            f"Predicted were {_ms(predicted_s)} ms, {alone_s / predicted_s:.2f} x. Measured are whole answers: "
            f"the server wrote {self.waited} of their {self.drafted.tokens + self.asked} tokens alone, mostly while "
            "the drafter read the prompt; and models that run at once may take each other's cores. Longer answers "
            "(--tokens) tell the two apart."
        )

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values; times in seconds."""
        seen, (worth_it, words) = self.costs.seen(), self.verdict
        return {
            "rung": "rounds",
            "model": self.model,
            "drafter": self.drafter,
            "proof": {"answers": self.answers, "windows": self.windows, "differing": self.differing},
            "draft_s": self.costs.draft_s,
            "round_trip_s": self.costs.round_trip_s,
            "queue_s": self.costs.queue_s,
            "verify_s": [list(point) for point in self.costs.verify_s],
            "acceptance": seen.acceptance,
            "compared": self.costs.compared,
            "predicted": [
                {"window": window, "parallel": parallel, "token_s": token_s(window, seen, parallel)}
                for window in WINDOWS
                for parallel in MODES
                if window or parallel == 1
            ],
            "measured": {
                "window": self.choice.window,
                "parallel": self.choice.parallel,
                "token_s": self.drafted.token_s,
                "alone_token_s": self.alone.token_s,
                "waited_tokens": self.waited,
                "answers": self.asked,
                "alike": self.alike,
            },
            "gain": self.alone.token_s / self.drafted.token_s,
            "worth_it": worth_it,
            "verdict": words,
        }


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
