"""The paper's own formulas, as printed, and the consistent form of Eq. 4.

Index c is the cloud, d the device. Eqs. 1, 4 and the left side of 6 let the device read from the time of the request;
Eq. 3 starts it at TTFT_c. So the display of Eq. 4 runs dry at the seam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from papers.pd_device.assumptions import Cloud, DeviceSpeed

__all__ = ["PaperCase", "speedup"]


@dataclass(frozen=True, slots=True)
class PaperCase:
    """One request of the paper: prompt length l, kept share r, cloud and device. Times are seconds."""

    prompt_tokens: int
    kept: float
    cloud: Cloud
    device: DeviceSpeed

    @property
    def cloud_token_s(self) -> float:
        """TTFT_c (Eq. 2)."""
        return self.cloud.refined_token_s(self.prompt_tokens)

    @property
    def prefill_s(self) -> float:
        """prefill_d(r·l) = k_d·r·l."""
        return self.device.read_s * self.kept * self.prompt_tokens

    @property
    def device_token_s(self) -> float:
        """TTFT_d (Eq. 3)."""
        return self.cloud_token_s + self.cloud.decompress_s + self.prefill_s

    def smooth_s(self, tokens: int) -> float:
        """TPOT_smooth (Eq. 4) for L = `tokens` > 1."""
        return self.device.tpot_s + (self.prefill_s - self.cloud_token_s) / (tokens - 1)

    def consistent_smooth_s(self, tokens: int) -> float:
        """Eq. 4 with the start of the device that Eq. 3 has: `TPOT_d + (TTFT_d − TTFT_c)/(L−1)`."""
        return self.device.tpot_s + (self.device_token_s - self.cloud_token_s) / (tokens - 1)

    def kept_bounds(self, least: float) -> tuple[float, float]:
        """Return both sides of Eq. 5 for ξ = `least`; δ(l) is refinement, round trip and decompression."""
        delta_s = self.cloud.refine_s * self.prompt_tokens + self.cloud.fixed_s + self.cloud.decompress_s
        return least, 1 - (self.cloud.read_s + delta_s / self.prompt_tokens) / self.device.read_s

    def share_bounds(self, slowest_s: float) -> tuple[float, float]:
        """Return the least and the most L of Eq. 6 as reals; an empty range is infeasible."""
        least = _ratio(self.prefill_s - self.cloud_token_s, slowest_s - self.device.tpot_s)
        most = _ratio(self.device_token_s - self.cloud_token_s, self.cloud.tpot_s)
        return 1 + least, 1 + most

    def least_tokens(self, slowest_s: float) -> int | None:
        """Return the least integer L > 1 of Eq. 6, the choice of §4.2; None where there is none."""
        least, most = self.share_bounds(slowest_s)
        return _first_integer(least, most)

    def consistent_least_tokens(self, slowest_s: float) -> int | None:
        """Return the least L > 1 with the consistent form of Eq. 4; None where there is none."""
        wait_s = self.device_token_s - self.cloud_token_s
        least = 1 + _ratio(wait_s, slowest_s - self.device.tpot_s)
        return _first_integer(least, 1 + _ratio(wait_s, self.cloud.tpot_s))

    def seam_stall_s(self, tokens: int) -> float:
        """Return how long the display of Eq. 4 stands still at the seam: `TTFT_c + decompress`, for every L > 1."""
        display_s = self.cloud_token_s + self.smooth_s(tokens) * (tokens - 1) + self.device.tpot_s
        device_s = self.device_token_s + self.device.tpot_s * tokens
        return device_s - display_s


def speedup(token_s: float, tpot_s: float, share: int, whole: int) -> float:
    """Return the paper's gain in requests/s (Table 1): `T(whole)/T(share)`, `T(L) = TTFT + TPOT·(L − 1)`."""
    return (token_s + tpot_s * (whole - 1)) / (token_s + tpot_s * (share - 1))


def _ratio(seconds: float, gained_s: float) -> float:
    return seconds / gained_s if gained_s > 0 else math.inf


def _first_integer(least: float, most: float) -> int | None:
    first = max(2, math.ceil(least - 1e-9)) if math.isfinite(least) else None
    return first if first is not None and first <= most + 1e-9 else None
