"""Reads texts with labels: `label text` lines, or JSON lines with `label`, `text` and perhaps `split`."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disco.errors import ConfigurationError
from papers.text_files import open_text

__all__ = ["LabelledText", "read_texts", "without"]

_NOT_WRITTEN = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A text, and the number of its label."""

    label: int
    text: str = field(repr=False)

    @property
    def letters(self) -> str:
        """The letters a-z and digits alone: texts that differ in spaces, case or accents have the same."""
        return _NOT_WRITTEN.sub("", self.text.lower())


def read_texts(
    path: str | Path, *, labels: int, split: str | None = None, encoding: str = "utf-8"
) -> list[LabelledText]:
    """Read a file of labelled texts.

    Args:
        path: lines `label text`, or JSON lines where the name contains .jsonl; compressed where it ends in .gz.
        labels: how many labels there are; a label is a number from 0 to `labels - 1`.
        split: of JSON lines, only those whose `split` is this one.
        encoding: of `label text` lines; JSON is always UTF-8.

    Raises:
        ConfigurationError: there is no such file, a line is not as described, or no line is left.
    """
    file = Path(path)
    is_json = any(suffix in (".jsonl", ".ndjson") for suffix in file.suffixes)
    if split is not None and not is_json:
        raise ConfigurationError(
            f"{file} has no splits: only JSON lines (.jsonl) have. Name a file of its own."
        )
    texts: list[LabelledText] = []
    is_utf8 = is_json or codecs.lookup(encoding).name == "utf-8"
    with open_text(file, encoding="UTF-8" if is_utf8 else encoding) as source:
        for number, line in enumerate(source, start=1):
            if not line.strip():
                continue
            try:
                found = _json_line(line, split) if is_json else _plain_line(line)
                if found is not None:
                    texts.append(_checked(*found, labels))
            except ValueError as problem:
                raise ConfigurationError(f"{file}, line {number}: {problem}.") from problem
    if not texts:
        raise ConfigurationError(f"{file} has no text{'' if split is None else f' of the split {split!r}'}.")
    return texts


def _plain_line(line: str) -> tuple[Any, Any]:
    label, _, text = line.strip().partition(" ")
    if not label.isdecimal():
        raise ValueError("the line must begin with the number of its label")
    return int(label), text.strip()


def _json_line(line: str, split: str | None) -> tuple[Any, Any] | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        raise ValueError("this is no JSON") from None  # its message may quote the text
    if not isinstance(row, dict) or "label" not in row or "text" not in row:
        raise ValueError("the object must have `label` and `text`")
    return None if split is not None and row.get("split") != split else (row["label"], row["text"])


def _checked(label: Any, text: Any, labels: int) -> LabelledText:
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < labels:
        raise ValueError(f"the label must be a number from 0 to {labels - 1}, as --labels names {labels}")
    if not isinstance(text, str) or not text:
        raise ValueError("the text is missing")
    return LabelledText(label, text)


def without(texts: Iterable[LabelledText], *known: Iterable[LabelledText]) -> Iterator[LabelledText]:
    """Yield the texts that occur in none of the others, compared by their letters and digits."""
    seen = {text.letters for texts in known for text in texts}
    return (text for text in texts if text.letters not in seen)
