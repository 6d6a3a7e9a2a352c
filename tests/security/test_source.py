"""What the source must not do anywhere: run data as code, or switch the checking of certificates off."""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import disco
from disco.replay.sweeps.executors import share, shared_value

PACKAGE = Path(disco.__file__).parent
# Modules that turn bytes into objects of any kind, or into code.
DANGEROUS_MODULES = {"cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve", "yaml"}
DANGEROUS_MODULES |= {"multiprocessing.connection"}
DANGEROUS_CALLS = {"eval", "exec", "compile", "__import__", "_create_unverified_context"}
# Keyword arguments that may not have these values.
DANGEROUS_ARGUMENTS = {
    ("allow_pickle", True),
    ("verify", False),
    ("check_hostname", False),
    ("shell", True),
    ("trust_remote_code", True),
}
DANGEROUS_NAMES = {"CERT_NONE"}

# Where it stands for something else, with the reason.
KNOWN = {
    # Work of this program's own for processes that it started itself: docs/security.md.
    "replay/sweeps/executors.py": {"pickle"},
    "replay/sweeps/sweep.py": {"pickle"},
}


def dangers(tree: ast.AST) -> Iterator[str]:
    """What of the above a module does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names] + [str(node.module)]
            yield from DANGEROUS_MODULES & {part for name in names for part in (name, name.partition(".")[0])}
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in DANGEROUS_CALLS:
                yield node.func.id
            if isinstance(node.func, ast.Attribute) and node.func.attr == "import_module":
                yield from DANGEROUS_MODULES & {a.value for a in node.args if isinstance(a, ast.Constant)}
            for keyword in node.keywords:
                if (
                    isinstance(keyword.value, ast.Constant)
                    and (keyword.arg, keyword.value.value) in DANGEROUS_ARGUMENTS
                ):
                    yield f"{keyword.arg}={keyword.value.value}"
        elif isinstance(node, ast.Attribute) and node.attr in DANGEROUS_NAMES | {
            "_create_unverified_context"
        }:
            yield node.attr


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "from multiprocessing.connection import Client",
        "from multiprocessing import connection",
        "import importlib; importlib.import_module('shelve')",
        "eval(x)",
        "f(verify=False)",
        "numpy.load(f, allow_pickle=True)",
        "context.verify_mode = ssl.CERT_NONE",
        "ssl._create_unverified_context()",
        "subprocess.run(x, shell=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source):
    assert list(dangers(ast.parse(source)))


def test_no_module_does_it():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        done = set(dangers(ast.parse(path.read_text(encoding="utf-8"))))
        if done:
            found[name] = done
    assert found == KNOWN


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_what_workers_read_lies_where_only_their_owner_can_write():
    with ProcessPoolExecutor(1) as pool, share(pool, [1, 2, 3]) as handle:
        assert shared_value(handle) == [1, 2, 3]
        assert stat.S_IMODE(handle.path.parent.stat().st_mode) == 0o700


ATTACK = "{{ ''.__class__.__mro__[1].__subclasses__() }}"  # the way out of a template that is in no sandbox
HELLO = [{"role": "user", "content": "hello"}]


def test_a_template_is_kept_in_a_sandbox():
    """It comes with the model's file, from wherever that comes."""
    from disco.endpoints.continuation.rendering import CannotContinueError, render_prefix

    with pytest.raises(CannotContinueError, match="SecurityError"):
        render_prefix(ATTACK, HELLO, "The sea")


def test_the_local_models_template_is_kept_in_one_too():
    pytest.importorskip("llama_cpp")
    from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
    from disco.errors import EndpointFailure

    model: Any = SimpleNamespace(template=ATTACK, eos_text="", bos_text="", path="m.gguf")
    with pytest.raises(EndpointFailure) as caught:
        Renderer(model, None)(HELLO)
    assert type(caught.value.__cause__).__name__ == "SecurityError"
