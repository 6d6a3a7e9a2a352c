"""The figures that the RecServe paper prints, as data: every row of its Tables II and III.

Wu et al.: Recursive Offloading for LLM Serving in Multi-tier Networks, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CLASSES", "REQUESTS", "ROWS", "SEQUENCES", "Method", "PrintedRow"]

Method = Literal["EndServe", "EdgeServe", "CloudServe", "ColServe", "CasServe", "RecServe"]


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """One printed row.

    Attributes:
        dataset, method: as printed.
        parameter: ColServe's alpha, CasServe's setting, RecServe's beta; None for a single tier.
        thresholds: CasServe's thresholds of device and edge.
        quality: accuracy or BLEU, %.
        device, edge, cloud, total: bytes, in the table's unit (`PrintedRow.unit`); None where the table has a dash.
    """

    dataset: str
    method: Method
    parameter: float | None
    thresholds: tuple[float, float] | None
    quality: float
    device: float | None
    edge: float | None
    cloud: float | None
    total: float | None

    @property
    def unit(self) -> str:
        """The unit of the dataset's bytes."""
        return "M" if self.dataset in _MEGA else "K"

    @property
    def label(self) -> str:
        """The method with its parameter, such as "RecServe .3" or "CasServe #8"."""
        if self.parameter is None:
            return self.method
        if self.method == "CasServe":
            return f"CasServe #{self.parameter:g}"
        return f"{self.method} {f'{self.parameter:g}'.removeprefix('0')}"


CLASSES: Final = ("IMDB", "SST-2", "Rotten Tomatoes", "Yelp Polarity", "Amazon Polarity")
"""The datasets of Table II."""

SEQUENCES: Final = ("WMT16", "WMT19", "OPUS100")
"""The datasets of Table III."""

_MEGA: Final = frozenset(("IMDB", "Yelp Polarity", "Amazon Polarity"))

REQUESTS: Final = {
    "IMDB": 25_000,
    "SST-2": 872,
    "Rotten Tomatoes": 1_066,
    "Yelp Polarity": 38_000,
    "Amazon Polarity": 400_000,
    "WMT16": 2_999,
    "WMT19": 2_998,
    "OPUS100": 2_000,
}
"""Texts of the public evaluation splits. The paper does not print how many it used; these give plausible sizes."""

ROWS: Final = (
    PrintedRow("IMDB", "EndServe", None, None, 90.92, None, None, None, None),
    PrintedRow("IMDB", "EdgeServe", None, None, 92.29, 30.41, 30.41, None, 60.82),
    PrintedRow("IMDB", "CloudServe", None, None, 94.25, 30.41, None, 30.41, 60.82),
    PrintedRow("IMDB", "ColServe", 0.2, None, 91.32, 6.09, 7.33, 1.23, 14.65),
    PrintedRow("IMDB", "CasServe", 1, (0.85, 0.6), 92.33, 3.92, 4.4, 0.48, 8.8),
    PrintedRow("IMDB", "RecServe", 0.1, None, 92.35, 3.73, 4.15, 0.42, 8.3),
    PrintedRow("IMDB", "ColServe", 0.5, None, 91.88, 15.08, 22.72, 7.64, 45.44),
    PrintedRow("IMDB", "CasServe", 2, (0.99, 0.7), 93.32, 12.27, 15.35, 3.08, 30.7),
    PrintedRow("IMDB", "RecServe", 0.3, None, 93.74, 10.97, 14.61, 3.64, 29.22),
    PrintedRow("SST-2", "EndServe", None, None, 91.17, None, None, None, None),
    PrintedRow("SST-2", "EdgeServe", None, None, 94.38, 89.8, 89.8, None, 179.6),
    PrintedRow("SST-2", "CloudServe", None, None, 95.76, 89.8, None, 89.8, 179.6),
    PrintedRow("SST-2", "ColServe", 0.2, None, 91.74, 18.77, 22.6, 3.83, 45.2),
    PrintedRow("SST-2", "CasServe", 3, (0.97, 0.7), 93.35, 12.38, 13.58, 1.2, 27.16),
    PrintedRow("SST-2", "RecServe", 0.1, None, 93.58, 11.67, 12.97, 1.3, 25.94),
    PrintedRow("SST-2", "ColServe", 0.5, None, 92.43, 43.97, 63.18, 19.21, 126.36),
    PrintedRow("SST-2", "CasServe", 4, (0.998, 0.95), 94.95, 37.29, 44.57, 7.28, 89.14),
    PrintedRow("SST-2", "RecServe", 0.3, None, 95.30, 29.76, 40.56, 10.8, 81.12),
    PrintedRow("Rotten Tomatoes", "EndServe", None, None, 89.40, None, None, None, None),
    PrintedRow("Rotten Tomatoes", "EdgeServe", None, None, 90.34, 120.86, 120.86, None, 241.72),
    PrintedRow("Rotten Tomatoes", "CloudServe", None, None, 91.84, 120.86, None, 120.86, 241.72),
    PrintedRow("Rotten Tomatoes", "ColServe", 0.2, None, 89.68, 21.62, 25.23, 3.61, 50.46),
    PrintedRow("Rotten Tomatoes", "CasServe", 3, (0.97, 0.7), 90.71, 13.3, 14.27, 0.96, 28.53),
    PrintedRow("Rotten Tomatoes", "RecServe", 0.1, None, 90.62, 11.3, 13.05, 1.75, 26.1),
    PrintedRow("Rotten Tomatoes", "ColServe", 0.5, None, 89.77, 63.02, 93.45, 30.43, 186.9),
    PrintedRow("Rotten Tomatoes", "CasServe", 4, (0.998, 0.95), 91.18, 47.94, 57.69, 9.75, 115.38),
    PrintedRow("Rotten Tomatoes", "RecServe", 0.3, None, 91.46, 41.34, 53.53, 12.19, 107.06),
    PrintedRow("Yelp Polarity", "EndServe", None, None, 92.46, None, None, None, None),
    PrintedRow("Yelp Polarity", "EdgeServe", None, None, 95.28, 25.9, 25.9, None, 51.8),
    PrintedRow("Yelp Polarity", "CloudServe", None, None, 96.54, 25.9, None, 25.9, 51.8),
    PrintedRow("Yelp Polarity", "ColServe", 0.2, None, 92.91, 5.04, 6.03, 0.99, 12.06),
    PrintedRow("Yelp Polarity", "CasServe", 5, (0.85, 0.75), 94.58, 2.8, 3.62, 0.81, 7.23),
    PrintedRow("Yelp Polarity", "RecServe", 0.1, None, 94.63, 3.21, 3.55, 0.34, 7.1),
    PrintedRow("Yelp Polarity", "ColServe", 0.5, None, 93.89, 13.01, 19.55, 6.54, 39.1),
    PrintedRow("Yelp Polarity", "CasServe", 6, (0.995, 0.8), 95.62, 11.69, 13.93, 2.24, 27.86),
    PrintedRow("Yelp Polarity", "RecServe", 0.3, None, 96.06, 9.68, 12.39, 2.71, 24.78),
    PrintedRow("Amazon Polarity", "EndServe", None, None, 89.66, None, None, None, None),
    PrintedRow("Amazon Polarity", "EdgeServe", None, None, 92.88, 154.19, 154.19, None, 308.38),
    PrintedRow("Amazon Polarity", "CloudServe", None, None, 95.11, 154.19, None, 154.19, 308.38),
    PrintedRow("Amazon Polarity", "ColServe", 0.2, None, 90.20, 30.76, 36.88, 6.12, 73.76),
    PrintedRow("Amazon Polarity", "CasServe", 7, (0.9, 0.6), 91.71, 18.72, 21.04, 2.33, 42.09),
    PrintedRow("Amazon Polarity", "RecServe", 0.1, None, 91.88, 17.19, 19.09, 1.9, 38.18),
    PrintedRow("Amazon Polarity", "ColServe", 0.5, None, 91.38, 77.21, 115.86, 38.65, 231.72),
    PrintedRow("Amazon Polarity", "CasServe", 6, (0.995, 0.8), 93.42, 56.75, 72.27, 15.52, 144.54),
    PrintedRow("Amazon Polarity", "RecServe", 0.3, None, 94.20, 51.64, 68.19, 16.56, 136.39),
    PrintedRow("WMT16", "EndServe", None, None, 23.18, None, None, None, None),
    PrintedRow("WMT16", "EdgeServe", None, None, 28.87, 689.87, 689.87, None, 1379.74),
    PrintedRow("WMT16", "CloudServe", None, None, 29.26, 727.11, None, 727.11, 1454.22),
    PrintedRow("WMT16", "ColServe", 0.5, None, 26.44, 356.49, 545.08, 188.59, 1090.15),
    PrintedRow("WMT16", "CasServe", 8, (0.05, 0.001), 26.00, 442.04, 674.09, 232.04, 1348.17),
    PrintedRow("WMT16", "RecServe", 0.5, None, 26.60, 309.67, 454.55, 144.88, 909.1),
    PrintedRow("WMT16", "ColServe", 0.3, None, 25.00, 205.7, 269.89, 64.19, 539.78),
    PrintedRow("WMT16", "CasServe", 9, (0.025, 0.0002), 24.30, 199.91, 258.58, 58.67, 517.16),
    PrintedRow("WMT16", "RecServe", 0.3, None, 25.16, 167.6, 214.57, 46.97, 429.14),
    PrintedRow("WMT19", "EndServe", None, None, 24.77, None, None, None, None),
    PrintedRow("WMT19", "EdgeServe", None, None, 31.28, 702.66, 702.66, None, 1405.32),
    PrintedRow("WMT19", "CloudServe", None, None, 31.37, 731.13, None, 731.13, 1462.26),
    PrintedRow("WMT19", "ColServe", 0.5, None, 28.01, 359.49, 546.55, 187.06, 1093.1),
    PrintedRow("WMT19", "CasServe", 10, (0.055, 0.001), 27.54, 433.04, 660.52, 227.48, 1321.04),
    PrintedRow("WMT19", "RecServe", 0.5, None, 28.38, 332.13, 488.38, 156.25, 976.76),
    PrintedRow("WMT19", "ColServe", 0.3, None, 26.52, 211.43, 278.63, 67.2, 557.26),
    PrintedRow("WMT19", "CasServe", 8, (0.05, 0.001), 25.75, 188.79, 251.65, 62.86, 503.3),
    PrintedRow("WMT19", "RecServe", 0.3, None, 26.85, 177.97, 224.53, 46.56, 449.06),
    PrintedRow("OPUS100", "EndServe", None, None, 15.70, None, None, None, None),
    PrintedRow("OPUS100", "EdgeServe", None, None, 21.44, 293.71, 293.71, None, 587.42),
    PrintedRow("OPUS100", "CloudServe", None, None, 19.44, 388.19, None, 388.19, 776.38),
    PrintedRow("OPUS100", "ColServe", 0.5, None, 18.40, 178.09, 278.96, 100.87, 557.92),
    PrintedRow("OPUS100", "CasServe", 11, (0.07, 0.01), 17.84, 216.83, 364.33, 147.5, 728.66),
    PrintedRow("OPUS100", "RecServe", 0.5, None, 18.63, 152.67, 237.16, 84.49, 474.32),
    PrintedRow("OPUS100", "ColServe", 0.3, None, 16.98, 90.56, 127.31, 36.75, 254.62),
    PrintedRow("OPUS100", "CasServe", 12, (0.03, 0.001), 17.10, 112.45, 178.93, 66.48, 357.86),
    PrintedRow("OPUS100", "RecServe", 0.3, None, 17.67, 66.98, 86.53, 19.55, 173.06),
)
"""Every row, Table II first."""
