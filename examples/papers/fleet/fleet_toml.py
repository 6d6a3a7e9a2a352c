"""Reads a fleet's TOML file; mistakes are named by key, with what to write instead."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from disco.errors import ConfigurationError, nearest
from papers.fleet.fleet_scenario import FleetScenario

__all__ = ["load_scenario", "scenario_from", "with_settings"]


def load_scenario(path: str | PathLike[str], settings: Iterable[str] = ()) -> FleetScenario:
    """Read a scenario.

    Args:
        path: of a TOML file. Files that it names are looked for beside it.
        settings: "KEY=VALUE" each, which take the place of the file's: "batching.max_batch=8", "window.name=dynamic",
            "targets.0.count=3".

    Raises:
        ConfigurationError: the file cannot be read, or a key or value is wrong.
    """
    path = Path(path)
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the fleet {path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the fleet {path} is not valid TOML: {error}") from error
    content = with_settings({"name": path.stem, **own}, settings)
    return scenario_from(content, where=str(path), folder=path.parent)


def scenario_from(
    content: Mapping[str, Any], *, where: str = "the scenario", folder: Path | None = None
) -> FleetScenario:
    """Return a scenario from a file's content.

    Args:
        content: keys and values.
        where: for messages.
        folder: where relative paths begin; None: the current one.

    Raises:
        ConfigurationError: a key or a value is wrong; the message lists every one.
    """
    content = _resolved(content, folder) if folder is not None else content
    try:
        return FleetScenario.model_validate(content)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {_explain(error, content)}") from None
    except ConfigurationError as error:  # of a window
        raise ConfigurationError(f"{where}: window: {error}") from None


def with_settings(content: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the content of a file with other values.

    Args:
        content: of the file; not changed.
        settings: see `load_scenario`. A value is TOML; what is not, is text.

    Raises:
        ConfigurationError: a setting without "=", or a path through something that is no table.
    """
    changed: dict[str, Any] = _copied(content)
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"a setting is KEY=VALUE, such as batching.max_batch=8, not {setting!r}")
        *folders, last = key.strip().split(".")
        at: Any = changed
        for part in folders:
            at = _inside(at, part, setting)
        if isinstance(at, list):
            at[_place(at, last, setting)] = _value(text)
        else:
            at[last] = _value(text)
    return changed


def _inside(at: Any, part: str, setting: str) -> Any:
    found = at[_place(at, part, setting)] if isinstance(at, list) else at.setdefault(part, {})
    if not isinstance(found, dict | list):
        raise ConfigurationError(f"{setting}: {part} is a value, not a table")
    return found


def _place(at: list[Any], part: str, setting: str) -> int:
    names = [each.get("name") if isinstance(each, dict) else None for each in at]
    if part in names:
        return names.index(part)
    if part.isdigit() and int(part) < len(at):
        return int(part)
    known = [str(name) for name in names if name]
    raise ConfigurationError(f"{setting}: there is no {part!r} here. {nearest(part, known)}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _copied(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _copied(value) for key, value in content.items()}
    return [_copied(value) for value in content] if isinstance(content, list | tuple) else content


def _resolved(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content with the paths of its files relative to the file that names them."""
    changed: dict[str, Any] = _copied(content)
    places = [changed.get("requests")]
    for pools in (changed.get("targets"), changed.get("drafters")):
        places += pools if isinstance(pools, list) else []
    for place in places:
        for key in ("trace", "costs"):
            if isinstance(place, dict) and isinstance(place.get(key), str) and place[key]:
                place[key] = str(folder / place[key])
    return changed


def _explain(error: ValidationError, content: Mapping[str, Any]) -> str:
    problems = []
    for problem in error.errors(include_url=False):
        where = ".".join(_named(problem["loc"], content))
        if problem["type"] == "extra_forbidden":
            key = str(problem["loc"][-1])
            problems.append(f"{where}: there is no such key. {nearest(key, _keys_at(problem['loc'][:-1]))}")
        elif problem["type"] == "missing":
            problems.append(f"{where}: is missing")
        else:
            what = problem["msg"].removeprefix("Value error, ")
            given = problem["input"]
            shown = f", not {given!r}" if isinstance(given, str | int | float) else ""
            problems.append(f"{where}: {what}{shown}" if where else what)
    return "; ".join(problems)


def _named(loc: tuple[int | str, ...], content: Any) -> list[str]:
    """Return the parts of a key; a pool is called by its name."""
    parts = []
    for part in loc:
        try:
            content = content[part]
        except (KeyError, IndexError, TypeError):
            content = None
        name = content.get("name") if isinstance(part, int) and isinstance(content, dict) else None
        parts.append(str(name or part))
    return parts


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the section that `loc` names."""
    model: type[BaseModel] = FleetScenario
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        inner = [a for a in (annotation, *getattr(annotation, "__args__", ())) if isinstance(a, type)]
        model = next((a for a in inner if issubclass(a, BaseModel)), model)
    return list(model.model_fields)
