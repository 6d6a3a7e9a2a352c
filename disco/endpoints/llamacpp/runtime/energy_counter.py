"""The energy that this machine's processors have taken, where the platform counts it: Linux's RAPL counters.

Most systems let only an administrator read them, and virtual machines have none. The counters are those of whole
packages, so what other programs do counts as well.

Source: the kernel's documentation of the power capping framework (`energy_uj`, `max_energy_range_uj`, µJ).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["EnergyCounter"]

FOLDER = Path("/sys/class/powercap")


class EnergyCounter:
    """Sums the counters of all packages. Mutable: `_seen_uj` (the counters as last read), `_total_uj`.

    Args:
        zones: a folder for each package.

    Raises:
        OSError, ValueError: a counter cannot be read.
    """

    def __init__(self, zones: list[Path]) -> None:
        self._zones = zones
        self._range_uj = [_number(zone / "max_energy_range_uj") for zone in zones]
        self._seen_uj = [_number(zone / "energy_uj") for zone in zones]
        self._total_uj = 0

    @classmethod
    def find(cls, folder: Path = FOLDER) -> EnergyCounter | None:
        """Return the counter of this machine; None where there is none that may be read."""
        try:
            # Packages only: cores and memory are zones below theirs, and the platform ("psys") has the packages in it.
            zones = sorted(zone for zone in folder.glob("intel-rapl:*") if zone.name.count(":") == 1)
            zones = [
                zone for zone in zones if (zone / "name").read_text(encoding="ascii").startswith("package")
            ]
            return cls(zones) if zones else None
        except (OSError, ValueError):
            return None

    def joules(self) -> float:
        """Return the energy since the counter was made, J; call it more often than a counter wraps (minutes).

        Raises:
            OSError, ValueError: a counter cannot be read any more.
        """
        now_uj = [_number(zone / "energy_uj") for zone in self._zones]
        for now, before, most in zip(now_uj, self._seen_uj, self._range_uj, strict=True):
            self._total_uj += now - before if now >= before else now - before + most
        self._seen_uj = now_uj
        return self._total_uj / 1e6


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
