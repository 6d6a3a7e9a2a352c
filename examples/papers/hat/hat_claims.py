"""What the HAT paper claims, beside what a run shows; and where the paper contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator

from disco.replay import Claim
from papers.hat.bandwidth_bound import bound_ms, cells, mark
from papers.hat.hat_fleets import DATA, MAKESPAN, SLOWNESS
from papers.hat.hat_printed import (
    ARM_NAMES,
    CNN_DM,
    DATASETS,
    FIGURE_8,
    GAINS,
    HAT,
    SARATHI,
    SLA,
    SPEC_BENCH,
    TABLE_4,
    TABLE_5,
    TBT_GROWTH,
    TTFT_AT,
    U_MEDUSA,
    U_SHAPE,
)
from papers.hat.hat_run import OURS, RATES, REPLIES, HatResult

__all__ = ["claims", "contradictions"]

_OTHERS = (SARATHI, U_MEDUSA, U_SHAPE)


def claims(result: HatResult) -> tuple[Claim, ...]:
    """Return the claims in the paper's order."""
    return tuple(_claims(result))


def _change(now: float, was: float) -> float:
    return 100 * (now / was - 1)


def _gains(result: HatResult, dataset: str, part: str, rate: float, reply: str = "all") -> list[float]:
    """Return what HAT changes against U-Sarathi, U-Medusa and U-shape, %."""
    points = {arm: getattr(result.loads[dataset, reply, arm, rate], part) for arm in ARM_NAMES}
    return [_change(points[HAT], points[arm]) for arm in _OTHERS]


def _list(values: list[float] | tuple[float, ...]) -> str:
    return ", ".join(f"{value:+.1f}" for value in values) + " %"


def _claims(result: HatResult) -> Iterator[Claim]:
    for figure, dataset, rate in (("6", SPEC_BENCH, 6.0), ("7", CNN_DM, 4.0)):
        hat, *others = TTFT_AT[figure, dataset]
        whole, last = (_gains(result, dataset, "ttft_ms", rate, reply) for reply in REPLIES)
        yield Claim(
            f"HAT's TTFT is below the others' (Figure {figure}, {dataset}, {rate:g} requests/s)",
            _list([_change(hat, other) for other in others]),
            f"{_list(whole)}; with the last row only {_list(last)}",
            holds=max(whole) < 0,
            reason="as long as the baselines download all rows, which nobody needs"
            f"; most of it is gone without that ({min(last):+.0f} % at best)",
        )
    for gain in GAINS:
        rate = DATA[gain.dataset].rate if gain.rate is None else gain.rate
        found = _gains(result, gain.dataset, gain.what, rate)
        wanted = [gain.sarathi, gain.u_medusa, gain.u_shape]
        part = "TBT" if gain.what == "tbt_ms" else "TTFT"
        yield Claim(
            f"HAT's {part} is below the others' (Figure {gain.figure}, {gain.dataset}, {rate:g} requests/s)",
            _list(wanted),
            _list(found),
            holds=max(found) < 0,
            reason=f"{_off(found, wanted):.0f} points off on average",
        )
    grown = [
        _change(
            result.loads[SPEC_BENCH, "all", arm, 9.0].tbt_ms, result.loads[SPEC_BENCH, "all", arm, 4.0].tbt_ms
        )
        for arm in ARM_NAMES
    ]
    yield Claim(
        "HAT's and U-Sarathi's TBT hardly grow from 4 to 9 requests/s, U-Medusa's and U-shape's do (Figure 6)",
        _list(TBT_GROWTH),
        _list(grown),
        holds=max(grown[:2]) < min(grown[2:]),
        reason="whole prompts hold up the tokens of all others in the pipeline",
    )
    yield _gpu_claim(result)
    for dataset in DATASETS:
        yield _sla_claim(result, dataset)
    speeds = {
        (dataset, arm): result.alone[dataset, U_SHAPE].tbt_ms / result.alone[dataset, arm].tbt_ms
        for dataset in DATASETS
        for arm in (U_MEDUSA, HAT)
    }
    yield Claim(
        "HAT decodes faster than U-Medusa (Table IV)",
        ", ".join(f"{TABLE_4[d][a][1]:.2f}x" for d, a in speeds),
        ", ".join(f"{speed:.2f}x" for speed in speeds.values()),
        holds=all(speeds[d, HAT] > speeds[d, U_MEDUSA] for d in DATASETS),
        reason="with both accept lengths as inputs; eight rows of a tree cost more on the link than a draft"
        " (U-Medusa, HAT; SpecBench, then CNN/DM)",
    )
    yield from _ablation_claims(result)


def _off(found: list[float], wanted: list[float]) -> float:
    return sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) / len(found)


def _gpu_claim(result: HatResult) -> Claim:
    shown, ratio = [], []
    for dataset in DATASETS:
        points = [result.loads[dataset, "all", arm, DATA[dataset].rate] for arm in (HAT, U_SHAPE)]
        shown.append(" / ".join(f"{p.gpu_ms:.1f} ± {p.gpu_sd_ms:.1f}" for p in points))
        ratio.append(points[0].gpu_sd_ms < 0.5 * points[1].gpu_sd_ms)
    printed = [
        " / ".join(f"{FIGURE_8[d][place][0]} ± {FIGURE_8[d][place][1]}" for place in (0, 3)) for d in DATASETS
    ]
    return Claim(
        "HAT's batches take short and even times, U-shape's do not (Figure 8, ms)",
        "; ".join(printed),
        "; ".join(shown),
        holds=all(ratio),
        reason="small chunks share batches with single tokens",
    )


def _sla_claim(result: HatResult, dataset: str) -> Claim:
    sla = SLA[dataset]
    whole, last = ([result.single[dataset, reply, arm].met for arm in ARM_NAMES] for reply in REPLIES)
    return Claim(
        f"only HAT keeps all prefills within {sla.limit_ms:.0f} ms per 128 tokens (Figure {sla.figure}, {dataset})",
        ", ".join(f"{value:.0f}" for value in sla.met) + " %",
        f"{_shares(whole)}; with the last row only {_shares(last)}",
        holds=whole[0] >= 0.995 and max(whole[1:]) < whole[0],
        reason="one GPU; the rate is not given, and these shares depend on it",
    )


def _shares(values: list[float]) -> str:
    return ", ".join(f"{100 * value:.0f}" for value in values) + " %"


def _ablation_claims(result: HatResult) -> Iterator[Claim]:
    for dataset in DATASETS:
        table = TABLE_5[dataset]
        whole, last = (
            _change(result.ablation[dataset, r, "PC"].ttft_ms, result.ablation[dataset, r, "none"].ttft_ms)
            for r in REPLIES
        )
        yield Claim(
            f"chunks lower TTFT (Table V, {dataset})",
            f"{_change(table['PC'][0], table['none'][0]):+.1f} %",
            f"{whole:+.1f} %; with the last row only {last:+.1f} %",
            holds=whole < 0,
            reason="against a baseline that downloads every row: the chunks' rows come down while others go up; "
            "one that downloads the last row gains less",
        )
        names = ("SD", "SD+PD", "SD+PC", "all")
        changes = [
            _change(
                result.ablation[dataset, "all", name].tbt_ms, result.ablation[dataset, "all", "none"].tbt_ms
            )
            for name in names
        ]
        wanted = [_change(table[name][1], table["none"][1]) for name in names]
        yield Claim(
            f"drafts, then parallel drafts, then chunks lower TBT (Table V, {dataset}; SD, SD+PD, SD+PC, all)",
            _list(wanted),
            _list(changes),
            holds=changes[0] < 0 and changes[3] == min(changes),
            reason=f"{_off(changes, wanted):.0f} points off on average; accept lengths are inputs",
        )
        pd = _change(
            result.ablation[dataset, "all", "all"].tbt_ms, result.ablation[dataset, "all", "SD+PC"].tbt_ms
        )
        yield Claim(
            f'parallel drafting "further" cuts TBT by 49.5 % (Table V, {dataset})',
            f"{_change(table['all'][1], table['SD+PC'][1]):+.1f} % in the table",
            f"{pd:+.1f} %",
            holds=False,
            reason="nor does it in the paper's own table: 49.5 % (SpecBench) is all three against none",
        )
    pairs = [
        (result.ablation[dataset, reply, name].ttft_ms, result.ablation[dataset, reply, name + OURS].ttft_ms)
        for dataset in DATASETS
        for reply in REPLIES
        for name in ("PC", "SD+PC", "all")
    ]
    loaded = [
        _change(
            result.loads[dataset, "all", MAKESPAN, rate].ttft_ms,
            result.loads[dataset, "all", HAT, rate].ttft_ms,
        )
        for dataset in DATASETS
        for rate in RATES[dataset]
    ]
    gains = [_change(ours, theirs) for theirs, ours in pairs]
    yield Claim(
        "(ours) chunks of the least makespan have a lower TTFT than those of (3)",
        "-",
        f"Table V {min(gains):+.1f} to {max(gains):+.1f} %; Figures 6 and 7 {min(loaded):+.1f} to {max(loaded):+.1f} %",
        reason=f"{sum(gain <= 0.05 for gain in gains)} of {len(gains)} cells of Table V are lower or equal; "
        "by the recursion "
        "it is never slower, here other requests change the load while a prompt is under way. (3) is near the best: "
        "where the uplink is the bottleneck, little depends on the size",
    )


def contradictions(result: HatResult) -> tuple[Claim, ...]:
    """Return where the paper contradicts itself, with what a run shows of it."""
    marked = [cell for cell in cells() if mark(cell)]
    spec, cnn = (bound_ms(name) for name in DATASETS)
    up, down = bound_ms(CNN_DM), bound_ms(CNN_DM, down=True)
    ours = result.ablation[SPEC_BENCH, "all", "all"].ttft_ms
    return (
        Claim(
            "No time is left for computing",
            ours=f"{len(marked)} of {len(cells())} printed TTFTs are on or below the bound of their links. "
            "SpecBench: HAT "
            f"384.2 ms, the uplink alone {spec.mean:.1f} (mean rate) or {spec.spread:.1f} (rates spread evenly); "
            f"CNN/DM: 1,027 to 1,040 ms, at the fastest rate {cnn.fastest:,.0f}. Here HAT needs {ours:.0f} ms, with "
            f"links {DATA[SPEC_BENCH].link_factor:.2f} times as fast as printed",
        ),
        Claim(
            "U-shape on CNN/DM is below its bound, too",
            ours=f"1,989 ms, but {down.mean:,.0f} ms of up and down at the mean rates. So the calibrated links are "
            f"{DATA[CNN_DM].link_factor:.2f} times as fast as printed; {up.mean:,.0f} ms up alone",
        ),
        Claim(
            "The baseline downloads what nobody needs",
            ours="The head needs the last position only. With that, U-shape takes "
            f"{result.ablation[SPEC_BENCH, 'last', 'none'].ttft_ms:.0f} ms in place of "
            f"{result.ablation[SPEC_BENCH, 'all', 'none'].ttft_ms:.0f} (SpecBench), and "
            f"{result.ablation[CNN_DM, 'last', 'none'].ttft_ms:,.0f} in place of "
            f"{result.ablation[CNN_DM, 'all', 'none'].ttft_ms:,.0f} (CNN/DM)",
        ),
        Claim(
            "Accept length",
            ours="Said to count accepted draft tokens, yet 1.00 without drafts: the model's own counts. 2.06 is 1.06",
        ),
        Claim(
            "Percentages that belong elsewhere",
            ours='The abstract\'s "TTFT -41 to -54 %, TBT -41 to -77 %" is CNN/DM at 4 requests/s alone; '
            "Figure 12's TTFT "
            "of CNN/DM (36.9, 40.7, 40.1) is like SpecBench's (36.9, 40.4, 40.5), not Figure 7's (41.3, 53.6, 52.0)",
        ),
        Claim(
            "Devices 10 times apart",
            ours=f"The calibrated mean is {SLOWNESS:.2f} times what an Orin needs to read the weights in "
            "fp16; the fastest "
            f"mode is then {SLOWNESS / 4.142:.2f} times that, faster than its memory. Either the spread is smaller, or "
            "the weights are",
        ),
    )
