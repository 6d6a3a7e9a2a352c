"""What the DSD paper claims, beside what a run shows; and where the paper contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from disco.replay import Claim
from papers.dsd.calibrate import loop_tokens
from papers.dsd.dsd_run import (
    ALONE,
    DISTRIBUTED,
    DRAFTERS,
    FUSED,
    LADDER,
    LOADS,
    ONE_WAY,
    OPTIMAL,
    ROUND_TRIPS_MS,
    DsdResult,
)
from papers.dsd.printed_values import (
    ADAPTIVE,
    CONFIGURATIONS,
    DATASETS,
    DYNAMIC,
    STATIC,
    WINDOWS,
    printed,
)

__all__ = ["claims", "contradictions", "crossover_ms"]


def claims(result: DsdResult) -> tuple[Claim, ...]:
    """Return the claims in the paper's order."""
    return tuple(_claims(result))


def crossover_ms(result: DsdResult, drafters: int, mode: str) -> float | None:
    """Return from which round trip on a mode on the server is faster than the distributed one, ms.

    Returns:
        -1 where it always is; None where it never is, up to the longest round trip.
    """
    flat = result.modes[mode, drafters, 0].cell.tpot_ms
    near = [result.modes[DISTRIBUTED, drafters, rtt].cell.tpot_ms for rtt in ROUND_TRIPS_MS]
    if near[0] >= flat:
        return -1.0
    for place in range(1, len(near)):
        if near[place] >= flat:
            share = (flat - near[place - 1]) / (near[place] - near[place - 1])
            return ROUND_TRIPS_MS[place - 1] + share * (ROUND_TRIPS_MS[place] - ROUND_TRIPS_MS[place - 1])
    return None


def _gains(result: DsdResult, window: str, part: str, base: str = STATIC) -> list[float]:
    """Return what a window changes against another one, %, in the twelve columns."""
    found = []
    for data in DATASETS:
        for number in CONFIGURATIONS:
            if (data, number, window) not in result.table2:
                continue
            was, now = (getattr(result.table2[data, number, arm].cell, part) for arm in (base, window))
            found.append(100 * (now / was - 1))
    return found


def _printed_gains(window: str, part: str, base: str = STATIC) -> list[float]:
    return [
        100 * (getattr(printed(data, number, window), part) / getattr(printed(data, number, base), part) - 1)
        for data in DATASETS
        for number in CONFIGURATIONS
    ]


def _range(values: list[float], decimals: int = 1) -> str:
    return f"{min(values):+.{decimals}f} to {max(values):+.{decimals}f}"


def _claims(result: DsdResult) -> Iterator[Claim]:
    own = _gains(result, ADAPTIVE, "requests_per_s")
    yield Claim(
        "AWC has more throughput than a static window",
        f"{_range(_printed_gains(ADAPTIVE, 'requests_per_s'))} %",
        f"{_range(own)} %; optimal in configuration 1 {_range(_gains(result, OPTIMAL, 'requests_per_s'))} %",
        holds=min(own) > 0,
        reason=f"true in {sum(gain > 0 for gain in own)} of 12 columns",
    )
    own = _gains(result, ADAPTIVE, "tpot_ms")
    yield Claim(
        "AWC has a lower TPOT than a static window",
        f"{_range(_printed_gains(ADAPTIVE, 'tpot_ms'))} % (as recomputed)",
        f"{_range(own)} %; optimal in configuration 1 {_range(_gains(result, OPTIMAL, 'tpot_ms'))} %",
        holds=max(own) < 0,
        reason=f"true in {sum(gain < 0 for gain in own)} of 12 columns",
    )
    own = _gains(result, DYNAMIC, "tpot_ms")
    yield Claim(
        "a dynamic window has a lower TPOT than a static one",
        f"{_range(_printed_gains(DYNAMIC, 'tpot_ms'))} %",
        f"{_range(own)} %",
        holds=max(own) < 0,
        reason=f"true in {sum(gain < 0 for gain in own)} of 12 columns; a draft token costs as much here as "
        "one of the "
        "target, so that its longer windows pay only where nearly every draft is right",
    )
    wins = _wins(result)
    yield Claim(
        "AWC has the best throughput in all 12 columns",
        "10 of 12 in the table itself",
        f"{wins} of 12",
        holds=wins == 12,
        reason="" if wins == 12 else "nor does it in the paper's own table",
    )
    adaptive, static = (
        fmean(result.table2[data, number, arm].cell.ttft_ms for data in DATASETS for number in CONFIGURATIONS)
        for arm in (ADAPTIVE, STATIC)
    )
    yield Claim(
        "AWC has a lower TTFT than a static window",
        f"{_range(_printed_gains(ADAPTIVE, 'ttft_ms'))} %",
        f"{_range(_gains(result, ADAPTIVE, 'ttft_ms'))} % (mean {100 * (adaptive / static - 1):+.1f} %)",
        reason="most of TTFT is the calibrated admission, which no window changes",
    )
    worse = _steps_up(result)
    first, last = (result.ladder[LADDER[place][0]].cell for place in (0, -1))
    yield Claim(
        "each policy of Figure 5 adds: throughput up, TPOT down",
        "25.1 to 28.1 requests/s, TPOT 45 to 37 ms",
        f"{first.requests_per_s:.1f} to {last.requests_per_s:.1f} requests/s, TPOT {first.tpot_ms:.1f} to "
        f"{last.tpot_ms:.1f} ms",
        holds=not worse,
        reason=f"the steps to {' and to '.join(worse)} do not lower TPOT" if worse else "",
    )
    always = crossover_ms(result, LOADS[1], FUSED) == -1.0
    yield Claim(
        "distributed beats fused at low round trips; they cross at 50-60 ms",
        "50-60 ms",
        "; ".join(
            f"{drafters:,} drafters: {_cross(crossover_ms(result, drafters, FUSED))}" for drafters in LOADS
        ),
        holds=False if always else None,
        reason="the server's cards here draft faster than an A40 or V100, and without a network"
        if always
        else "the place depends on the load",
    )
    yield _routing(result)
    yield _batching(result)
    yield _hardware(result)
    yield _round_trip(result)


def _cross(found_ms: float | None) -> str:
    if found_ms is None:
        return f"not up to {ROUND_TRIPS_MS[-1]} ms"
    return "fused is always faster" if found_ms < 0 else f"{found_ms:.0f} ms"


def _wins(result: DsdResult) -> int:
    wins = 0
    for data in DATASETS:
        for number in CONFIGURATIONS:
            rates = {w: result.table2[data, number, w].cell.requests_per_s for w in WINDOWS}
            wins += max(rates, key=rates.__getitem__) == ADAPTIVE
    return wins


def _steps_up(result: DsdResult) -> list[str]:
    """Return the steps of Figure 5 that raise TPOT."""
    tpots = [result.ladder[step].cell.tpot_ms for step, _ in LADDER]
    return [LADDER[n][0] for n in range(1, len(tpots)) if tpots[n] > tpots[n - 1] + 0.05]


def _routing(result: DsdResult) -> Claim:
    gaps = {
        drafters: result.policies["JSQ", drafters].cell.tpot_ms
        - result.policies["round-robin", drafters].cell.tpot_ms
        for drafters in DRAFTERS
    }
    few, many = [gap for n, gap in gaps.items() if n <= 1000], [gap for n, gap in gaps.items() if n > 1000]
    return Claim(
        "JSQ has a lower TPOT than round-robin up to 1,000 drafters, behind that a higher one",
        "-5 to -20 ms, then above 0",
        f"{_range(few)} ms, then {_range(many)} ms",
        reason=f"lower TPOT up to 1,000 drafters {'holds' if max(few) < 0 else 'does not hold'}; that "
        "round-robin wins later "
        f"{'holds' if max(many) > 0 else 'does not: JSQ knows which cards are slow, round-robin does not'}",
    )


def _batching(result: DsdResult) -> Claim:
    gaps = [
        result.policies["JSQ, LAB", drafters].cell.tpot_ms - result.policies["JSQ", drafters].cell.tpot_ms
        for drafters in DRAFTERS
    ]
    return Claim(
        "length-aware batches have a TPOT 1-2 ms lower",
        "-1 to -2 ms",
        f"{_range(gaps)} ms",
        holds=max(gaps) < 0 and min(gaps) <= -1,
        reason="attention is a small part of a pass, so that less padding saves little, and smaller batches "
        "cost more",
    )


def _hardware(result: DsdResult) -> Claim:
    alone = [
        result.table2[data, number, ALONE].cell.tpot_ms for data in DATASETS for number in CONFIGURATIONS
    ]
    below = sum(
        result.table2[data, number, ALONE].cell.tpot_ms
        < min(printed(data, number, window).tpot_ms for window in WINDOWS)
        for data in DATASETS
        for number in CONFIGURATIONS
    )
    return Claim(
        "drafting on the device speeds answers up (1.1 times)",
        "TPOT 36.2 to 108.5 ms",
        f"the target alone: {min(alone):.1f} to {max(alone):.1f} ms",
        reason=f"the plain cloud is below all printed TPOTs in {below} of 12 columns: one step of the draft "
        "model takes as "
        "long as one of the target",
    )


def _round_trip(result: DsdResult) -> Claim:
    def added(arm: str) -> list[float]:
        return [
            result.table2[data, far, arm].cell.tpot_ms - result.table2[data, near, STATIC].cell.tpot_ms
            for data in DATASETS
            for near, far in ((1, 3), (2, 4))
        ]

    paper = [
        printed(data, far, STATIC).tpot_ms - printed(data, near, STATIC).tpot_ms
        for data in DATASETS
        for near, far in ((1, 3), (2, 4))
    ]
    return Claim(
        "a round trip of 30 in place of 10 ms costs this much per token",
        f"{_range(paper)} ms (static)",
        f"{_range(added(STATIC))} ms; read as one way {_range(added(ONE_WAY))} ms",
        reason="impossible as printed: a round yields at least one token, so that 20 ms more per round are "
        "at most 20 ms per "
        "token; delays of 30 ms each way would fit better",
    )


def contradictions(result: DsdResult) -> tuple[Claim, ...]:
    """Return the paper's contradictions that a run or its own table can show."""
    static = [loop_tokens(data, number) for data in DATASETS for number in CONFIGURATIONS]
    grow = {data: printed(data, 2, STATIC).ttft_ms / printed(data, 1, STATIC).ttft_ms for data in DATASETS}
    ours = {
        data: result.table2[data, 2, STATIC].cell.ttft_ms / result.table2[data, 1, STATIC].cell.ttft_ms
        for data in DATASETS
    }
    return (
        Claim(
            "Eq. 1 is called accepted draft tokens, and counts the target's own token, too",
            ours="here: tokens per round; accepted are one less",
        ),
        Claim(
            "Eq. 2 knows no round trip and no queue, and takes a pass over more rows to cost what one row costs",
            ours="here: T = drafted x time of a draft token + RTT + queue + pass; TPOT = T/E",
        ),
        Claim(
            "Fused is draft and target on one server (§3.3, §5.2) and the target alone (§4.4)",
            ours="both are modes here; AWC goes over to the target alone",
        ),
        Claim(
            "Hysteresis has no way back from fused, where acceptance goes stale",
            ours="here: every 8th to 64th token a probe of 4 drafted ones",
        ),
        Claim(
            "Poisson arrivals in the text, a closed loop in Table 2",
            ours=f"drafters / throughput = TTFT + L TPOT gives L of {min(static):.0f} to {max(static):.0f} "
            "tokens, alike "
            "within each data set",
        ),
        Claim(
            "TTFT from 600 to 1,000 drafters",
            ours="; ".join(f"{data} x {grow[data]:.2f}, here x {ours[data]:.2f}" for data in DATASETS),
        ),
        Claim(
            "Table 2's percentages of TPOT are said to be relative to static",
            ours=f"8 of 12 are relative to AWC; recomputed {_range(_printed_gains(ADAPTIVE, 'tpot_ms'))} %",
        ),
        Claim(
            "Pools mix LLaMA-2, LLaMA-3 and Qwen under any routing",
            ours="here requests stay within their vocabulary",
        ),
    )
