"""What `disco split check` says: the server, the link, the chunks, a verdict in words, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from disco.cli.console import Screen
from disco.cli.speculation.check_report import MIN_GAIN, Pace
from disco.speculate.chunks import Curve, SplitPath, equation3, makespan_chunk, prompt_s
from disco.speculate.layer_facts import LayerFacts

__all__ = ["PROMPTS", "ChunkRow", "SplitCheck", "Written", "chunk_rows", "verdict"]

PROMPTS: Final = (64, 128, 256, 512, 1024, 2048)
_CURVE_ROWS: Final = (1, 4, 16, 64, 256)
_FAST_BPS: Final = 5e8


@dataclass(frozen=True, slots=True)
class Written:
    """One answer.

    Attributes:
        text: the answer.
        first_s: from the request to the first text, s.
        pace: behind that.
        judged, accepted: drafted tokens; see `SpeculationReport`.
    """

    text: str = field(repr=False)
    first_s: float
    pace: Pace
    judged: int
    accepted: int


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """What is predicted for prompts of one length, s: from the prompt to its deep states.

    Attributes:
        prompt_tokens: the length.
        chunk: ours.
        chunk_s: with it.
        paper: the chunk of the paper's (3).
        paper_s: with it.
        whole_s: with the prompt in pieces as large as the device takes.
    """

    prompt_tokens: int
    chunk: int
    chunk_s: float
    paper: int
    paper_s: float
    whole_s: float


def chunk_rows(path: SplitPath, *, most: int, context_tokens: int) -> list[ChunkRow]:
    """Return what is predicted for prompts that fit.

    Args:
        path: what was measured.
        most: tokens that the device sends at once.
        context_tokens: prompt and answer together.
    """
    rows = []
    for length in PROMPTS:
        if length < context_tokens:
            chunk = min(makespan_chunk(path, length), most)
            paper, whole = min(equation3(path, length), most), min(length, most)
            times = [prompt_s(path, length, one) for one in (chunk, paper, whole)]
            rows.append(ChunkRow(length, chunk, times[0], paper, times[1], times[2]))
    return rows


@dataclass(slots=True)
class SplitCheck:
    """All that was measured. Mutable while it is measured: `alone` and everything behind it.

    Attributes:
        facts: what the server says.
        path: what was measured of the device, the link and the cloud.
        chunks: what that predicts.
        has_adapter: whether the device's file can draft.
        alone, drafted: the answers without and with drafts.
        first_s: of the answers without, from the request to the first text, s.
        judged, accepted: drafted tokens; see `SpeculationReport`.
        alike: how many answers are the same in both ways.
        asked: how many prompts.
    """

    facts: LayerFacts
    path: SplitPath
    chunks: Sequence[ChunkRow]
    has_adapter: bool
    alone: Pace = field(default_factory=Pace)
    drafted: Pace = field(default_factory=Pace)
    first_s: list[float] = field(default_factory=list)
    judged: int = 0
    accepted: int = 0
    alike: int = 0
    asked: int = 0

    def show(self, screen: Screen) -> None:
        """Print it."""
        facts, path = self.facts, self.path
        screen.line(
            f"A layer server: {facts.model}, layers {facts.layers + 1} to {facts.total_layers} of "
            f"{facts.total_layers}; {facts.slots} slots of {facts.context_tokens:,} tokens, {facts.busy} of them busy."
        )
        screen.line(
            f"link         {_ms(path.rtt_s)} ms there and back; up {_rate(path.up_bps)}, down {_rate(path.down_bps)}; "
            f"a token is {path.state_bytes:,} bytes"
        )
        screen.line(f"device       ms for so many rows: {_curve(path.device_s)}")
        screen.line(
            f"cloud        ms for so many rows: {_curve(path.cloud_s)}; {path.load:.1f} rows of others"
        )
        screen.line()
        screen.table(
            "Predicted ms from a prompt to its first token",
            ("prompt", "chunk", "ms", "chunk of (3)", "ms", "no chunks, ms"),
            [
                (
                    row.prompt_tokens,
                    row.chunk,
                    _ms(row.chunk_s),
                    row.paper,
                    _ms(row.paper_s),
                    _ms(row.whole_s),
                )
                for row in self.chunks
            ],
        )
        if not self.alone.tokens:
            screen.line("No answer had a second token, so nothing can be said of its pace.")
            return
        first = sum(self.first_s) / len(self.first_s)
        screen.line(
            f"Measured: {_ms(first)} ms to the first token, then {_ms(self.alone.token_s)} ms a token without drafts."
        )
        if not self.has_adapter:
            screen.line(
                "No drafts: the device's file has no trained adapter. `disco adapter train` trains one.",
                style="bold",
            )
            return
        screen.line(
            f"With drafts: {_ms(self.drafted.token_s)} ms a token; {self.accepted} of {self.judged} judged tokens were "
            f"right; {self.alike} of {self.asked} texts are the same."
        )
        screen.line(verdict(self.alone.token_s, self.drafted.token_s)[1], style="bold")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; times in seconds, rates in bytes/s."""
        path = self.path
        pays, words = (
            verdict(self.alone.token_s, self.drafted.token_s) if self.drafted.tokens else (None, None)
        )
        return {
            "server": self.facts.to_json(),
            "link": {
                "rtt_s": path.rtt_s,
                "up_bps": path.up_bps,
                "down_bps": path.down_bps,
                "state_bytes": path.state_bytes,
            },
            "device_s": [[rows, path.device_s.s(rows)] for rows in _CURVE_ROWS],
            "cloud_s": [[rows, path.cloud_s.s(rows)] for rows in _CURVE_ROWS],
            "load": path.load,
            "chunks": [asdict(row) for row in self.chunks],
            "first_token_s": self.first_s,
            "token_s": self.alone.token_s if self.alone.tokens else None,
            "has_adapter": self.has_adapter,
            "drafted_token_s": self.drafted.token_s if self.drafted.tokens else None,
            "judged": self.judged,
            "accepted": self.accepted,
            "alike": self.alike,
            "asked": self.asked,
            "drafting_pays": pays,
            "verdict": words,
        }


def verdict(alone_s: float, drafted_s: float, min_gain: float = MIN_GAIN) -> tuple[bool, str]:
    """Return whether drafting pays, and that in words.

    Args:
        alone_s: measured time per token without drafts, s.
        drafted_s: with them, s.
        min_gain: the share of `alone_s` that has to be saved.
    """
    ratio = alone_s / drafted_s
    if drafted_s < (1 - min_gain) * alone_s:
        return True, f"Drafting pays: {ratio:.2f} x."
    if drafted_s < alone_s:
        return (
            False,
            f"Drafting hardly pays here: {ratio:.2f} x, and {1 / (1 - min_gain):.2f} x is asked for.",
        )
    return (
        False,
        f"Drafting does not pay here: {ratio:.2f} x. disco finds that out by itself, and writes without drafts.",
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f}"


def _rate(bytes_s: float) -> str:
    return "faster than it can be measured" if bytes_s > _FAST_BPS else f"{bytes_s / 1e6:,.2f} MB/s"


def _curve(curve: Curve) -> str:
    return ", ".join(f"{rows}: {_ms(curve.s(rows))}" for rows in _CURVE_ROWS)
