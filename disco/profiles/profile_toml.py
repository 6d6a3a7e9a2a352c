"""Reads and writes the TOML files of profiles, with readable error messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from disco._settings_files import settings_toml
from disco.errors import ConfigurationError, nearest

__all__ = ["dump_toml", "explain", "read_toml", "validate"]

Model = TypeVar("Model", bound=BaseModel)
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's content.

    Raises:
        ConfigurationError: the file cannot be read, or is not TOML; with file and line.
    """
    return settings_toml(path, "the profile")


def validate(model: type[Model], data: Mapping[str, Any], path: Path) -> Model:
    """Check a file's content and return it as a `model`.

    Raises:
        ConfigurationError: the content is invalid; the message lists every wrong field, with its line if known.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigurationError(explain(error, model, path)) from error


def explain(error: ValidationError, model: type[BaseModel], path: Path) -> str:
    """Return pydantic's errors as text with the keys and lines of the file: one line per problem."""
    lines = path.read_text(encoding="utf-8").splitlines()
    problems = []
    for problem in error.errors(include_url=False, include_context=False):
        at = problem["loc"]
        key = ".".join(str(part) for part in at)
        if problem["type"] == "extra_forbidden":
            what = "no such key."
            if len(at) == 1:
                what += f" {nearest(key, model.model_fields)}"
        elif problem["type"] == "missing":
            what = "is missing"
        else:
            what = problem["msg"].removeprefix("Value error, ")
            if isinstance(problem["input"], str | int | float):
                what += f" (is {problem['input']!r})"
        line = _line_of([str(part) for part in at if isinstance(part, str)], lines)
        where = f"{path}, line {line}" if line and problem["type"] != "missing" else f"{path}"
        problems.append(f"{where}: {key}: {what}" if key else f"{where}: {what}")
    return "\n".join(problems)


def dump_toml(data: Mapping[str, Any], *, comment: str | None = None) -> str:
    """Return nested mappings as TOML text; None values are left out.

    Args:
        data: text, numbers, booleans, dates, lists of them, and mappings.
        comment: a comment for the top of the text.

    Raises:
        TypeError: the data contain a value of another type.
    """
    header = "".join(f"# {line}".rstrip() + "\n" for line in (comment or "").splitlines())
    return header + tomli_w.dumps(_without_none(data))


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in data.items()
        if value is not None
    }


def _line_of(keys: list[str], lines: list[str]) -> int | None:
    """Return the number of the line that sets the last key, in the table that the other keys name.

    Where no line sets the key, the number of the table's header; None: there is no such table.
    """
    if not keys:
        return None
    section: list[str] = []
    header = None
    for number, line in enumerate(lines, start=1):
        if found := _HEADER.match(line):
            section = [
                part.strip().strip("\"'")
                for part in re.split(r"\.(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", found[1])
            ]
            if section == keys[: len(section)]:
                header = number
        elif section == keys[: len(section)] and len(section) < len(keys):
            name = line.partition("=")[0].strip().strip("\"'")
            if name == keys[len(section)]:
                return number
    return header
