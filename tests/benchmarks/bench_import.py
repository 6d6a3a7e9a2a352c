"""What `import disco` costs over `import openai`, which it builds on."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from functools import partial

from helpers.measuring import Columns, by_turns, options, ratio

STATEMENTS = (
    "import openai",
    "import disco",
    "from disco import AsyncDisco",
    # What an application does next; here disco loads numpy and reads its presets and profiles.
    "import openai; openai.AsyncOpenAI(api_key='x')",
    "import disco; disco.AsyncDisco(api_key='x')",
)
HEAVY = ("numpy", "scipy", "llama_cpp", "rich", "jinja2", "trio", "pandas", "httpx2", "pydantic")
CODE = """
import json, sys, time
at, before = time.perf_counter(), len(sys.modules)
{statement}
took_s = time.perf_counter() - at
print(json.dumps([took_s, len(sys.modules) - before, [m for m in {heavy} if m in sys.modules]]))
"""


def once(statement: str) -> tuple[float, int, list[str]]:
    """Seconds, modules loaded, heavy ones among them."""
    code = CODE.format(statement=statement, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return tuple(json.loads(done.stdout))


def main() -> None:
    turns = options(__doc__, turns=15).turns
    # The first turn fills the file cache and writes the byte code.
    found = asyncio.run(by_turns({statement: partial(once, statement) for statement in STATEMENTS}, turns))
    print(f"{turns} fresh interpreters each, taking turns; medians")
    table = Columns("statement <47 | ms >8.0f | ratio >8.3f | modules >9 |   heavy ones among them <")
    spans = {statement: [took_s for took_s, _, _ in runs] for statement, runs in found.items()}
    for statement, took in spans.items():
        _, modules, heavy = found[statement][-1]
        of_openai = ratio(took, spans[STATEMENTS[0]])
        table.row(statement, statistics.median(took) * 1e3, of_openai, modules, f"  {', '.join(heavy)}")


if __name__ == "__main__":
    main()
