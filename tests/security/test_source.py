"""What the source must not do anywhere: run data as code, or switch the checking of certificates off."""

from __future__ import annotations

import os
import re
import stat
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from jinja2.exceptions import SecurityError

import disco
from disco.endpoints.chat_template import ChatTemplate
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
# Work of this program's own for processes that it started itself: docs/reference/security.md.
KNOWN = {"replay/sweeps/executors.py": ["pickle"], "replay/sweeps/sweep.py": ["pickle"]}


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
    attack = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", eos_text="", bos_text="")
    with pytest.raises(SecurityError):
        attack.render([{"role": "user", "content": "hello"}])
