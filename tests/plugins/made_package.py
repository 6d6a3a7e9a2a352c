"""Installed packages, as far as entry points and imports can tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["install"]


def install(
    folder: Path,
    name: str,
    *,
    code: str = "",
    policies: Mapping[str, str] = {},
    endpoints: Mapping[str, str] = {},
) -> None:
    """Write the package `name` 1.0 with one module into a folder that is on the path.

    Args:
        folder: as pip's site-packages.
        name: of the distribution; with _ for -, of the module.
        code: the module's.
        policies, endpoints: attributes of the module by the names that it declares.
    """
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = {"disco.policies": policies, "disco.endpoints": endpoints}
    lines = [
        line
        for group, declared in groups.items()
        for line in (f"[{group}]", *(f"{key} = {module}:{value}" for key, value in declared.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
