"""What a half-written answer weighs on its way to another endpoint: as text, and as token ids in four forms.

By default of the prose of README and docs, else of the files given (text, or JSON lines with a field "text").
The paper's figures are for cl100k_base on Alpaca.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from disco.endpoints.llamacpp.model.model_files import resolve_model

ROOT = Path(__file__).parents[3]
PAPER = {"3 bytes a token": -35.62, "17 bits a token": -54.40}
CUT = 128  # tokens of each prefix: an answer that moves is about half written


def texts(files: list[Path]) -> Iterator[str]:
    """What the prefixes are cut from."""
    for path in files or [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            yield from (json.loads(line)["text"] for line in content.split("\n") if line)
        elif path.suffix == ".md":  # prose only: an answer is mostly that
            prose = re.sub(r"^```.*?^```$", "", content, flags=re.MULTILINE | re.DOTALL)
            yield re.sub(r"^[|<].*\n", "", prose, flags=re.MULTILINE)
        else:
            yield content


def prefixes(model: Any, files: list[Path]) -> Iterator[tuple[bytes, list[int]]]:
    """Cut after every `CUT` tokens; only cuts between characters."""
    for text in texts(files):
        ids = model.tokenize(text.encode(), add_bos=False, special=False)
        for start in range(0, len(ids) - CUT + 1, CUT):
            piece = ids[start : start + CUT]
            written = model.detokenize(piece, special=False)
            with contextlib.suppress(UnicodeDecodeError):
                written.decode()
                yield written, piece


def forms(bits: int) -> dict[str, Callable[[bytes, list[int]], int]]:
    """By name, how many bytes a prefix is; `bits` is what the vocabulary needs."""
    return {
        "text, UTF-8": lambda text, _: len(text),
        "text, as a JSON string": lambda text, _: len(json.dumps(text.decode(), ensure_ascii=False).encode()),
        "ids, as a JSON list": lambda _, ids: len(json.dumps(ids, separators=(",", ":"))),
        "3 bytes a token": lambda _, ids: 3 * len(ids),
        "17 bits a token": lambda _, ids: math.ceil(17 * len(ids) / 8),
        f"{bits} bits a token (all this vocabulary needs)": lambda _, ids: math.ceil(bits * len(ids) / 8),
    }


def main(files: list[Path]) -> None:
    from llama_cpp import Llama

    model = Llama(str(resolve_model("smollm2-135m")), vocab_only=True, verbose=False)
    found = list(prefixes(model, files))
    bits = math.ceil(math.log2(model.n_vocab()))
    sums = {name: sum(size(*prefix) for prefix in found) for name, size in forms(bits).items()}
    tokens, text = CUT * len(found), sums["text, UTF-8"]
    source = ", ".join(path.name for path in files) or "README and docs"
    title = f"{len(found):,} prefixes of {CUT} tokens, SmolLM2's tokenizer, {source}"
    table = Table("form", "bytes a token", "against text", "paper (cl100k_base, Alpaca)", title=title)
    for name, size in sums.items():
        paper = f"{PAPER[name]:+.2f} %" if name in PAPER else ""
        table.add_row(name, f"{size / tokens:.2f}", f"{size / text - 1:+.2%}" if size != text else "", paper)
    Console(width=110).print(table)
