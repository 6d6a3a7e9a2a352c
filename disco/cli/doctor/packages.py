"""The installed packages: whether those that disco needs are there, in a version that fits, and can be loaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from typing import Final, NamedTuple

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, installs, unchecked, works
from disco.cli.doctor.hidden_secrets import known_secrets, quoted
from disco.endpoints.llamacpp.model.library import COMPILED, FoundLibrary, NoLibrary, find_library
from disco.endpoints.runtimes import chosen_program, is_available

__all__ = [
    "Requirement",
    "check_extras",
    "check_required",
    "check_runtime",
    "is_within",
    "rebuilt",
    "requirements",
    "why_not_loaded",
]

_LIMIT_S: Final = 30.0
# What a checkout that is not installed needs; an installed package tells it itself.
_KNOWN: Final = ("openai>=3.50,<4", 'xllamacpp==2026.10.11549; extra == "local"')
_LOADING: Final = {
    "engine": "from disco.endpoints.llamacpp import load_library; load_library()",
    "llama-server": "import xllamacpp",
}
_LINE: Final = re.compile(r"^([A-Za-z0-9._-]+)\s*(\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")


class Requirement(NamedTuple):
    """A package that disco needs: its name, the versions (`>=3.50,<4`), and the extra that needs it (empty: all do)."""

    name: str
    versions: str
    extra: str


def requirements() -> list[Requirement]:
    """Return what the installed disco says that it needs."""
    try:
        lines = metadata.requires("disco-llm") or list(_KNOWN)
    except metadata.PackageNotFoundError:
        lines = list(_KNOWN)
    found = []
    for line in lines:
        parts = _LINE.match(line)
        if parts is not None:
            extra = re.search(r"""extra\s*==\s*['"]([\w-]+)['"]""", parts[4] or "")
            found.append(Requirement(parts[1].lower(), parts[3].strip(), extra[1] if extra else ""))
    return found


def is_within(version: str, versions: str) -> bool:
    """Return whether a version is one of `versions`: bounds such as `>=3.50,<4`. Bounds of other kinds count as met."""
    has = _numbers(version)
    for bound in filter(None, (part.strip() for part in versions.split(","))):
        sign = re.match(r"[<>=!~]+", bound)
        limit = _numbers(bound[len(sign[0]) :]) if sign else ()
        compare = {
            ">=": has >= limit,
            "<": has < limit,
            ">": has > limit,
            "<=": has <= limit,
            "==": has == limit,
        }
        if sign and not compare.get(sign[0], True):
            return False
    return True


def check_required(setup: Setup, facts: Facts) -> list[Finding]:  # noqa: ARG001 - as all checks
    """Look at the version of every package that disco needs without an extra."""
    wrong = [one for one in map(_fault, (one for one in requirements() if not one.extra)) if one is not None]
    if wrong:
        return wrong
    return [
        works(
            "packages",
            f"openai {metadata.version('openai')} and the other packages that disco needs are there.",
        )
    ]


def check_runtime(setup: Setup, facts: Facts) -> Finding:
    """Look for what runs the local model, and for its version; it is loaded together with the model."""
    if not setup.names_a_model:
        return unchecked("runtime", "None is needed: no model is loaded into this program.")
    facts.runtime_is_there = False
    if chosen_program(setup.runtime) == "llama-server":
        version = _version("xllamacpp")
        if version is None or not is_available("llama-server"):
            return does_not(
                "runtime",
                "xllamacpp is not installed, so no model can be loaded.",
                f"{installs('disco-llm[local]')}, or use the model of a server on this machine",
            )
        facts.runtime_is_there = True
        return works("runtime", f"xllamacpp {version} is installed: llama.cpp's own server.")
    found = find_library()
    if isinstance(found, NoLibrary):
        return does_not("runtime", found.why, f"{found.remedy}, or use the model of a server on this machine")
    facts.runtime_is_there = True
    kind = "compiled on this machine" if found.path is None else "a wheel"
    return works("runtime", f"{found} is installed: disco's own engine over llama.cpp, {kind}.")


def check_extras(setup: Setup, facts: Facts) -> list[Finding]:  # noqa: ARG001 - as all checks
    """Look at the packages of the extras that are installed at least in part."""
    by_extra: dict[str, list[Requirement]] = {}
    for one in requirements():
        if one.extra and one.extra != "dev" and one.name != "disco-llm":
            by_extra.setdefault(one.extra, []).append(one)
    if not by_extra:
        return []
    whole: list[str] = []
    faults: dict[str, Finding] = {}
    for extra, needed in sorted(by_extra.items()):
        if all(_version(one.name) is not None for one in needed):
            whole.append(extra)
            for one in needed:  # check_runtime looks at the runtime's version
                if one.name != "xllamacpp" and (fault := _fault(one, "extras")) is not None:
                    faults[one.name] = fault
    missing = sorted(set(by_extra) - set(whole))
    told = f"Installed: {', '.join(whole) or 'none'}. Not installed: {', '.join(missing) or 'none'}."
    return [*faults.values(), works("extras", told)]


def why_not_loaded(setup: Setup) -> Finding | None:
    """Import the runtime's library alone, in a process of its own; return why it cannot be, None where it can.

    It is for a model that could not be loaded: the process of a model does not say why its library failed.
    """
    loading = _LOADING[chosen_program(setup.runtime)]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a plain text
    try:
        ran = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-P", "-c", loading],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        return None
    if ran.returncode == 0:
        return None
    last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
    why = quoted(last, known_secrets()).rstrip(".") if ran.returncode > 0 else "it crashes"
    found = find_library()
    package = found.package if isinstance(found, FoundLibrary) else "xllamacpp"
    remedy = (
        rebuilt(setup) if ran.returncode < 0 else installs("--force-reinstall", "--no-cache-dir", package)
    )
    return does_not("runtime", f"{package} is installed, but cannot be loaded: {why}.", remedy)


def rebuilt(setup: Setup) -> str:
    """Return what to type where llama.cpp was compiled badly, or for another processor."""
    found = find_library()
    if chosen_program(setup.runtime) == "engine" and isinstance(found, FoundLibrary) and found.path is None:
        return f"pip uninstall {found.package}, and {installs('disco-llm[local]')}   (a wheel, in its place)"
    return f"{installs(COMPILED)}   (compiles llama.cpp for this processor)"


def _fault(one: Requirement, subject: str = "packages") -> Finding | None:
    version = _version(one.name)
    wanted = f"{one.name}{one.versions}"
    if version is None:
        return does_not(subject, f"{one.name} is not installed, and disco needs it.", installs(wanted))
    if not is_within(version, one.versions):
        return does_not(
            subject, f"{one.name} {version} is installed, and disco needs {one.versions}.", installs(wanted)
        )
    return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version.strip())[0])]
    return tuple(numbers + [0] * (4 - len(numbers)))
