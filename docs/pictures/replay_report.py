"""Takes the picture of a replay report: `python docs/pictures/replay_report.py`.

Needs Chromium, the extra `replay` and the group `docs`. The figures that the picture shows are kept beside it, in
replay-report.json, so that a test can tell whether they are still what the replay computes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))  # the tree that this file lies in

from disco.cli import main as disco  # noqa: E402

COMMAND: Final = (
    *("replay", "synthetic", "--requests", "5000", "--budget", "0:1:0.1"),
    *("--device", "xiaomi14-qwen1.5-0.5b", "--server", "gpt-4o-mini-2024"),
)
WIDTH, HEIGHT = 1180, 1380  # pixels: the findings and two rows of plots


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """Return what the picture shows of a report (`--json`): the title, the findings, mean and P99 TTFT by line."""
    lines = {}
    for cell in report["cells"]:
        name = f"{cell['arm']['policy']} {cell['arm']['budget']}"
        lines[name] = [round(cell["summary"][figure]["mean"], 4) for figure in ("ttft_mean_s", "ttft_p99_s")]
    return {"title": report["title"], "findings": report["findings"], "lines": lines}


def replayed(folder: Path) -> dict[str, Any]:
    """Run the replay into a folder, and return its figures."""
    page, data = folder / "report.html", folder / "report.json"
    if disco([*COMMAND, "--html", str(page), "--json", str(data)]):
        raise SystemExit("the replay failed")
    return figures(json.loads(data.read_text(encoding="utf-8")))


def main() -> None:
    """Take the picture."""
    from PIL import Image  # noqa: PLC0415 - the test needs the figures only

    chromium = next(found for name in ("chromium", "google-chrome") if (found := shutil.which(name)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = replayed(folder)
        shot = folder / "shot.png"
        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
        )
        size, page = f"--window-size={WIDTH},{HEIGHT}", (folder / "report.html").as_uri()
        subprocess.run([chromium, *flags, size, f"--screenshot={shot}", page], check=True)
        Image.open(shot).convert("P", palette=Image.Palette.ADAPTIVE).save(
            HERE / "replay-report.png", optimize=True
        )
    (HERE / "replay-report.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
