"""The SDK's own tests, from the source distribution of the installed version."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["sdk_tests"]


def sdk_tests(version: str, kept: Path) -> Path:
    """Return the folder that holds the SDK's `tests`, fetched from the package index unless it is there already.

    Args:
        version: openai's version.
        kept: the folder in which fetched sources are kept.

    Raises:
        SystemExit: the index has no source distribution of that version, or it carries no tests.
    """
    folder = kept / f"openai-{version}"
    if not folder.exists():
        print(f"Fetching the source of openai {version} from the package index.", flush=True)
        kept.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        only = ["--no-deps", "--no-binary", "openai", "--dest", str(kept), f"openai=={version}"]
        if subprocess.run([*pip, *only], check=False).returncode:
            raise SystemExit(_instead(f"The package index gave no source distribution of openai {version}."))
        with tarfile.open(kept / f"openai-{version}.tar.gz") as archive:
            archive.extractall(kept, filter="data")
    if not (folder / "tests" / "conftest.py").exists():
        raise SystemExit(_instead(f"The source distribution of openai {version} carries no tests."))
    return folder


def _instead(what: str) -> str:
    return f"{what} Name a checkout of openai-python instead: make test-sdk SDK_TESTS=folder"
