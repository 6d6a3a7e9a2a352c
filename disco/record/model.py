"""The time line of one answer as plain data: what each endpoint did when, what the reader had, what happened."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cost", "Lane", "Mark", "MarkKind", "Reader", "Span", "SpanKind", "Timeline", "Window"]


class SpanKind(StrEnum):
    """What an attempt does for a while; the value is its name in files and in style sheets."""

    DELAYED = "delayed"  # planned, and not started yet
    QUEUED = "queued"  # waits for its turn, or its model is being loaded
    READING = "reading"  # no token yet: connects, reads the prompt
    HOLDING = "holding"  # has read the prompt, keeps it, and may read the answer along
    WRITING = "writing"  # its text is in the answer
    HIDDEN = "hidden"  # its text is not in the answer: behind a cut, overruled, or of the loser of a race
    PAUSED = "paused"  # stopped at a cut, so that it can go on
    SILENT = "silent"  # had written, then nothing more until it failed


class MarkKind(StrEnum):
    """What happened at a moment, in the order in which marks of one moment stand; see docs/reference/show.md."""

    DOUBTED = "doubted"  # a silence that is unusual
    FIRST = "first"  # the first content of an endpoint; it wins the race, if there is one
    UNSTARTED = "unstarted"  # a planned start that was not needed any more
    READ = "read"  # the heir of an assist has read the prompt
    DRAFTING = "drafting"  # the first drafted window is sent
    FAILED = "failed"
    VERDICT = "verdict"  # an answer was judged
    RISE = "rise"  # a higher tier is asked from the beginning
    ORDERED = "ordered"  # a move is ordered: the text is cut here
    GIVEN_UP = "given_up"  # the move is given up
    SWITCHED = "switched"  # the move's target writes
    TAKEN_OVER = "taken_over"  # another endpoint replaces a failed one
    SHOWN = "shown"  # the reader gets the first text
    FINISHED = "finished"
    CANCELLED = "cancelled"  # the reader has left
    DELIVERED = "delivered"  # the reader has all of it


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one lane, seconds since the request; `attempt`: its number in the record, None: not started."""

    kind: SpanKind
    start_s: float
    end_s: float
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Drafted tokens on their way to the verify server, seconds since the request; `right`: how many were right."""

    sent_s: float
    judged_s: float
    drafted: int
    right: int


@dataclass(frozen=True, slots=True)
class Lane:
    """What one endpoint did. Its spans are in order of time and do not overlap.

    An endpoint whose attempts overlap has several lanes.

    Attributes:
        endpoint, place: as in the record.
        spans: see `Span`.
        windows: drafted windows of its attempts, by the time at which they were sent; they may overlap.
    """

    endpoint: str
    place: str
    spans: tuple[Span, ...]
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment and what happened then, as a sentence without a full stop.

    `lane`: the place of its lane in `Timeline.lanes`; None: the reader's.
    """

    kind: MarkKind
    at_s: float
    lane: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Reader:
    """What the reader had. Times are seconds since the request, in order.

    Attributes:
        shown: (time, tokens given to the reader so far).
        bank: (time, tokens of the answer that are written and not yet shown), from each time until the next.
        late_s: when tokens came that the reader had waited for.
    """

    shown: tuple[tuple[float, int], ...]
    bank: tuple[tuple[float, int], ...]
    late_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Cost:
    """What was charged for one endpoint: tokens read (cached ones included), tokens written, money and energy.

    `phases`: (what the tokens were processed for, USD, J), the dearest first; see `disco.cost.Phase`. An energy is None
    where it is not known.
    """

    endpoint: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    bill_usd: float
    device_energy_j: float | None
    phases: tuple[tuple[str, float, float | None], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time line of one answer.

    Attributes:
        total_s: its length; every time in it lies in [0, total_s].
        headline: preset, end, tokens, first word, length, bill and energy, as short phrases.
        lanes: one for each endpoint that started or was to start, in the user's order.
        reader: None where the record has no times of its tokens.
        marks: in order of time.
        costs: one for each endpoint that was charged.
        notes: what the plan had to leave out, and what the record does not tell, as sentences.
    """

    total_s: float
    headline: tuple[str, ...]
    lanes: tuple[Lane, ...]
    reader: Reader | None
    marks: tuple[Mark, ...]
    costs: tuple[Cost, ...]
    notes: tuple[str, ...] = ()
