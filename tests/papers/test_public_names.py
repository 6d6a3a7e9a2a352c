"""What is under examples/ uses disco as anyone can: by the public names that the reference's API pages list."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from documentation.public_names import modules

ROOT = Path(__file__).parents[2]


@functools.cache
def public() -> dict[str, frozenset[str]]:
    """The modules of the API pages (`::: disco.X`), and disco itself; of each the names in its `__all__`."""
    listed = [name for name in modules() if importlib.util.find_spec(name)]  # the others are classes of disco
    return {name: frozenset(importlib.import_module(name).__all__) for name in ("disco", *listed)}


def other_imports(code: str) -> Iterator[str]:
    """The imports of disco that name a module that no page lists, or a name that is not in its `__all__`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            named = {alias.name for alias in node.names if alias.name.split(".")[0] == "disco"}
            yield from (f"line {node.lineno}: import {name}" for name in sorted(named - set(public())))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "disco":
            missing = sorted(
                {alias.name for alias in node.names} - public().get(node.module or "", frozenset())
            )
            if missing:
                yield f"line {node.lineno}: from {node.module} import {', '.join(missing)}"


def test_examples_import_public_names_only():
    files = sorted((ROOT / "examples").rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}, {found}"
        for path in files
        for found in other_imports(path.read_text(encoding="utf-8"))
    ]
    listed = "\n".join(wrong)
    assert not wrong, f"not public (docs/reference/api/ lists what is):\n{listed}"


def test_each_kind_of_other_import_is_found():
    code = """
import disco, disco.errors, json
import disco.client.router
from disco import AsyncDisco, _needs
from disco.errors import DiscoError
from disco.profiles import profile_types, Empirical
from disco.replay.vector.evaluator import evaluate
"""
    assert list(other_imports(code)) == [
        "line 3: import disco.client.router",
        "line 4: from disco import _needs",
        "line 6: from disco.profiles import profile_types",
        "line 7: from disco.replay.vector.evaluator import evaluate",
    ]
