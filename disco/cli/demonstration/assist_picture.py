"""What `disco demo --assist` shows of a divided answer: a picture while it comes, and what its route record says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from disco.cli.console import Screen
from disco.session.records.assist_record import AssistRecord, AssistState
from disco.session.records.route_record import MigrationRecord, RouteRecord

__all__ = ["OUTCOMES", "SEAM", "UNDIVIDED", "Shown", "explain", "gap_at", "in_words", "picture", "text_of"]

SEAM: Final = "‖"

_BAR = 24  # characters
_FULL_BANK = 40  # tokens that fill the bar of the bank

UNDIVIDED: Final = {
    "budget_class": "the request is to use no budget, or all of it",
    "budget": "an absolute budget does not cover both the server and the device",
    "endpoints": "the server is not known to keep to a limit of tokens, or the device cannot go on with an answer",
    "pace": "the text is not shown at a pace, so nothing would hide the hand-over",
    "pinned": "the answer must come from one endpoint as a whole",
    "reasoning": "the server's tokens could all be thoughts",
    "device_first": "the device is expected to have read the prompt before the server's first token: it needs no help",
    "server_pace": "the server writes too slowly for the pace at which text is shown",
    "device_pace": "the device writes slower than text is shown, so the reader would wait after the hand-over",
    "reading_pace": "the device reads the server's tokens no faster than they are shown, so it would never catch up",
    "too_many": "the device needs more time than the largest share allows",
    "not_cheaper": "the device needs so long that the server would have to write the whole answer, or nearly",
}
"""Why an answer was not divided, by `AssistRecord.why`."""

OUTCOMES: Final = {
    "undivided": "The answer was not divided",
    "heir_first": "The device had read the prompt before the server's first token, and wrote the whole answer",
    "handed_over": "The server's part was shown while the device read the prompt; then the device went on",
    "complete": "The server's answer was complete within its limit, so there was nothing to hand over",
    "kept": "The device's model agreed too little with the server's text, so the server went on",
    "heir_lost": "The device failed while it read, so another endpoint went on",
    "not_text": "The server did not begin with text, so it was asked again without a limit",
    "ended": "The answer ended before it could be handed over",
}
"""How a divided answer went, by `AssistRecord.outcome`."""


@dataclass
class Shown:
    """What the reader has, and when the request was sent. Mutable: `pieces`.

    Attributes:
        pieces: (text, its writer), in order.
    """

    began_at: float
    pieces: list[tuple[str, str]] = field(default_factory=list)

    def add(self, text: str, writer: str) -> None:
        if self.pieces and self.pieces[-1][1] == writer:
            text = self.pieces.pop()[0] + text
        if text:
            self.pieces.append((text, writer))


def picture(
    screen: Screen, state: AssistState | None, bank: int, shown: Shown
) -> Sequence[Sequence[tuple[str, str]]]:
    """Return the lines to draw, as `Screen.board` takes them. `bank`: tokens in hand."""
    if state is None:
        return [text_of(screen, shown)]
    device, server = screen.colour(state.heir), screen.colour(state.writer)
    speed = f", {state.prefill_tps:.0f}/s" if state.prefill_tps else ""
    read = f"{state.read_tokens:,} of {state.total_tokens:,} tokens{speed}"
    written = f"{state.written_tokens} of at most {state.tokens} tokens"
    return [
        _row(f"{state.heir} has read", state.read_tokens / max(1, state.total_tokens), device, read),
        _row(f"{state.writer} has written", state.written_tokens / state.tokens, server, written),
        _row("bank", bank / _FULL_BANK, "bold", f"{bank} tokens in hand"),
        [(f"{'tempo':<20}{_tempo(state)}", "")],
        [("", "")],
        text_of(screen, shown),
    ]


def _row(what: str, share: float, style: str, figures: str) -> list[tuple[str, str]]:
    full = min(_BAR, max(0, round(share * _BAR)))
    return [(f"{what:<20}", ""), ("█" * full, style), ("░" * (_BAR - full), "dim"), (f"  {figures}", "")]


def text_of(screen: Screen, shown: Shown) -> list[tuple[str, str]]:
    """Return the text, each part in its writer's colour, with a mark at each seam."""
    out: list[tuple[str, str]] = []
    for text, writer in shown.pieces:
        if out:
            out.append((SEAM, "bold red"))
        out.append((text, screen.colour(writer)))
    return out


def in_words(state: AssistState, bank: int) -> str:
    """Return what the picture shows as one line."""
    return (
        f"{state.heir} has read {state.read_tokens:,} of {state.total_tokens:,} tokens; {state.writer} has written "
        f"{state.written_tokens} of at most {state.tokens}; {bank} tokens in hand; {_tempo(state)}"
    )


def _tempo(state: AssistState) -> str:
    return "shown as it comes" if state.tempo_tps is None else f"shown at {state.tempo_tps:.1f} tokens/s"


def explain(screen: Screen, record: RouteRecord) -> None:
    """Print what the route record says of the division, in words."""
    assist = record.assist
    screen.line()
    if assist is None:
        screen.line("→ The answer was not divided.")
        return
    why = f": {UNDIVIDED.get(assist.why, assist.why)}" if assist.why else ""
    screen.line(f"→ {OUTCOMES[assist.outcome]}{why}.")
    writers = " + ".join(f"{s.endpoint} {s.start_char}…{s.end_char}" for s in record.segments)
    seams = "no text is missing or twice (checksums agree)" if record.seamless else "SEAM BROKEN"
    screen.line(f"  record: {writers}: {seams}.", style="dim")
    for attempt in record.attempts:
        if attempt.failure is not None:
            screen.line(f"  {attempt.endpoint} failed ({attempt.failure})", style="dim")
    if assist.outcome == "undivided":
        return
    for line in _figures(record, assist):
        screen.line(f"  {line}", style="dim")


def _figures(record: RouteRecord, assist: AssistRecord) -> list[str]:
    charged = sum(a.completion_tokens for a in record.attempts if a.endpoint == assist.writer)
    first_s, limit = record.released[0][0], assist.tokens
    lines = [
        f"first token after {first_s:.2f} s; limit of {assist.writer}: {limit} tokens; charged for {charged}"
    ]
    if assist.read_s is not None:
        lines.append(f"{assist.heir} had read the prompt after {assist.read_s:.2f} s")
    for move in record.migrations:
        gap_s = gap_at(record, move)
        if gap_s is not None and move.took_s is not None:
            lines.append(
                f"{move.target} went on behind character {move.cut_char}, {move.took_s:.2f} s after the part of "
                f"{move.source} had ended; longest gap for the reader there {gap_s:.2f} s; late tokens: "
                f"{move.late_tokens}"
            )
    if assist.agreement is not None:
        lines.append(
            f"agreement: {assist.agreement:.2f} nats a token over {assist.agreement_tokens} tokens: the model of "
            f"{assist.heir} gives each a probability of {math.exp(assist.agreement):.0%} (geometric mean)"
        )
    tempos = [tps for _, tps in assist.tempos if tps is not None]
    if tempos:
        lines.append(
            f"tempo: {len(assist.tempos)} changes, {min(tempos):.1f} to {max(tempos):.1f} tokens/s while "
            f"{assist.heir} read"
        )
    return lines


def gap_at(record: RouteRecord, move: MigrationRecord) -> float | None:
    """Return the longest time without text that the reader had at a cut, s; None where the answer was not handed over.

    The cut lies somewhere between two pieces of text that were shown, so the piece before it and the one behind count.
    """
    if move.outcome != "switched":
        return None
    shown, at, longest_s = 0, None, 0.0
    for when, tokens in record.released:
        if at is not None and shown + tokens >= move.cut_tokens:
            longest_s = max(longest_s, when - at)
        if shown > move.cut_tokens:
            return longest_s
        shown, at = shown + tokens, when
    return longest_s
