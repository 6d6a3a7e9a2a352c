"""TTFT, L and the pace of the display by prompt length, as the paper's formulas and our solver have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from disco.dispatch.assist_solver import NoShare, Refining, shares
from papers.pd_device.assist_play import PARALLEL, SEAM_ARMS, SeamArm, our_case, pace_s
from papers.pd_device.assumptions import (
    CLOUD,
    KEPT,
    LENGTHS,
    LOST_AT_CUT,
    NPU,
    SLOWEST_S,
    DeviceSpeed,
)
from papers.pd_device.paper_forms import PaperCase
from papers.pd_device.session_runs import SESSION_SEAM, play_session

__all__ = [
    "ALL_SEAM_ARMS",
    "SMOOTH_SHARES",
    "LengthRow",
    "SeamRow",
    "SmoothRow",
    "length_rows",
    "seam_rows",
    "smooth_rows",
]

SMOOTH_SHARES: Final = (2, 5, 10, 20, 40, 80)
"""L of the tables of the display's pace."""
ALL_SEAM_ARMS: Final[Mapping[str, SeamArm]] = {**SEAM_ARMS, SESSION_SEAM: play_session}
"""The closed forms, and the session."""


@dataclass(frozen=True, slots=True)
class LengthRow:
    """One prompt length on one device with one kept share.

    Attributes:
        device: its name.
        kept: r.
        prompt_tokens: l.
        device_only_s: the device's time to first token alone, s.
        token_s: our TTFT: the server's first token, without refinement, s.
        paper_token_s: the paper's TTFT_c (Eq. 2), s.
        paper_device_s: the paper's TTFT_d (Eq. 3), s.
        read_s: by refiner, when our device has read the prompt, s.
        kept_bound: the right side of Eq. 5; r must not exceed it.
        paper_tokens: the least L of Eq. 6 as printed; None where there is none.
        consistent_tokens: the same with the consistent form of Eq. 4.
        tokens: by refiner, our least L, or why there is none.
    """

    device: str
    kept: float
    prompt_tokens: int
    device_only_s: float
    token_s: float
    paper_token_s: float
    paper_device_s: float
    read_s: Mapping[str, float]
    kept_bound: float
    paper_tokens: int | None
    consistent_tokens: int | None
    tokens: Mapping[str, int | NoShare]


@dataclass(frozen=True, slots=True)
class SmoothRow:
    """The pace of the display on the NPU-like device, s per token.

    Attributes:
        prompt_tokens, kept, tokens: l, r and L.
        printed: Eq. 4.
        consistent: its consistent form.
        ours: by refiner; None where no token of the server would be shown.
    """

    prompt_tokens: int
    kept: float
    tokens: int
    printed: float
    consistent: float
    ours: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class SeamRow:
    """What happens at the seam on the NPU-like device with r = 0.25.

    Attributes:
        prompt_tokens: l.
        tokens: L, the consistent form's, for all arms.
        stall_s: by arm, how much later than its pace the first token after the seam comes, s.
        longest_gap_s: by arm, the longest time between two tokens, s.
    """

    prompt_tokens: int
    tokens: int
    stall_s: Mapping[str, float]
    longest_gap_s: Mapping[str, float]


def length_rows(
    devices: tuple[DeviceSpeed, ...], lengths: tuple[int, ...] = LENGTHS
) -> tuple[LengthRow, ...]:
    """Return one row for each device, kept share and prompt length."""
    return tuple(
        _length_row(PaperCase(tokens, kept, CLOUD, device))
        for device in devices
        for kept in KEPT
        for tokens in lengths
    )


def _length_row(case: PaperCase) -> LengthRow:
    ours = our_case(case)
    _, *candidates = shares(ours)
    return LengthRow(
        device=case.device.name,
        kept=case.kept,
        prompt_tokens=case.prompt_tokens,
        device_only_s=ours.read_s() + ours.device_overhead_s,
        token_s=ours.server_ttft_s,
        paper_token_s=case.cloud_token_s,
        paper_device_s=case.device_token_s,
        read_s={_name(one.refining): ours.read_s(one.refining) for one in candidates},
        kept_bound=case.kept_bounds(case.kept)[1],
        paper_tokens=case.least_tokens(SLOWEST_S),
        consistent_tokens=case.consistent_least_tokens(SLOWEST_S),
        tokens={_name(one.refining): _tokens(one.tokens, one.reason) for one in candidates},
    )


def smooth_rows(lengths: tuple[int, ...] = LENGTHS, kept: float = KEPT[0]) -> tuple[SmoothRow, ...]:
    """Return one row for each prompt length and L."""
    return tuple(
        _smooth_row(PaperCase(tokens, kept, CLOUD, NPU), share)
        for tokens in lengths
        for share in SMOOTH_SHARES
    )


def _smooth_row(case: PaperCase, tokens: int) -> SmoothRow:
    ours = our_case(case)
    return SmoothRow(
        prompt_tokens=case.prompt_tokens,
        kept=case.kept,
        tokens=tokens,
        printed=case.smooth_s(tokens),
        consistent=case.consistent_smooth_s(tokens),
        ours={
            _name(refining): pace_s(ours, ours.read_s(refining), tokens) if tokens > LOST_AT_CUT else None
            for refining in (None, *ours.refinings)
        },
    )


def seam_rows(lengths: tuple[int, ...] = LENGTHS, kept: float = KEPT[0]) -> tuple[SeamRow, ...]:
    """Return one row for each prompt length for which the paper's L exists."""
    return tuple(_seam_rows(lengths, kept))


def _seam_rows(lengths: tuple[int, ...], kept: float) -> Iterator[SeamRow]:
    for prompt_tokens in lengths:
        case = PaperCase(prompt_tokens, kept, CLOUD, NPU)
        tokens = case.consistent_least_tokens(SLOWEST_S)
        if tokens is None:
            continue
        tokens = max(tokens, LOST_AT_CUT + 1)
        played = {name: arm(case, tokens) for name, arm in ALL_SEAM_ARMS.items()}
        yield SeamRow(
            prompt_tokens,
            tokens,
            {name: one.stall_s for name, one in played.items()},
            {name: one.longest_gap_s for name, one in played.items()},
        )


def _name(refining: Refining | None) -> str:
    return PARALLEL if refining is None else refining.name


def _tokens(tokens: int | None, reason: NoShare | None) -> int | NoShare:
    if tokens is not None:
        return tokens
    assert reason is not None
    return reason
