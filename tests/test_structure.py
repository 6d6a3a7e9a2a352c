"""The house rules that no single module can see: who imports whom, and what an import costs."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import disco

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "disco"

# Small things at the bottom that every room may import and that import each other only in this order.
SHARED = (
    "_moved",
    "_needs",
    "errors",
    "notices",
    "_plugins",
    "request",
    "rates",
    "amounts",
    "events",
    "candidate",
    "plan",
    "reasons",
    "_resources",
    "_settings_files",
    "_tables",
)

# What each room may import besides SHARED and itself, a whole room or one module of it: the column "may import" of
# the table in docs/architecture.md.
ALLOWED: dict[str, set[str]] = {
    room: set(re.findall(r"`([\w.]+)`", may_import))
    for room, may_import in re.findall(
        r"^\| *`disco/(\w+)/` *\|[^|]*\|([^|]*)\| *$",
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
# Inside endpoints/, kinds of endpoint know nothing of each other. What they share:
ENDPOINT_SHARED = (
    *("endpoints.contract", "endpoints.chat_template", "endpoints.gguf_header", "endpoints.drafter"),
    "endpoints.background_tasks",
    "endpoints.published_ttft",
    "endpoints.usable_cores",
)
ENDPOINT_KINDS = {
    "endpoints.attached": set(),
    "endpoints.continuation": set(),
    "endpoints.openai_api": {"endpoints.continuation"},
    "endpoints.llamacpp": {"endpoints.saved_prompts"},
    "endpoints.local_server": {"endpoints.openai_api", "endpoints.continuation"},
    # Of llama.cpp's room, what every local model has: its file, what is measured of it, the end of its process, and
    # which parameters it serves.
    "endpoints.prebuilt": {
        *("endpoints.local_server", "endpoints.openai_api", "endpoints.continuation"),
        *("endpoints.llamacpp.model.model_files", "endpoints.llamacpp.batching.model_fingerprint"),
        *("endpoints.llamacpp.runtime", "endpoints.llamacpp.request_params"),
    },
    "endpoints.redaction": {"endpoints.openai_api", "endpoints.continuation"},
    "endpoints.saved_prompts": set(),
    "endpoints.simulation": set(),
    "endpoints.speculative": {"endpoints.openai_api"},
    "endpoints.split": {"endpoints.llamacpp", "endpoints.openai_api", "endpoints.speculative"},
}


class Import(NamedTuple):
    """One import of a module of ours, dotted, below `disco`; `at_once`: whenever the module is imported."""

    module: str
    target: str
    at_once: bool

    @property
    def room(self) -> str:
        return self.module.split(".")[0]

    @property
    def target_room(self) -> str:
        return self.target.split(".")[0]


@functools.cache  # not at import: both workers of a run import this, and one of them runs it
def sources() -> dict[str, ast.Module]:
    """Every module below `disco`, without that first part of its name; the package itself is ''."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports_of(module: str, tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import in line {node.lineno}"
            # `from disco.session import events` imports a module, not only a package.
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n for n in whole if n.removeprefix("disco.") in sources()] or [node.module or ""]
        for name in names:
            if name == "disco" or name.startswith("disco."):
                yield Import(module, name.removeprefix("disco").removeprefix("."), node in tree.body)


@functools.cache
def imports() -> list[Import]:
    return [found for module, tree in sources().items() for found in imports_of(module, tree)]


def test_the_walker_sees_imports_and_the_map_every_room():
    """A walker or a map that sees nothing would pass every test below."""
    code = """
if TYPE_CHECKING:
    from disco.cost import Ledger
def f():
    import disco.events
from disco.session import machine, race
"""
    found = {(i.target, i.at_once) for i in imports_of("x.y", ast.parse(code))}
    assert found == {("cost", False), ("events", False), ("session.machine", True), ("session.race", True)}
    assert {i.room for i in imports()} >= set(ALLOWED) - {"profiles"}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == set(ALLOWED)
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert files == set(SHARED)


def test_a_module_imports_only_what_its_rooms_row_and_its_kind_of_endpoint_allow():
    """Imports inside functions and for type checkers count as well: they must not be a way around the table."""
    allowed = {room: {*may, *SHARED, room} for room, may in ALLOWED.items()}
    allowed |= {room: set(SHARED[:place]) for place, room in enumerate(SHARED)} | {
        "": {"client", "session.records.route_record", *SHARED}
    }
    may_kind = {kind: {kind, *ENDPOINT_SHARED, *more} for kind, more in ENDPOINT_KINDS.items()}
    wrong = []
    for found in imports():
        dotted = f"{found.target}."
        among = [allowed[found.room]]
        if found.target_room == "endpoints":
            among += [may for kind, may in may_kind.items() if f"{found.module}.".startswith(f"{kind}.")]
        wrong += [found for may in among if not any(dotted.startswith(f"{name}.") for name in may)]
    assert wrong == []
    kinds = [kind for kind in may_kind if any(f"{i.module}.".startswith(f"{kind}.") for i in imports())]
    assert kinds == list(may_kind)


def test_imports_point_one_way():
    rooms: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    for found in imports():
        if found.room and found.room != found.target_room:
            rooms.setdefault(found.room, set()).add(found.target_room)
        if found.at_once and found.target in sources():
            modules.setdefault(found.module, set()).add(found.target)
    order = list(TopologicalSorter(rooms).static_order())  # raises CycleError, naming the cycle
    assert order.index("errors") < order.index("session") < order.index("client") < order.index("cli")
    TopologicalSorter(modules).prepare()  # as above


# Where a number or a name of endpoints may be known: configuration, which gives names, and the one adapter.
CONFIGURATION = (
    "client.async_client",
    "client.sync.sync_client",
    "client.router",
    "client.endpoint_catalog.backup_server",
    "client.endpoint_catalog.backups",
    "client.endpoint_catalog.local_servers",
)


def test_no_room_of_the_core_asks_for_an_endpoint_by_name():
    """A comparison with, or a look-up of, "device" or "server" would be a name, unless it is a place or a reach."""
    found = []
    for module, tree in sources().items():
        if module.split(".")[0] not in ("session", "playback", "cost", "client") or module in CONFIGURATION:
            continue
        for node in ast.walk(tree):
            about_place = isinstance(node, ast.Compare) and re.search("place|reach", ast.unparse(node.left))
            # Of profiles, which are named as well, not of endpoints:
            other = about_place or "available_profiles" in ast.unparse(node)
            if isinstance(node, ast.Compare | ast.Subscript) and not other:
                names = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant)}
                if names & {"device", "server", "backup"}:
                    found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_no_two_modules_of_a_room_have_one_name():
    names = Counter((module.split(".")[0], module.split(".")[-1]) for module in sources() if "." in module)
    twice = [name for name, count in names.items() if count > 1 and not PACKAGE.joinpath(*name).is_dir()]
    assert twice == []


PACKAGES = ["disco", *(m.name for m in pkgutil.walk_packages(disco.__path__, "disco.") if m.ispkg)]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exposes_exactly_what_it_says(name):
    module = importlib.import_module(name)
    tree = sources()[name.removeprefix("disco").removeprefix(".")]
    bound: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") not in (
            *("__future__", "typing", "disco._moved"),
        ):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {target.id for target in targets if isinstance(target, ast.Name)}
    public = {found for found in bound if not found.startswith("_")}
    exported = set(getattr(module, "__all__", []))
    lazy = exported - public if "__getattr__" in bound else set()
    assert exported - lazy == public
    for exposed in exported:
        getattr(module, exposed)
