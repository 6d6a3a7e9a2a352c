"""What `import disco` and `disco --help` cost, beside `python -c pass` and `import openai`."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from helpers.measuring import Columns, by_turns, met, options, ratio

HELP = "disco --help"
STATEMENTS = {
    name: name
    for name in (
        "pass",
        "import openai",
        "import disco",
        "from disco import AsyncDisco",
        # What an application does next; here disco loads numpy and reads its presets and profiles.
        "import openai; openai.AsyncOpenAI(api_key='x')",
        "import disco; disco.AsyncDisco(api_key='x')",
    )
} | {HELP: "from disco.cli import main; main(['--help'])"}
HEAVY = ("openai", "pydantic", "httpx2", "anyio", "numpy", "scipy", "llama_cpp", "rich", "jinja2", "trio")
CODE = """
import atexit, json, sys, time
def tell():
    took_s, heavy = time.process_time() - at, [m for m in {heavy} if m in sys.modules]
    open({file!r}, "w").write(json.dumps([took_s, len(sys.modules) - before, heavy]))
atexit.register(tell)
at, before = time.process_time(), len(sys.modules)
{statement}
"""
HELP_CPU_S, OF_OPENAI = 0.4, 0.2  # the most that are wanted


def once(statement: str) -> tuple[float, float, int, list[str]]:
    """Seconds of CPU of the statement, of its whole process; modules loaded, heavy ones among them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        code = CODE.format(statement=statement, heavy=HEAVY, file=str(file))
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        took_s, modules, heavy = json.loads(file.read_text(encoding="utf-8"))
    return took_s, used.ru_utime + used.ru_stime, modules, heavy


def main() -> None:
    turns = options(__doc__, turns=15).turns
    # The first turn fills the file cache and writes the byte code.
    found = asyncio.run(by_turns({name: partial(once, code) for name, code in STATEMENTS.items()}, turns))
    print(f"{turns} fresh interpreters each, taking turns; medians of the CPU that each takes")
    table = Columns(
        "statement <47 | ms >8.0f | ratio >8.3f | process >9.0f | modules >9 |   heavy ones among them <"
    )
    took = {name: [took_s for took_s, *_ in runs] for name, runs in found.items()}
    cpu_s = {name: statistics.median(used_s for _, used_s, *_ in runs) for name, runs in found.items()}
    for name, spans in took.items():
        *_, modules, heavy = found[name][-1]
        of_openai = ratio(spans, took["import openai"])
        ms = statistics.median(spans) * 1e3
        table.row(name, ms, of_openai, cpu_s[name] * 1e3, modules, f"  {', '.join(heavy)}")
    share = ratio(took["import disco"], took["import openai"])
    print(f"import disco: {share:.3f} of import openai, at most {OF_OPENAI}: {met(share, OF_OPENAI)}")
    print(f"{HELP}: {cpu_s[HELP]:.3f} s of CPU, at most {HELP_CPU_S}: {met(cpu_s[HELP], HELP_CPU_S)}")


if __name__ == "__main__":
    main()
