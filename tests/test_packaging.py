"""The wheel carries what an installed disco needs, and nothing else."""

from __future__ import annotations

import configparser
import os
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


def stems(folder: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob("*.toml")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--quiet", "--no-index"]
    command += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_is_the_package_its_data_and_its_metadata(names):
    metadata = {name for name in names if ".dist-info/" in name}
    kinds = {".py", ".css", ".js"}
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "disco").rglob("*") if path.suffix in kinds}
    data = {f"disco/_data/{kind}/{stem}.toml" for kind in ("policies", "profiles") for stem in stems(kind)}
    assert names - metadata == {path.replace(os.sep, "/") for path in code} | data | {"disco/py.typed"}
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_the_wheel_installs_the_command_line(wheel, names):
    (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    parser = configparser.ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        parser.read_string(archive.read(entry_points).decode())
    assert parser["console_scripts"]["disco"] == "disco.cli:main"


def test_an_installed_wheel_finds_its_presets_and_profiles(wheel, tmp_path):
    """Run away from the checkout, isolated: only the unpacked wheel and the installed dependencies."""
    target = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    ran = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM, str(target)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.splitlines()[0].split()) == stems("policies")
    assert "profile" in ran.stdout


def test_a_wheel_can_be_built_from_the_source_archive(wheel, names, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    archive = tmp_path / hatchling_build.build_sdist(str(tmp_path))
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (top,) = (path for path in tmp_path.iterdir() if path.is_dir())
    for name in ("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "tests/conftest.py", "policies", "docs"):
        assert (top / name).exists()
    monkeypatch.chdir(top)
    again = tmp_path / hatchling_build.build_wheel(str(tmp_path))
    with zipfile.ZipFile(again) as built:
        assert set(built.namelist()) == names


def test_importing_disco_leaves_numpy_to_the_first_client():
    program = "import sys, disco; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 0
