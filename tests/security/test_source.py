"""What the source must not do anywhere: run data as code, or switch the checking of certificates off."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import disco
from disco.replay.sweeps.executors import share, shared_value

PACKAGE = Path(disco.__file__).parent
DANGERS = re.compile(
    # Modules that turn bytes into objects of any kind, or into code.
    r"""^\s*(?:import|from)\s+(cloudpickle|dill|joblib|jsonpickle|marshal|pickle|shelve|yaml)\b"""
    r"""|import_module\(\s*['"](?:cloudpickle|dill|joblib|jsonpickle|marshal|pickle|shelve|yaml)\b"""
    r"""|multiprocessing\.connection|from multiprocessing import .*\bconnection\b"""
    r"""|(?<![\w.])(?:eval|exec|compile|__import__)\(|\bCERT_NONE\b|_create_unverified_context"""
    r"""|\b(?:allow_pickle|shell|trust_remote_code)\s*=\s*True|\b(?:verify|check_hostname)\s*=\s*False""",
    re.MULTILINE,
)
# Work of this program's own for processes that it started itself: docs/security.md.
KNOWN = {"replay/sweeps/executors.py": ["pickle"], "replay/sweeps/sweep.py": ["pickle"]}


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
    assert DANGERS.search(source)


def test_no_module_does_it():
    paths = sorted(PACKAGE.rglob("*.py"))
    found = {p.relative_to(PACKAGE).as_posix(): DANGERS.findall(p.read_text(encoding="utf-8")) for p in paths}
    assert {name: done for name, done in found.items() if done} == KNOWN


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_what_workers_read_lies_where_only_their_owner_can_write():
    with ProcessPoolExecutor(1) as pool, share(pool, [1, 2, 3]) as handle:
        assert shared_value(handle) == [1, 2, 3]
        assert stat.S_IMODE(handle.path.parent.stat().st_mode) == 0o700


def test_a_template_is_kept_in_a_sandbox():
    """It comes with the model's file, from wherever that comes."""
    from disco.endpoints.continuation.rendering import CannotContinueError, render_prefix

    attack = (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}"  # the way out of a template that is in no sandbox
    )
    hello = [{"role": "user", "content": "hello"}]
    with pytest.raises(CannotContinueError, match="SecurityError"):
        render_prefix(attack, hello, "The sea")

    pytest.importorskip("llama_cpp")
    from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
    from disco.errors import EndpointFailure

    model: Any = SimpleNamespace(template=attack, eos_text="", bos_text="", path="m.gguf")
    with pytest.raises(EndpointFailure) as caught:
        Renderer(model, None)(hello)
    assert type(caught.value.__cause__).__name__ == "SecurityError"
