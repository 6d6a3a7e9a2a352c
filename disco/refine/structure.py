"""Finds the parts of a text that are no prose: code, JSON, tables, lists of numbers, examples. They stay whole."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator

__all__ = ["structured_spans"]

# A fence of backticks may begin behind other text of its line.
_FENCE = re.compile(r"^(?:[^\n`]*(?P<ticks>```+)|[^\S\n]{0,3}(?P<tildes>~~~+))[^\n`]*$", re.MULTILINE)
_JSON_START = re.compile(r"\{\s*[\"}]|^[^\S\n]*\[", re.MULTILINE)
_DECODER = json.JSONDecoder()
_MARKUP = re.compile(r"\s*</?[A-Za-z!?][^<>\n]*>")
_CODE = re.compile(
    r"(?:[;{}]|=>|->|\)\s*:|\\)\s*$"
    r"|^\s*(?:def|class|import|from\s+\S+\s+import|return|elif|else\s*:|public|private|static|void|const|let|var|func|"
    r"function|interface|struct|enum|\#include|\#define|SELECT\s.+\sFROM|INSERT\s+INTO|CREATE\s+TABLE|@\w+)\b"
    r"|^\s*\$\s|^\s*[\w.\]\[]+\s*[-+*/]?=\s*\S"
)
_INDENTED = re.compile(r"(?: {4}|\t)\s*\S")
_NUMBER = re.compile(r"[-+±$€£]?\d[\d.,:/%–-]*[%°€]?")
_LABEL = re.compile(r"^\s{0,3}([^\W\d_][\w ]{0,23}):(?=\s|$)")
_LEAST_NUMBERS = 4
_LEAST_ROWS = 2


def structured_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans that are no prose, as (start, end) in characters: ascending, apart, ending behind a line break.

    JSON inside a line is a span of its own; all others are whole lines.
    """
    spans = sorted([*_fences(text), *_json(text), *_lines(text)])
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _fences(text: str) -> Iterator[tuple[int, int]]:
    opened, start = "", 0
    for found in _FENCE.finditer(text):
        fence = found["ticks"] or found["tildes"]
        if not opened:
            opened, start = fence, found.start()
        elif fence.startswith(opened) and not found[0].strip().strip("`~"):
            yield start, _behind_line(text, found.end())
            opened = ""
    if opened:  # never closed: it runs to the end
        yield start, len(text)


def _json(text: str) -> Iterator[tuple[int, int]]:
    if "{" not in text and "[" not in text:
        return
    at = 0
    while (found := _JSON_START.search(text, at)) is not None:
        start = found.start() if found[0][0] == "{" else found.end() - 1
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            # Broken JSON, or a schema in another notation, still is no prose: its line stays. A run of brackets is
            # looked at once, so that no text takes quadratic time.
            at = _behind_line(text, found.end())
            yield text.rfind("\n", 0, start) + 1, at
            continue
        at = end
        if value or isinstance(value, dict):
            yield start, end


def _behind_line(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield spans of lines: tables, lists of numbers, code without fences, markup, labelled examples."""
    lines = text.splitlines(keepends=True)
    columns = [_columns(line) for line in lines]
    examples = _example_lines(lines)
    position = 0
    for number, line in enumerate(lines):
        near = [columns[place] for place in (number - 1, number + 1) if 0 <= place < len(lines)]
        is_row = columns[number] is not None and columns[number] in near
        indented = bool(_INDENTED.match(line)) and bool(_CODE.search(line.rstrip()))
        if (
            is_row
            or indented
            or number in examples
            or _is_numbers(line)
            or _CODE.search(line.rstrip())
            or _MARKUP.match(line)
        ):
            yield position, position + len(line)
        position += len(line)


def _columns(line: str) -> tuple[str, int] | None:
    """Return which separator cuts the line into columns, and into how many; None where the line is no row."""
    if line.count("|") >= _LEAST_ROWS:
        return "|", 0  # rows of one table may leave cells out
    if line.count("\t") >= 1 and line.strip():
        return "\t", line.strip("\n").count("\t")
    for separator in (";", ","):
        cells = line.strip().split(separator)
        # Prose has commas, too, but its parts are longer, and a full stop ends it.
        if (
            len(cells) > _LEAST_ROWS
            and max(map(len, cells)) <= 24
            and not line.rstrip().endswith((".", "!", "?"))
        ):
            return separator, len(cells)
    return None


def _is_numbers(line: str) -> bool:
    words = line.replace(",", " ").replace(";", " ").split()
    numbers = sum(1 for word in words if _NUMBER.fullmatch(word))
    return numbers >= _LEAST_NUMBERS and 2 * numbers >= len(words)


def _example_lines(lines: list[str]) -> frozenset[int]:
    """Return the lines of few-shot examples: two or more labels ("Input:", "Output:") that each occur twice or more.

    The examples run from the first such label to the end of the paragraph of the last one.
    """
    labels = {number: found[1].lower() for number, line in enumerate(lines) if (found := _LABEL.match(line))}
    repeated = {label for label, count in Counter(labels.values()).items() if count > 1}
    if len(repeated) < 2:
        return frozenset()
    places = [number for number, label in labels.items() if label in repeated]
    end = places[-1] + 1
    while end < len(lines) and lines[end].strip():
        end += 1
    return frozenset(range(places[0], end))
