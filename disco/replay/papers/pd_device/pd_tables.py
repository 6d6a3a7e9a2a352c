"""The result as plain tables, disco's figures beside the printed ones."""

from __future__ import annotations

from typing import Final

from disco.dispatch.assist_solver import NoShare
from disco.replay.papers.paper_table import UNKNOWN, PaperTable
from disco.replay.papers.pd_device.assist_play import CONSISTENT, LEXICAL, MASK, OURS, PARALLEL, PRINTED
from disco.replay.papers.pd_device.assumptions import ASSUMED, KEPT, LONGEST_ANSWER, SLOWEST_S, WHOLE_ANSWER
from disco.replay.papers.pd_device.capacity import FORMULA_PROMPT, MOST_WAIT_S, SLOTS
from disco.replay.papers.pd_device.mask_bytes import POOLED
from disco.replay.papers.pd_device.measured_tables import measured_tables
from disco.replay.papers.pd_device.pd_run import PdResult
from disco.replay.papers.pd_device.printed_claims import NOT_REPRODUCED, claims, contradictions
from disco.replay.papers.pd_device.ttft_runs import (
    ASSIST,
    DEVICE,
    LEVELS,
    LOW_QUANTILE,
    PAPER_DEVICE,
    SERVER,
    SituationResult,
)

__all__ = ["pd_tables", "shared_tables", "situation_table"]

_REASONS: Final = {
    NoShare.SERVER_PACE: "server too slow",
    NoShare.DEVICE_PACE: "device writes too slowly",
    NoShare.READING_PACE: "device reads too slowly",
    NoShare.TOO_MANY: f"> {LONGEST_ANSWER:,}",
    NoShare.NOT_CHEAPER: "not cheaper",
}
_REFINERS: Final = (PARALLEL, LEXICAL, MASK)


def pd_tables(result: PdResult) -> list[PaperTable]:
    """Return the tables: claims, prompt lengths, the seam, drawn requests, capacity, masks, and what is assumed."""
    before, after = _shared(result)
    return [*before, situation_table(result.situations), *after]


def shared_tables(result: PdResult) -> list[PaperTable]:
    """Return all tables but that of the situations."""
    before, after = _shared(result)
    return [*before, *after]


def _shared(result: PdResult) -> tuple[list[PaperTable], list[PaperTable]]:
    before = [_claims(result), *(_lengths(result, kept) for kept in KEPT), _smooth(result), _seams(result)]
    after = [
        _quantiles(result),
        _capacity(result),
        _masks(result),
        _refinement(result),
        *measured_tables(),
        PaperTable(
            "Contradictions of the paper", ("where", "what is shown here"), contradictions(result), ()
        ),
        PaperTable("Assumed constants", ("constant", "value", "source"), ASSUMED, ()),
        PaperTable("Not reproduced", ("what", "why"), NOT_REPRODUCED, ()),
    ]
    return before, after


def _claims(result: PdResult) -> PaperTable:
    return PaperTable(
        "What the paper's text says of its figures, beside ours",
        ("figure", "printed", "here", "verdict"),
        claims(result),
        ("Its figures are images: only what the text names is compared.",),
    )


def _lengths(result: PdResult, kept: float) -> PaperTable:
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
    return PaperTable(
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


def _smooth(result: PdResult) -> PaperTable:
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
    return PaperTable(
        f"Figures 3b, 7c: TPOT_smooth in ms by L, NPU-like device, r = {KEPT[0]:g} (* above tau)",
        ("l", "L", "Eq. 4", "consistent", "ours, lexical", "ours, server mask", "ours, whole prompt"),
        rows,
        ("Printed: tens of ms with 20 tokens, about a tenth of that with 2. Ours needs more than 2 tokens.",),
    )


def _seams(result: PdResult) -> PaperTable:
    rows = tuple(
        (
            f"{row.prompt_tokens:,}",
            str(row.tokens),
            *(f"{row.stall_s[name]:.2f}" for name in (PRINTED, CONSISTENT, OURS)),
            *(f"{row.longest_gap_s[name]:.2f}" for name in (PRINTED, CONSISTENT, OURS)),
        )
        for row in result.seams
    )
    return PaperTable(
        f"The seam: stall and longest gap in s, NPU-like device, r = {KEPT[0]:g}, the same L for all",
        (
            "l",
            "L",
            "stall, Eq. 4",
            "stall, consistent",
            "stall, ours",
            "gap, Eq. 4",
            "gap, consistent",
            "gap, ours",
        ),
        rows,
        (
            (
                "Played token by token. Stall: how much later than the display's pace the first token after the seam "
                "comes. Ours: lexical refiner, which keeps as much; its display is set as in the table above."
            ),
        ),
    )


def situation_table(situations: tuple[SituationResult, ...]) -> PaperTable:
    """Return the table of servers and devices on drawn requests."""
    p50, p90, p99 = (LEVELS.index(level) for level in (0.5, 0.9, 0.99))
    rows = tuple(
        (
            one.server,
            one.device,
            "off" if one.kept is None else f"{one.kept:g}",
            *(f"{one.mean_s[arm]:.2f}" for arm in (SERVER, DEVICE, ASSIST)),
            " / ".join(f"{one.ttft_s[ASSIST][i]:.2f}" for i in (p50, p90, p99)),
            f"{one.mean_s[PAPER_DEVICE]:.2f}",
            f"{100 * one.feasible:.0f} %",
            UNKNOWN if one.tokens is None else f"{one.tokens[0]:.0f} / {one.tokens[1]:.0f}",
            f"{100 * one.handed_over:.0f} %",
            f"{100 * one.late:.1f} %",
            f"{100 * one.server_tokens:.0f} %",
            f"{100 * one.money:.0f} %",
        )
        for one in situations
    )
    requests = situations[0].requests if situations else 0
    return PaperTable(
        f"Figure 7a on {requests:,} drawn requests: TTFT in s, L, and the server's part",
        (
            "server",
            "device",
            "lexical r",
            "server only",
            "device only",
            "assist",
            "assist P50 / 90 / 99",
            "TTFT_d, r = .25",
            "with an L",
            "L P50 / 90",
            "handed over",
            "late",
            "server's tokens",
            "bill",
        ),
        rows,
        (
            (
                f"L is the solver's, for the {100 * LOW_QUANTILE:g} % quantile of the server's TTFT. Requests without "
                "an L are the server's alone. Handed over: of all requests; the other answers were "
                "shorter than L, or the device was first. Late: of those handed over, the share whose device came "
                "after its time; that happens only where the server was faster than that quantile."
            ),
            "Server's tokens and bill: relative to the server writing every answer; the bill includes all prompts.",
            "TTFT_d: Eq. 3, when the paper's device can take over. Printed: its mean is 60 % below device-only.",
        ),
    )


def _quantiles(result: PdResult) -> PaperTable:
    rows = tuple(
        (
            one.server,
            f"{100 * one.low_quantile:g} %",
            UNKNOWN if one.tokens is None else f"{one.tokens[0]:.0f}",
            f"{100 * one.late:.1f} %",
            f"{100 * one.late_though_slow:.1f} %",
            f"{one.late_p99_s:.3f}",
            f"{100 * one.server_tokens:.1f} %",
        )
        for one in result.quantiles
    )
    return PaperTable(
        "Which quantile of the server's TTFT L should be computed for (NPU-like device, no refiner)",
        ("server", "quantile", "L P50", "late", "late, slow servers", "late P99 s", "server's tokens"),
        rows,
        (
            (
                "A server that is faster than expected leaves the device less time. Slow servers: those no faster than "
                "the quantile, of which none may be late."
            ),
        ),
    )


def _capacity(result: PdResult) -> PaperTable:
    whole = result.capacity[-1]
    rows = tuple(
        (
            "whole answer" if row.tokens is None else str(row.tokens),
            f"{row.formula:.1f}x",
            *(
                f"{rate:.1f} ({rate / most:.1f}x)"
                for rate, most in (
                    (row.fixed_rps, whole.fixed_rps),
                    (row.real_rps, whole.real_rps),
                    (row.pools_rps, whole.pools_rps),
                    (row.refining_rps, whole.refining_rps),
                )
            ),
        )
        for row in result.capacity
    )
    return PaperTable(
        f"Figures 3d, 7d: requests/s that the server holds with P99 TTFT <= {MOST_WAIT_S:g} s, by L",
        (
            "L",
            "paper's formula",
            f"one pool, {WHOLE_ANSWER} tokens",
            "one pool, real answers",
            "two pools",
            "two pools, refining",
        ),
        rows,
        (
            f"Formula: T({WHOLE_ANSWER})/T(L) at l = {FORMULA_PROMPT:,}. Printed: 1.6 to 15, for 100 to 10 tokens.",
            (
                f"Queues: {result.arrivals:,} arrivals of {result.source}, drawn from a table of derived numbers; time "
                f"is stretched. One pool: a request holds one of {SLOTS} slots from its prefill to its last token. "
                f"Two pools: one prefill worker, then {SLOTS} slots; the wait for a slot may be as long as that "
                "for the first token. Refining: the worker also makes the mask."
            ),
        ),
    )


def _masks(result: PdResult) -> PaperTable:
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
    return PaperTable(
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


def _refinement(result: PdResult) -> PaperTable:
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
    return PaperTable(
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
                "lexical refiner's own time is not counted; docs/refine.md has it."
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
