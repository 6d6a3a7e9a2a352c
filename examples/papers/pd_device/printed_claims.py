"""What the paper's text claims of its figures, beside ours; its contradictions; and what is not reproduced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from disco.replay import Claim
from papers.pd_device.assist_play import PRINTED
from papers.pd_device.assumptions import CLOUD, KEPT, NPU, SLOWEST_S, WHOLE_ANSWER, devices
from papers.pd_device.capacity import FORMULA_PROMPT
from papers.pd_device.length_figures import LengthRow, SmoothRow
from papers.pd_device.paper_forms import PaperCase, speedup

if TYPE_CHECKING:
    from papers.pd_device.pd_run import PdResult

__all__ = ["NOT_REPRODUCED", "claims", "contradictions"]

NOT_REPRODUCED: Final = (
    (
        "Table 2 (LongBench)",
        ("the models are not named, and the columns do not compare: the others run with the device's sliding window, "
        "the collaboration with the cloud's attention and its tokens, and L is not given"),
    ),
    ("Figure 8 (bad cases, larger cloud model)", "marks by human readers on the authors' own texts"),
    ("Figure 7b (quality by L)", "85 % of cloud-only, on the authors' own data; see the measured tables"),
    ("Figure 10b (longest prompt per node)", "a property of their NPU nodes"),
    ("Figure 10c (attention weights)", "their model and layers are not named"),
    ("Figure 10d (end-to-end on tablet and phone)", "no numbers in the text"),
    ("Figure 9a, 9b (breakdown)", "used as sources of the assumed constants, so nothing is left to compare"),
    ("Figure 3d", "the text says only that throughput is inverse to latency; see capacity"),
    ("All figures point by point", "images; the text names tens and hundreds"),
)  # fmt: skip
"""What of the paper is not reproduced, and why."""


def claims(result: PdResult) -> tuple[Claim, ...]:
    """Return the claims beside the figures of a run."""
    return tuple(_claims(result))


def _claims(result: PdResult) -> Iterator[Claim]:
    two, twenty = (_smooth(result, 2_000, n).printed for n in (2, 20))
    yield Claim(
        place="3b",
        claim="20 tokens bring TPOT_smooth to tens of ms, about 1/10 of that with 2",
        ours=f"l = 2,000: {1000 * two:.0f} ms with 2, {1000 * twenty:.0f} ms with 20 (1/{two / twenty:.1f})",
        reason="fits",
    )
    yield Claim(
        place="7c",
        claim="below 4k at most 20 tokens; 8k: 40, slightly above tau; longer at most 80 (32k: optimum about 50)",
        ours="least L of Eq. 6 at r = 0.25: "
        + ", ".join(
            f"{row.paper_tokens} at {row.prompt_tokens:,}"
            for row in _npu(result)
            if row.prompt_tokens >= 2_000
        ),
        reason="fits to 16k; at 32k 80 tokens cannot hide the prompt (contradiction 9)",
    )
    yield Claim(
        place="7c",
        claim="8k with 40 tokens: slightly above tau",
        ours=f"Eq. 4: {1000 * _smooth(result, 8_192, 40).printed:.0f} ms; consistent "
        f"{1000 * _smooth(result, 8_192, 40).consistent:.0f} ms",
        reason="the consistent form lies above tau",
    )
    cell = next(one for one in result.situations if (one.server, one.device) == ("paper's cloud", NPU.name))
    yield Claim(
        place="7a",
        claim="mean of TTFT_d 60 % below device-only",
        ours=f"{100 * cell.device_gain:.0f} % on drawn prompts (r = 0.25)",
        reason="same direction; r and the prompts of the figure are not given, and 1 - r bounds it",
    )
    capacity = [row for row in result.capacity if row.tokens is not None]
    cloud_s = CLOUD.refined_token_s(FORMULA_PROMPT)
    gains = [speedup(cloud_s, CLOUD.tpot_s, n, WHOLE_ANSWER) for n in range(10, 101, 10)]
    whole = result.capacity[-1]
    real = [row.pools_rps / whole.pools_rps for row in capacity]
    yield Claim(
        place="7d",
        claim="10 to 100 tokens against 200: 1.6 to 15 times, mean 7.6",
        ours=f"formula {min(gains):.1f} to {max(gains):.1f}, mean {sum(gains) / len(gains):.1f}; queue with two "
        f"pools and real answers {min(real):.1f} to {max(real):.1f}",
        reason=f"at l = {FORMULA_PROMPT:,}; no single length gives both extremes. The prefill pool ends the gain of "
        "small L",
    )
    mask = next(row for row in result.masks if (row.prompt_tokens, row.kept) == (8_192, 0.25))
    yield Claim(
        place="9c",
        claim="hundreds of KB with the first token at 8k; §3.2: several hundred bytes",
        ours=f"token mask {mask.by_sentence} to {mask.single} B, sentence mask {mask.sentence_bits} B, kept text "
        f"{mask.kept_text / 1000:.0f} KB",
        reason="§3.2 fits; Figure 9c is more than the whole prompt",
    )
    yield Claim(
        place="4b, 9d",
        claim="refinement in proportion to l, at 8k mostly 100-200 ms",
        ours=f"assumed: {1000 * CLOUD.refine_s * 8192:.0f} ms at 8k, before the first token; ours shows the first "
        "token before the mask, and the lexical refiner needs no server",
        reason="used as a constant",
    )


def contradictions(result: PdResult) -> tuple[Claim, ...]:
    """Return the paper's contradictions that a run can show."""
    long_seam = result.seams[-1]
    stalls = [row.stall_s[PRINTED] for row in result.seams]
    phone = devices()[-1]
    pixel = PaperCase(500, KEPT[0], CLOUD, phone)
    bounds = pixel.share_bounds(SLOWEST_S)
    npu = {row.prompt_tokens: row for row in _npu(result)}
    return (
        Claim(
            claim="1. Eqs. 1, 4 and the left of 6 let the device read from the request on, Eq. 3 from TTFT_c on",
            ours=f"the display of Eq. 4 stands still at the seam for TTFT_c + decompression: {min(stalls):.2f} to "
            f"{max(stalls):.2f} s (at {long_seam.prompt_tokens:,} tokens), for every L",
        ),
        Claim(
            claim="2. Problem P needs no solver: L is not in its objective, and TTFT_d grows with r",
            ours=f"r is the least one allowed and any L of Eq. 6 is optimal; at 8k: {npu[8_192].paper_tokens} to "
            f"{int(PaperCase(8_192, KEPT[0], CLOUD, NPU).share_bounds(SLOWEST_S)[1])}",
        ),
        Claim(
            claim="3. 'r = 1 still works' violates Eq. 5",
            ours=f"its right side is {npu[500].kept_bound:.2f} at 500 tokens and {npu[32_768].kept_bound:.2f} at 32k; "
            "ours reads the whole prompt from the request on",
        ),
        Claim(
            claim="4. Procedure 2 has the device write the cloud's L tokens again",
            ours=f"on the {phone.name} Eq. 6 is then empty at 500 tokens ({bounds[0]:.0f} <= L <= {bounds[1]:.0f}), "
            "though r = 0.25; ours reads them as a batch and is feasible",
        ),
        Claim(
            claim="6. The mask has several hundred bytes, KBs, or hundreds of KB",
            ours="see the table of masks; it is largest near r = 1/2, and does not fall with r",
        ),
        Claim(
            claim="7. Eq. 2 lets the first token wait for the refinement",
            ours=f"at 32k TTFT {npu[32_768].paper_token_s:.2f} s, and {npu[32_768].token_s:.2f} s with the mask "
            "after it",
        ),
        Claim(
            claim="9. At 32k 50 to 80 tokens are said to be enough, with tau about 100 ms",
            ours=f"with r = 0.25 and more than 10 s per 8k (Table 1) Eq. 6 asks for {npu[32_768].paper_tokens}",
        ),
        Claim(
            claim="12. 1/T treats prefill and decode as one pool, though they are separate",
            ours="see capacity: with two pools the gain ends where the prefill pool is full",
        ),
    )


def _npu(result: PdResult) -> list[LengthRow]:
    return [row for row in result.lengths if (row.device, row.kept) == (NPU.name, KEPT[0])]


def _smooth(result: PdResult, prompt_tokens: int, tokens: int) -> SmoothRow:
    return next(r for r in result.smooth if (r.prompt_tokens, r.tokens) == (prompt_tokens, tokens))
