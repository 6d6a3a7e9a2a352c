"""The result as plain tables, disco's figures beside the printed ones."""

from __future__ import annotations

from typing import Final

from disco.dispatch.assist_solver import NoShare
from disco.replay import Table
from papers.evaluation import UNKNOWN
from papers.pd_device.assist_play import CONSISTENT, LEXICAL, MASK, OURS, PARALLEL, PRINTED
from papers.pd_device.assumptions import ASSUMED, KEPT, LONGEST_ANSWER, SLOWEST_S
from papers.pd_device.drawn_tables import (
    capacity_table,
    quantile_table,
    session_table,
    situation_table,
)
from papers.pd_device.mask_bytes import POOLED
from papers.pd_device.measured_tables import measured_tables
from papers.pd_device.pd_run import PdResult
from papers.pd_device.printed_claims import NOT_REPRODUCED, claims, contradictions
from papers.pd_device.session_runs import SESSION_SEAM

__all__ = ["pd_tables", "shared_tables"]

_REASONS: Final = {
    NoShare.SERVER_PACE: "server too slow",
    NoShare.DEVICE_PACE: "device writes too slowly",
    NoShare.READING_PACE: "device reads too slowly",
    NoShare.TOO_MANY: f"> {LONGEST_ANSWER:,}",
    NoShare.NOT_CHEAPER: "not cheaper",
}
_REFINERS: Final = (PARALLEL, LEXICAL, MASK)
_SEAMS: Final = (PRINTED, CONSISTENT, OURS, SESSION_SEAM)


def pd_tables(result: PdResult) -> list[Table]:
    """Return the tables: claims, prompt lengths, the seam, drawn requests, capacity, masks, and what is assumed."""
    before, after = _shared(result)
    return [*before, situation_table(result.situations), *after]


def shared_tables(result: PdResult) -> list[Table]:
    """Return all tables but that of the situations."""
    before, after = _shared(result)
    return [*before, *after]


def _shared(result: PdResult) -> tuple[list[Table], list[Table]]:
    before = [_claims(result), *(_lengths(result, kept) for kept in KEPT), _smooth(result), _seams(result)]
    after = [
        session_table(result),
        quantile_table(result),
        capacity_table(result),
        _masks(result),
        _refinement(result),
        *measured_tables(),
        Table(
            "Contradictions of the paper",
            ("where", "what is shown here"),
            tuple((one.claim, one.ours) for one in contradictions(result)),
        ),
        Table("Assumed constants", ("constant", "value", "source"), ASSUMED, ()),
        Table("Not reproduced", ("what", "why"), NOT_REPRODUCED, ()),
    ]
    return before, after


def _claims(result: PdResult) -> Table:
    return Table(
        "What the paper's text says of its figures, beside ours",
        ("figure", "printed", "here", "verdict"),
        tuple((one.place, one.claim, one.ours, one.verdict) for one in claims(result)),
        ("Its figures are images: only what the text names is compared.",),
    )


def _lengths(result: PdResult, kept: float) -> Table:
    rows = tuple(
        (
            row.device,
            f"{row.prompt_tokens:,}",
            _s(row.device_only_s),
            _s(row.paper_token_s),
            _s(row.token_s),
            _s(row.paper_device_s),
            _paper_tokens(row.paper_tokens),
            _paper_tokens(row.consistent_tokens),
            *(_tokens(row.tokens[name]) for name in _REFINERS),
        )
        for row in result.lengths
        if row.kept == kept
    )
    return Table(
        f"Figures 3b, 7c: TTFT in s and least L by prompt length, r = {kept:g}, tau = {SLOWEST_S:g} s",
        (
            "device",
            "l",
            "device alone",
            "TTFT_c Eq. 2",
            "TTFT ours",
            "TTFT_d Eq. 3",
            "L Eq. 6",
            "L consistent",
            "L ours, whole prompt",
            "L ours, lexical",
            "L ours, server mask",
        ),
        rows,
        (
            (
                "L Eq. 6: its least integer, the choice of the paper's §4.2. Consistent: with the device's start of "
                "Eq. 3. Whole prompt: r = 1, read from the request on, which Eq. 5 excludes."
            ),
            "Ours also drops 2 tokens at the cut. The display of Eq. 6 as printed stalls at the seam: see below.",
        ),
    )


def _smooth(result: PdResult) -> Table:
    rows = tuple(
        (
            f"{row.prompt_tokens:,}",
            str(row.tokens),
            _ms(row.printed),
            _ms(row.consistent),
            *(_ms(row.ours[name]) for name in (LEXICAL, MASK, PARALLEL)),
        )
        for row in result.smooth
    )
    return Table(
        f"Figures 3b, 7c: TPOT_smooth in ms by L, NPU-like device, r = {KEPT[0]:g} (* above tau)",
        ("l", "L", "Eq. 4", "consistent", "ours, lexical", "ours, server mask", "ours, whole prompt"),
        rows,
        ("Printed: tens of ms with 20 tokens, about a tenth of that with 2. Ours needs more than 2 tokens.",),
    )


def _seams(result: PdResult) -> Table:
    rows = tuple(
        (
            f"{row.prompt_tokens:,}",
            str(row.tokens),
            *(f"{row.stall_s[name]:.2f}" for name in _SEAMS),
            *(f"{row.longest_gap_s[name]:.2f}" for name in _SEAMS),
        )
        for row in result.seams
    )
    return Table(
        f"The seam: stall and longest gap in s, NPU-like device, r = {KEPT[0]:g}, the same L for all",
        (
            "l",
            "L",
            "stall, Eq. 4",
            "stall, consistent",
            "stall, ours",
            "stall, session",
            "gap, Eq. 4",
            "gap, consistent",
            "gap, ours",
            "gap, session",
        ),
        rows,
        (
            (
                "Played token by token. Stall: how much later than the display's pace the first token after the seam "
                "comes. Ours: lexical refiner, which keeps as much; its display is set as in the table above."
            ),
            (
                "Session: the live client's, in virtual time, with the same L and kept share; its display follows the "
                "device's prefill. It shows whole words, so that a gap may be of two tokens."
            ),
        ),
    )


def _masks(result: PdResult) -> Table:
    rows = tuple(
        (
            f"{row.prompt_tokens:,}",
            f"{row.kept:g}",
            *(
                f"{size:,}"
                for size in (
                    row.raw,
                    row.by_sentence,
                    row.pooled,
                    row.single,
                    row.sentence_bits,
                    row.kept_text,
                )
            ),
        )
        for row in result.masks
    )
    return Table(
        "Figure 9c: bytes of a mask",
        (
            "l",
            "r",
            "raw bits",
            "sentences, a bit a token",
            f"groups of {POOLED}",
            "single tokens",
            "sentences, a bit each",
            "kept text",
        ),
        rows,
        (
            (
                "gzip, level 9. Units are kept at random; sentence lengths are drawn from XQuAD-en's. Printed: several "
                "hundred bytes (§3.2), hundreds of KB at 8k (Figure 9c)."
            ),
        ),
    )


def _refinement(result: PdResult) -> Table:
    rows = tuple(
        (
            row.device,
            f"{row.kept:g}",
            f"{row.prompt_tokens:,}",
            _s(row.paper_token_s - row.token_s),
            *(_s(row.read_s[name]) for name in _REFINERS),
            _s(row.paper_device_s),
            _s(row.read_s[PARALLEL] - row.read_s[LEXICAL]),
        )
        for row in result.lengths
        if row.prompt_tokens in (1_000, 8_192, 32_768)
    )
    return Table(
        "Figures 4b, 9d: time for refining, and when the device has read the prompt, s",
        (
            "device",
            "r",
            "l",
            "refining (assumed)",
            "whole prompt",
            "lexical",
            "server mask, head start",
            "paper, Eq. 3",
            "saved by lexical",
        ),
        rows,
        (
            (
                "Head start: the device reads the prompt as it is until the mask is there, and refines the rest. The "
                "lexical refiner's own time is not counted; docs/concepts/refine.md has it."
            ),
        ),
    )


def _paper_tokens(tokens: int | None) -> str:
    return "infeasible" if tokens is None else f"{tokens:,}"


def _tokens(found: int | NoShare) -> str:
    return f"infeasible: {_REASONS[found]}" if isinstance(found, NoShare) else f"{found:,}"


def _s(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= 10 else f"{seconds:.2f}"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    return f"{1000 * seconds:,.0f}{'*' if seconds > SLOWEST_S + 1e-9 else ''}"
