"""The wheel carries what an installed disco needs, and nothing else."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent

# The build backend comes with the `dev` extra; `--no-index` proves that nothing is fetched.
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
assert "gpt-4o-mini" in load_prices().models
print(*available_presets())
try:
    disco.cli.main(["--help"])
except SystemExit as done:
    assert done.code == 0
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--quiet", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1200, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_is_the_package_its_data_and_its_metadata(wheel):
    found = names(wheel)
    metadata = {name for name in found if ".dist-info/" in name}
    kinds = {".py", ".css", ".js"}
    expected = {p.relative_to(ROOT).as_posix() for p in (ROOT / "disco").rglob("*") if p.suffix in kinds}
    for kind in ("policies", "profiles"):
        expected |= {f"disco/_data/{kind}/{path.name}" for path in (ROOT / kind).glob("*.toml")}
    assert found - metadata == expected | {"disco/py.typed"}
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)
    (entry_points,) = (name for name in metadata if name.endswith("/entry_points.txt"))
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        parser.read_string(archive.read(entry_points).decode())
    assert parser["console_scripts"]["disco"] == "disco.cli:main"


def test_an_installed_wheel_finds_its_presets_and_profiles(wheel, tmp_path):
    """Run away from the checkout, isolated: only the unpacked wheel and the installed dependencies."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    command = [sys.executable, "-I", "-c", PROGRAM, str(tmp_path / "unpacked")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.splitlines()[0].split()) == {
        path.stem for path in (ROOT / "policies").glob("*.toml")
    }
    assert "profile" in ran.stdout


def test_a_wheel_can_be_built_from_the_source_archive(wheel, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / hatchling_build.build_sdist(str(tmp_path))) as tar:
        tar.extractall(tmp_path, filter="data")
    (top,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "tests/conftest.py", "policies", "docs"):
        assert (top / name).exists()
    monkeypatch.chdir(top)
    assert names(tmp_path / hatchling_build.build_wheel(str(tmp_path))) == names(wheel)
