"""Tables of drawn requests: TTFT and L, the quantile that L is computed for, sessions, and capacity."""

from __future__ import annotations

from disco.replay import Table
from papers.evaluation import UNKNOWN
from papers.pd_device.assumptions import SLOWEST_S, WHOLE_ANSWER
from papers.pd_device.capacity import FORMULA_PROMPT, MOST_WAIT_S, SLOTS
from papers.pd_device.pd_run import PdResult
from papers.pd_device.ttft_runs import (
    ASSIST,
    DEVICE,
    LEVELS,
    LOW_QUANTILE,
    PAPER_DEVICE,
    SERVER,
    SituationResult,
)

__all__ = ["capacity_table", "quantile_table", "session_table", "situation_table"]


def situation_table(situations: tuple[SituationResult, ...]) -> Table:
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
    return Table(
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


def session_table(result: PdResult) -> Table:
    """Return the table of the sessions, with the assist's closed forms on the same requests."""
    rows = [
        (
            one.server,
            one.device,
            one.arm,
            f"{one.mean_s:.2f}",
            " / ".join(f"{value:.2f}" for value in one.ttft_s),
            f"{100 * one.moved:.0f} %",
            f"{100 * one.late_answers:.1f} %",
            f"{one.longest_gap_s:.2f}",
            f"{100 * one.server_tokens:.0f} %",
            f"{100 * one.money:.0f} %",
        )
        for one in result.sessions
    ]
    p50, p90, p99 = (LEVELS.index(level) for level in (0.5, 0.9, 0.99))
    for one in result.session_assists:
        last = max(i for i, row in enumerate(rows) if row[:2] == (one.server, one.device))
        times = one.ttft_s[ASSIST]
        rows.insert(
            last + 1,
            (
                one.server,
                one.device,
                "assist, closed form",
                f"{one.mean_s[ASSIST]:.2f}",
                " / ".join(f"{times[i]:.2f}" for i in (p50, p90, p99)),
                f"{100 * one.handed_over:.0f} %",
                UNKNOWN,
                UNKNOWN,
                f"{100 * one.server_tokens:.0f} %",
                f"{100 * one.money:.0f} %",
            ),
        )
    requests = result.sessions[0].requests if result.sessions else 0
    return Table(
        f"Sessions in virtual time on {requests:,} drawn requests, beside the closed forms",
        (
            "server",
            "device",
            "arm",
            "TTFT mean",
            "TTFT P50 / 90 / 99",
            "to the device",
            "late answers",
            "longest gap P99 s",
            "server's tokens",
            "bill",
        ),
        tuple(rows),
        (
            (
                f"The session of the live client, token by token, shown at {1 / SLOWEST_S:g} tokens/s. Race, then the "
                "device: both start, and the answer moves to the device once that pays and is in time. Not "
                "reading along: the device reads the server's tokens only when it is to go on, as before. Assist: no "
                f"refiner; L is the solver's for the {100 * LOW_QUANTILE:g} % quantile of the server's TTFT."
            ),
            (
                "Late answers: with a token that came after its time at that pace. Gaps: a word is shown at once, so "
                "that after a word of two tokens the reader waits for the time of two."
            ),
        ),
    )


def quantile_table(result: PdResult) -> Table:
    """Return the table of the quantiles of the server's TTFT that L may be computed for."""
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
    return Table(
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


def capacity_table(result: PdResult) -> Table:
    """Return the table of the requests per second that the server holds."""
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
    return Table(
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
