"""The wheel carries what an installed disco needs, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent

# The build backend comes with the group `dev`.
hatchling_build = pytest.importorskip("hatchling.build")

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import disco, disco.cli
from disco.dispatch import available_presets, load_preset
from disco.profiles import available_profiles, load_device, load_lengths, load_prices, load_server
assert disco.__file__.startswith(sys.argv[1]), disco.__file__
assert load_preset("balanced").name == "balanced"
assert load_server("deepseek-v3-2025").name == "deepseek-v3-2025"
assert load_device("pixel7pro-bloom-1.1b").prefill_tps > 0
load_lengths("lengths-azure-conv-2023")
assert load_prices().find("gpt-4o-mini", "api.openai.com") is not None
print(*available_presets())
try:
    disco.cli.main(["--help"])
except SystemExit as done:
    assert done.code == 0
"""


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_of_checkout_and_source_archive_is_the_package_its_data_and_its_metadata(
    tmp_path, monkeypatch
):
    """And unpacked away from the checkout, isolated, with only the installed dependencies, it finds its data."""
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / hatchling_build.build_wheel(str(tmp_path))
    with tarfile.open(tmp_path / hatchling_build.build_sdist(str(tmp_path))) as tar:
        # Python before 3.11.4 knows no filters.
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (top,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "tests/conftest.py", "policies", "docs"):
        assert (top / name).exists()
    monkeypatch.chdir(top)
    found = names(wheel)
    assert names(top / hatchling_build.build_wheel(str(top))) == found
    assert wheel.stat().st_size <= 2e6
    metadata = {name for name in found if ".dist-info/" in name}
    kinds = {
        ".py",
        ".css",
        ".html",
        ".js",
        ".json",
        ".npz",
        ".gz",
        ".csv",
        ".md",
        ".toml",
        ".txt",
    }  # .json, .gz, .csv, .md: recorded numbers and their sources; .npz: trained ones; .toml: fleets; .txt: prompts
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "disco").rglob("*") if p.suffix in kinds}
    for kind in ("policies", "profiles"):
        expected |= {f"disco/_data/{kind}/{path.name}" for path in (ROOT / kind).glob("*.toml")}
    assert found - metadata == expected | {"disco/py.typed"}
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    (described,) = (name for name in metadata if name.endswith("/METADATA"))
    (entry_points,) = (name for name in metadata if name.endswith("/entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        description = archive.read(described).decode()
        assert "](https://github.com/disco-llm/disco/blob/main/CONTRIBUTING.md)" in description
        assert (
            re.findall(r"\]\((?!https?:|#)[^)]*\)", description) == []
        )  # the index shows it away from the files
        assert "[console_scripts]\ndisco = disco.cli:main\n" in archive.read(entry_points).decode()
        archive.extractall(tmp_path / "unpacked")
    command = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path / "unpacked")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    presets, *help_text = ran.stdout.splitlines()
    assert set(presets.split()) == {path.stem for path in (ROOT / "policies").glob("*.toml")}
    assert "profile" in "".join(help_text)
