"""The SDK's own tests as a check of ours: run with the SDK's classes, then with ours in their place, and compared.

    make test-sdk                                  the tests of the installed version of openai
    make test-sdk SDK_TESTS=folder                 those of a checkout of openai-python
    make test-sdk SDK_FILES="tests/test_client.py" some files only
    python tests/sdk/run.py --compare first.json second.json

The exit status is 0 if enough of the tests that pass with the SDK's classes pass with ours (`comparison.WANTED`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from api_server import api_server
from comparison import ARMS, WANTED, Arm, lines_per_file, misses, shares
from fetch import sdk_tests
from reasons import REASONS

HERE = Path(__file__).parent
KEPT = HERE.parents[1] / ".sdk-tests"  # fetched sources, pytest's output, results
NOT_OURS = ("tests/test_uv_workflows.py",)  # about the tools of the SDK's repository; takes minutes
TEST_S = 180  # no test of theirs takes a tenth of it


def main() -> int:
    """Run the arms, print the comparison, and return the exit status."""
    asked = _arguments()
    if asked.compare:
        return _compare(*(json.loads(path.read_text()) for path in asked.compare))
    KEPT.mkdir(exist_ok=True)
    folder = asked.tests or sdk_tests(version("openai"), KEPT)
    made: dict[str, Any] = {}
    with api_server() as api:
        for arm in ["plain", *asked.arms]:
            made[arm] = _run(arm, folder, asked.files, api, asked.processes, made.get("plain"))
            _write(made, asked.json)  # what there is, should a later arm be interrupted
    return _report(_write(made, asked.json), asked.json)


def _write(made: dict[str, Any], path: Path) -> dict[str, Any]:
    result = {"openai": version("openai"), "arms": made}
    path.write_text(json.dumps(result, indent=1))
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", default=["tests"], help="files or folders, as the SDK names them")
    parser.add_argument(
        "--tests", type=Path, help="a checkout of openai-python; default: the source on the index"
    )
    parser.add_argument("--arms", nargs="+", default=["server", "local"], choices=["server", "local"])
    parser.add_argument("--processes", default="2", help="pytest-xdist's -n")
    parser.add_argument(
        "--json", type=Path, default=KEPT / "result.json", help="where the outcomes are written"
    )
    parser.add_argument(
        "--compare", type=Path, nargs=2, help="two such files: which tests changed, arm by arm"
    )
    return parser.parse_args()


def _run(
    arm: str, folder: Path, files: Sequence[str], api: str, processes: str, plain: dict[str, Any] | None
) -> dict[str, Any]:
    """Run one arm: with our classes only what passes with the SDK's, and what failed once more, alone."""
    passing = (
        None if plain is None else [n for n, outcome in plain["outcomes"].items() if outcome == "passed"]
    )
    print(f"{ARMS[arm]}:", flush=True)
    made = _pytest(arm, folder, files, api, processes, passing)
    failed = [name for name, outcome in made["outcomes"].items() if outcome == "failed"]
    if passing is not None and failed:
        # Many of these tests measure time; on a busy machine some fail for that alone.
        again = _pytest(arm, folder, files, api, "0", failed)
        made["at_second_run"] = [name for name in failed if again["outcomes"].get(name) == "passed"]
        for name in made["at_second_run"]:
            made["outcomes"][name] = "passed"
            made["errors"].pop(name, None)
    return made


def _pytest(
    arm: str, folder: Path, files: Sequence[str], api: str, processes: str, only: Sequence[str] | None
) -> dict[str, Any]:
    result, output, names = (KEPT / f"{arm}.{ending}" for ending in ("json", "txt", "names"))
    result.unlink(missing_ok=True)
    settings = {
        "DISCO_SDK_ARM": arm,
        "DISCO_SDK_RESULT": str(result.absolute()),
        "DISCO_SDK_ONLY": "",
        "PYTHONPATH": str(HERE.absolute()),
        "TEST_API_BASE_URL": api,
    }
    if only is not None:
        names.write_text("\n".join(only))
        settings["DISCO_SDK_ONLY"] = str(names.absolute())
    command = [sys.executable, "-m", "pytest", "-p", "put_in", "-p", "no:cacheprovider", "-o", "addopts="]
    command += ["-n", processes, "--tb=native", "--show-capture=no", "-q", f"--timeout={TEST_S}"]
    command += [f"--ignore={path}" for path in NOT_OURS]
    started = time.monotonic()
    with output.open("w") as log:
        # pytest's own output goes to a file; the plugin reports progress on the other stream.
        subprocess.run(
            [*command, *files], cwd=folder, env={**os.environ, **settings}, stdout=log, check=False
        )
    if not result.exists():
        raise SystemExit(f"pytest wrote no result; its output is in {output}:\n{output.read_text()[-2000:]}")
    made = json.loads(result.read_text())
    print(f"  {time.monotonic() - started:.0f} s; pytest's output is in {output}", flush=True)
    return made


def _report(result: dict[str, Any], path: Path) -> int:
    arms = {arm: Arm.of(made) for arm, made in result["arms"].items()}
    print(f"\nTests of openai {result['openai']} that pass, by file (< marks a difference)\n")
    print("\n".join(lines_per_file(arms)))
    for arm in arms:
        if arm != "plain":
            _print_misses(arms, arm, result["arms"][arm].get("at_second_run", []))
    print()
    enough, found = True, shares(arms)
    for (arm, kind), (passed, of) in found.items():
        if arm == "plain" or not of:
            continue
        aim = "" if kind else f", at least {WANTED[arm]:.0%} wanted"
        print(f"{ARMS[arm]}, {kind or 'both'}: {passed:,} of {of:,}, {passed / of:.2%}{aim}")
        enough = enough and (bool(kind) or passed >= WANTED[arm] * of)
    print(f"\nWritten to {path}")
    return 0 if enough else 1


def _print_misses(arms: dict[str, Arm], arm: str, at_second_run: Sequence[str]) -> None:
    missed = misses(arms, arm, REASONS)
    print(f"\n{ARMS[arm]}: {len(missed)} tests fail that pass with the plain SDK")
    for reason in sorted({m.reason for m in missed}):
        those = [m for m in missed if m.reason == reason]
        print(f"\n  {len(those)}: {reason or 'UNEXPLAINED'}")
        for one in those:
            print(f"    {one.name}\n        {one.error[:200]}")
    if at_second_run:
        print(f"\n  passed only when run a second time, alone: {', '.join(at_second_run)}")


def _compare(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Print which tests changed from one result to another; return 1 if any got worse."""
    worse = 0
    for arm in [arm for arm in first["arms"] if arm in second["arms"]]:
        before, after = (Arm.of(result["arms"][arm]) for result in (first, second))
        lost = [n for n in before.outcomes if before.passed(n) and not after.passed(n)]
        won = [n for n in after.outcomes if after.passed(n) and not before.passed(n)]
        print(f"{ARMS[arm]}: {len(won)} more pass, {len(lost)} no longer")
        print("".join(f"  + {name}\n" for name in won) + "".join(f"  - {name}\n" for name in lost), end="")
        worse += len(lost) if arm != "plain" else 0
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
