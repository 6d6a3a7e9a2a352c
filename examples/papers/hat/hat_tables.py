"""The result as plain tables, disco's figures beside the printed ones."""

from __future__ import annotations

from typing import Final

from disco.replay import Table, claim_table
from papers.evaluation import UNKNOWN
from papers.hat.bandwidth_bound import bound_ms, cells, mark
from papers.hat.first_experiments import PROMPTS, batch_s, parts
from papers.hat.hat_assumptions import ASSUMED
from papers.hat.hat_claims import claims, contradictions
from papers.hat.hat_fleets import DATA
from papers.hat.hat_printed import (
    ABLATION,
    ARM_NAMES,
    CNN_DM,
    DATASETS,
    FIGURE_8,
    SLA,
    SPEC_BENCH,
    TABLE_4,
    TABLE_5,
    TBT_11,
    TTFT_AT,
    U_SHAPE,
)
from papers.hat.hat_run import ARMS, OURS, RATES, REPLIES, HatPoint, HatResult

__all__ = ["ablation_table", "hat_tables", "load_table"]

_NO_RATE: Final = "Requests/s are not given: 6 (SpecBench) and the calibrated rate (CNN/DM)."


def hat_tables(result: HatResult) -> list[Table]:
    """Return all tables: claims, bounds, figures, tables, contradictions, what is assumed."""
    return [
        claim_table("Claims of the paper", claims(result)),
        _bounds(),
        _first(),
        *(load_table(result, name) for name in DATASETS),
        _gpu(result),
        *(_single(result, name) for name in DATASETS),
        _figure12(result),
        _table4(result),
        *(ablation_table(result, name) for name in DATASETS),
        claim_table("Contradictions of the paper", contradictions(result)),
        Table("Calibrated, taken over and assumed constants", ("constant", "value", "source"), ASSUMED, ()),
    ]


def _beside(paper: float | None, ours: float, digits: int = 0) -> str:
    """Return both and the deviation, or ours alone."""
    if paper is None:
        return f"{UNKNOWN}  {ours:.{digits}f}"
    return f"{paper:.{digits}f}  {ours:.{digits}f} ({100 * (ours / paper - 1):+.0f} %)"


def _bounds() -> Table:
    rows = []
    for cell in cells():
        bound = bound_ms(cell.dataset, down=cell.in_turn)
        rows.append(
            (
                cell.where,
                cell.dataset,
                f"{cell.ttft_ms:.1f}",
                *(f"{value:.0f}" for value in bound),
                mark(cell) or "possible",
            )
        )
    return Table(
        "Printed TTFT and the bound of the links, ms",
        ("where", "data set", "printed", "bound, rates spread", "mean rate", "fastest rate", "so it is"),
        tuple(rows),
        (
            (
                "Bound: tokens x bytes of a state / rate, up; where the prompt is one piece, also down, as the paper's "
                "baselines do. Nothing is left for computing at the bound. Rates are "
                "those printed, not calibrated; with MB of 2^20 bytes the bounds are 5 % lower."
            ),
        ),
    )


def _first() -> Table:
    printed = {2048: "3.57 = 0.09 + 0.28 + 3.20"}
    rows = []
    for prompt in PROMPTS:
        found = parts(prompt)
        moving = found.up + found.down
        whole = sum(found)
        rows.append(
            (
                f"TTFT of {prompt:,} tokens: device + cloud + links, s",
                printed.get(prompt, UNKNOWN),
                f"{whole:.2f} = {found.device:.2f} + {found.cloud:.2f} + {moving:.2f}",
            )
        )
    first = parts(PROMPTS[0])
    rows.append(
        (
            "share of communication, 128 tokens",
            "above 80 %",
            f"{100 * (1 - (first.device + first.cloud) / sum(first)):.0f} %",
        )
    )
    rows.append(("TTFT of 512 tokens, times that of 128", "4", f"{sum(parts(512)) / sum(first):.1f}"))
    one, many = batch_s(1, decodes=9), batch_s(32, decodes=9)
    rows.append(
        (
            "a batch with nine single tokens: 32 rows of a prompt against 1",
            "+10.1 %",
            f"{100 * (many / one - 1):+.1f} %",
        )
    )
    pieces = sum(batch_s(32, before=at, decodes=9) for at in range(0, 2048, 32))
    rows.append(
        (
            "2,048 tokens in 64 chunks of 32, nine single tokens in each batch: the cloud's time against one piece",
            "TTFT 6.6 times",
            f"{pieces / batch_s(2048, decodes=9):.1f}",
        )
    )
    return Table(
        "Figure 1 and the first experiments (7B, one Orin, U-shape)",
        ("what", "paper", "ours"),
        tuple(rows),
        (
            "In closed form, at the means of the printed rates; nothing here is calibrated. GPUs: not given, one here.",
        ),
    )


def load_table(result: HatResult, dataset: str) -> Table:
    """Return Figure 6 or 7: TTFT and TBT by requests/s, with both replies."""
    figure, rate_printed = ("6", 6.0) if dataset == SPEC_BENCH else ("7", 4.0)
    ttft = dict(zip(ARM_NAMES, TTFT_AT[figure, dataset], strict=True))
    rows = []
    for rate in RATES[dataset]:
        for arm in ARMS:
            whole, last = (result.loads[dataset, reply, arm, rate] for reply in REPLIES)
            rows.append(
                (
                    f"{rate:g}",
                    arm,
                    _beside(ttft.get(arm) if rate == rate_printed else None, whole.ttft_ms),
                    f"{last.ttft_ms:.0f}",
                    f"{whole.tbt_ms:.1f}",
                    f"{last.tbt_ms:.1f}",
                    f"{whole.chunk:.0f}",
                )
            )
    bound = bound_ms(dataset).spread / DATA[dataset].link_factor
    return Table(
        f"Figure {figure}, {dataset}: by requests/s; TTFT: paper, ours (deviation)",
        (
            "requests/s",
            "arm",
            "TTFT ms",
            "TTFT, last row",
            "TBT ms",
            "TBT, last row",
            "chunk, tokens",
        ),
        tuple(rows),
        (
            (
                f"The uplink's bound at the calibrated rates is {bound:.0f} ms. The text names TTFT at "
                f"{rate_printed:g} requests/s only; of TBT only ratios (see the claims). Four GPUs."
            ),
        ),
    )


def _gpu(result: HatResult) -> Table:
    rows = []
    for dataset in DATASETS:
        for place, arm in enumerate(ARMS):
            paper = FIGURE_8[dataset][place] if arm in ARM_NAMES else None
            point = result.loads[dataset, "all", arm, DATA[dataset].rate]
            rows.append(
                (
                    dataset,
                    arm,
                    f"{paper[0]:.1f} ± {paper[1]:.1f}" if paper else UNKNOWN,
                    f"{point.gpu_ms:.1f} ± {point.gpu_sd_ms:.1f}",
                )
            )
    return Table(
        "Figure 8: time of a batch on one of four GPUs, ms, with standard deviation",
        ("data set", "arm", "paper", "ours"),
        tuple(rows),
        (_NO_RATE,),
    )


def _single(result: HatResult, dataset: str) -> Table:
    sla = SLA[dataset]
    ttft = TTFT_AT["11", dataset] if dataset == SPEC_BENCH else None
    rows = []
    for place, arm in enumerate(ARMS):
        known = arm in ARM_NAMES
        whole, last = (result.single[dataset, reply, arm] for reply in REPLIES)
        ten_ms = whole.ten_50_ms if sla.share == 0.5 else whole.ten_90_ms
        rows.append(
            (
                arm,
                _beside(sla.met[place] if known else None, 100 * whole.met, 1),
                f"{100 * last.met:.1f}",
                _beside(sla.ten_ms[place] if known else None, ten_ms),
                _beside(ttft[place] if ttft and known else None, whole.ttft_ms),
                f"{last.ttft_ms:.0f}",
                _beside(TBT_11[place] if ttft and known else None, whole.tbt_ms, 1),
            )
        )
    return Table(
        f"Figure {sla.figure}{' and 11' if ttft else ''}, {dataset}, one GPU: paper, ours (deviation)",
        (
            "arm",
            f"prefill ≤ {sla.limit_ms:.0f} ms/128, %",
            "last row",
            f"ms per 10 tokens, {100 * sla.share:.0f} %",
            "TTFT ms",
            "TTFT, last row",
            "TBT ms",
        ),
        tuple(rows),
        (_NO_RATE + " Prefill: TTFT for each 128 tokens of the prompt begun.",),
    )


def _figure12(result: HatResult) -> Table:
    rate = DATA[CNN_DM].rate
    rows = []
    for arm in ARMS:
        whole, last = (result.loads[CNN_DM, reply, arm, rate] for reply in REPLIES)
        rows.append(
            (arm, *(f"{value:.0f}" for value in (whole.ttft_ms, last.ttft_ms)), f"{whole.tbt_ms:.1f}")
        )
    return Table(
        "Figure 12, CNN/DM, four GPUs",
        ("arm", "TTFT ms", "TTFT, last row", "TBT ms"),
        tuple(rows),
        ("The text has ratios only; see the claims. " + _NO_RATE,),
    )


def _table4(result: HatResult) -> Table:
    rows = []
    for dataset in DATASETS:
        base = result.alone[dataset, U_SHAPE].tbt_ms
        for arm, (accepted, speed_up) in TABLE_4[dataset].items():
            point = result.alone[dataset, arm]
            rows.append(
                (
                    dataset,
                    arm,
                    f"{accepted:.2f}" + ("" if arm == U_SHAPE else " (input)"),
                    f"{point.accept_length:.2f}",
                    _beside(speed_up, base / point.tbt_ms, 2),
                )
            )
    return Table(
        "Table IV, one request at a time: speed-up of decoding, paper, ours (deviation)",
        ("data set", "arm", "accept length, paper", "ours", "speed-up"),
        tuple(rows),
        (
            "The accept lengths of U-Medusa and of HAT are inputs, from this table; they count the model's own token.",
        ),
    )


def ablation_table(result: HatResult, dataset: str) -> Table:
    """Return a data set's part of Table V."""
    rows = []
    for column in ABLATION:
        ttft_ms, tbt_ms = TABLE_5[dataset][column.name]
        for name in (column.name, column.name + OURS):
            points = [result.ablation.get((dataset, reply, name)) for reply in REPLIES]
            whole, last = points
            if whole is None or last is None:
                continue
            is_ours = name != column.name
            rows.append(
                (
                    name,
                    _beside(None if is_ours else ttft_ms, whole.ttft_ms),
                    f"{last.ttft_ms:.0f}",
                    _beside(None if is_ours else tbt_ms, whole.tbt_ms, 1),
                    f"{last.tbt_ms:.1f}",
                    _drafts(whole),
                    f"{whole.chunk:.0f}",
                )
            )
    return Table(
        f"Table V, {dataset}: paper, ours (deviation)",
        ("on", "TTFT ms", "TTFT, last row", "TBT ms", "TBT, last row", "drafted, ready", "chunk"),
        tuple(rows),
        (
            (
                "Calibrated on the first row alone; all others are predictions. PC chunks, SD drafts, PD drafts in "
                "parallel; (ours): chunks of the least makespan in place of (3). Drafted: tokens of a draft; ready: "
                "share of drafts that were there when the verdict came."
            ),
        ),
    )


def _drafts(point: HatPoint) -> str:
    return f"{point.drafted:.1f}, {100 * point.hits:.0f} %" if point.drafted else UNKNOWN
