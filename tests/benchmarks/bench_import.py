"""What `import disco` costs over `import openai`, which it builds on.

Run `python tests/benchmarks/bench_import.py`. Every figure is a fresh interpreter; they take turns in random
order, and the ratio is the median over the turns, so that a busy machine disturbs all alike.
Nothing here decides by time: it prints, and lists which heavy modules each import has loaded.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys

from helpers.measuring import options as command_line

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
    """Run one statement in a fresh interpreter: seconds, modules loaded, heavy ones among them."""
    code = CODE.format(statement=statement, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    took_s, modules, heavy = json.loads(done.stdout)
    return took_s, modules, heavy


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    spans: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    modules: dict[str, int] = {}
    heavy: dict[str, list[str]] = {}
    for turn in range(options.turns + 1):
        for statement in random.sample(STATEMENTS, len(STATEMENTS)):
            took_s, modules[statement], heavy[statement] = once(statement)
            if turn:  # the first fills the file cache and writes the byte code
                spans[statement].append(took_s)
    print(f"{options.turns} fresh interpreters each, taking turns; medians")
    print(f"{'statement':<47}{'ms':>8}{'ratio':>8}{'modules':>9}  heavy ones among them")
    yardstick = spans[STATEMENTS[0]]
    for statement, took in spans.items():
        ratio = statistics.median(a / b for a, b in zip(took, yardstick, strict=True))
        print(
            f"{statement:<47}{statistics.median(took) * 1e3:>8.0f}{ratio:>8.3f}{modules[statement]:>9}"
            f"  {', '.join(heavy[statement])}"
        )


if __name__ == "__main__":
    main()
