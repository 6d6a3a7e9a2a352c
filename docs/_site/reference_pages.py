"""Writes the pages of docs/reference/ that follow from the code.

These are the command line, the settings of `disco serve`, preset files and the route record:

    python docs/_site/reference_pages.py

`tests/documentation/test_reference_pages.py` says which page is not current, and which key or field lacks a meaning.
"""

from __future__ import annotations

import argparse
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from disco.cli.main import _parser
from disco.cli.serving.settings import (
    ModelTable,
    PageTable,
    ServerTable,
    ServeSettings,
    TierTable,
    options_of,
)
from disco.cost.ledger import Charge
from disco.dispatch.presets import Preset
from disco.events import SpeculationReport
from disco.plan import BudgetCut, CoolDown, Power
from disco.reasons import Reason
from disco.session.records import route_record, shadow_record
from disco.session.records.assist_record import AssistRecord

__all__ = ["WRITERS", "described", "write"]

FOLDER = Path(__file__).parents[1] / "reference"
MADE = "<!-- Written by docs/_site/reference_pages.py: change the code, and run it. -->\n"
ABOUT_COMMANDS = """# Command line

Every command has `--help`. The exit status is 0; 1 where the command ran and something is not as it should be, as the
commands that check say; 2 after a mistake in the arguments, settings or files; 130 after Ctrl-C; 141 where
the reader of its output has gone.
"""
ABOUT_PRESETS = """# Preset files

A preset is a TOML file. `preset=` takes the name of a shipped one or the path of a file. The shipped ones, in
[policies/](../../policies/), are good to copy. Every key may be left out. An unknown key, or a value out of range, is
an error that names it and the nearest valid one.

```toml
summary = "one line for listings"

[dispatch]
policy = "wait_time"
budget = 0.3

[playback]
pace_tps = 12
```
"""
ABOUT_SERVE = """# Settings of `disco serve`

The [server](server.md) takes its settings from the command line and, with `--config FILE`, from a
[TOML file](../how-to/serve-config.md). An option replaces the key of the file.

## At the top of the file
"""
ABOUT_RECORDS = """# The route record

What happened to one answer, in numbers and names, never text: `stream.route` at the end of a stream,
`completion.route`, and one line of JSON in a [recording](../how-to/recording.md). `route.bill_usd` is the money paid to
servers, USD. `route.device_energy_j` is the energy of your own machines, J: an [estimate](metrics.md#energy) unless the
device's profile has measured it, and None where it is not known. `route.policy_cost` is what policies count: the bill,
plus the energy at the preset's exchange rate. `route.seamless` is true when every part reached the reader as its writer
wrote it. `route.failovers` are the pairs of a failed attempt and the one that replaced it. `route.why` says why each
endpoint started, stood by, rested or was left out: [why did it do that?](../concepts/why.md) `route.to_dict()` and
`route.to_json()` write it all.
"""
Subcommands = argparse._SubParsersAction  # noqa: SLF001 - argparse has no public way to ask a parser what it takes


def described(documented: type) -> dict[str, str]:
    """Return the attributes in the docstring of a class, with what is said of each, on one line."""
    text = inspect.getdoc(documented) or ""
    _, _, attributes = text.partition("Attributes:\n")
    entries = re.findall(
        r"^ {4}(\w+(?:,\s+\w+)*):\s+(.*(?:\n {8}.*)*)", attributes.split("\n\n")[0], re.MULTILINE
    )
    return {
        name: " ".join(meaning.split()) for names, meaning in entries for name in re.split(r",\s+", names)
    }


def command_line_page() -> str:
    """Every command with its options, from the parsers themselves."""
    parser = _parser()
    parts = [
        MADE,
        ABOUT_COMMANDS,
        *_commands(parser, "disco", 2),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _commands(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001 - as above
        if not isinstance(action, Subcommands):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001 - as above
        seen: list[argparse.ArgumentParser] = []
        for command, its_parser in action.choices.items():
            if its_parser in seen:  # another name of the same command
                continue
            seen.append(its_parser)
            yield f"{'#' * min(level, 4)} `{name} {command}`"
            yield _prose(_sentence(its_parser.description or helps.get(command, "")))
            yield _arguments(its_parser)
            yield from _commands(its_parser, f"{name} {command}", level + 1)


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = [
        f"| {_spelt(action)} | {_cell(_prose(_help(action, parser)))} |"
        for action in parser._actions  # noqa: SLF001 - as above
        if action.help != argparse.SUPPRESS and not isinstance(action, Subcommands)
        if "--help" not in action.option_strings
    ]
    return "\n".join(["| argument | |", "|---|---|", *rows]) if rows else ""


def _spelt(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{option} {value}".rstrip() + "`" for option in action.option_strings)


def _value(action: argparse.Action) -> str:
    metavar = action.metavar
    if isinstance(metavar, tuple):
        return " ".join(metavar)
    if metavar is None and action.choices is not None:
        metavar = "{" + ",".join(map(str, action.choices)) + "}"
    name = metavar or (action.dest.upper() if action.option_strings else action.dest)
    return f"[{name}]" if action.nargs == "?" else f"{name} ..." if action.nargs in ("*", "+") else name


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return _sentence((action.help or "") % {**vars(action), "prog": parser.prog})


def preset_page() -> str:
    """Every section and key of a preset file, from its model."""
    parts = [
        MADE,
        ABOUT_PRESETS,
        _keys(Preset, {n: f for n, f in Preset.model_fields.items() if _section(f) is None}),
    ]
    for name, field in Preset.model_fields.items():
        if (section := _section(field)) is not None:
            about = (inspect.getdoc(section) or "").split("Attributes:")[0].split(": ", 1)[1]
            parts += [f"## `[{name}]`", _prose(_sentence(about)), _keys(section, section.model_fields)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _keys(section: type[BaseModel], fields: dict[str, FieldInfo]) -> str:
    meanings = described(section)
    rows = [
        f"| `{name}` | {_values(field)} | {_default(field)} | {_cell(_prose(_sentence(meanings.get(name, ''))))} |"
        for name, field in fields.items()
    ]
    return "\n".join(["| key | values | default | meaning |", "|---|---|---|---|", *rows])


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined or value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{one}"' for one in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value:g}`"


def _values(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(rule, key):,.15g}"
        for rule in field.metadata
        for key, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))
        if getattr(rule, key, None) is not None
    ]
    return ", ".join([" or ".join(_kinds(field.annotation)), *bounds])


def _kinds(annotation: object, *, plural: bool = False) -> list[str]:
    """The values that a type allows, as TOML calls them."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [f'`"{value}"`' for value in inner]
    if origin in (typing.Union, types.UnionType):
        return [kind for one in inner if one is not types.NoneType for kind in _kinds(one)]
    if origin is typing.Annotated:
        rules = [rule for field in inner[1:] for rule in getattr(field, "metadata", ())]
        bounds = [f" ≥ {rule.ge:g}" for rule in rules if hasattr(rule, "ge")]
        return [kind + "".join(bounds) for kind in _kinds(inner[0])]
    if origin is tuple:
        return ["list of " + ", ".join(_kinds(inner[0]))]
    if origin is list:
        return ["list of " + ", ".join(_kinds(inner[0], plural=True))]
    if origin is dict:
        return ["table of " + " or ".join(_kinds(inner[1], plural=True))]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["tables" if plural else "table"]
    if annotation is typing.Any:
        return ["values"]
    return [
        {bool: "true, false", int: "whole number", float: "number", str: "text"}[
            typing.cast("type", annotation)
        ]
    ]


TABLES = {
    "[page]": PageTable,
    "[models.NAME]": ModelTable,
    "[[backups]], [[models.NAME.backups]]": ServerTable,
    "[[tiers]], [[models.NAME.tiers]]": TierTable,
}
"""The tables of a file of `disco serve`."""


def serve_page() -> str:
    """Every setting of `disco serve`, from its model."""
    parts = [MADE, ABOUT_SERVE, _settings(ServeSettings)]
    for names, table in TABLES.items():
        about = (inspect.getdoc(table) or "").strip()
        parts += [f"## {', '.join(f'`{name}`' for name in names.split(', '))}", about, _settings(table)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _settings(table: type[BaseModel]) -> str:
    flags = {id(option.field): option.flag for option in options_of()}
    has_options = any(id(field) in flags for field in table.model_fields.values())
    head = ["key", *(["option"] if has_options else []), "values", "default", "meaning"]
    rows = []
    for name, field in table.model_fields.items():
        flag = flags.get(id(field))
        option = [f"`{flag}`" if flag is not None else ""] if has_options else []
        meaning = _cell(_prose(_sentence(field.description or "")))
        rows.append([f"`{name}`", *option, _values(field), _usual(field), meaning])
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _usual(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    usual = extra.get("usual") if isinstance(extra, dict) else None
    if usual is not None:
        return str(usual)
    return (
        "none" if field.is_required() or not isinstance(field.default, str | int | float) else _default(field)
    )


RECORD = {
    "": route_record.RouteRecord,
    "endpoints": route_record.CandidateRecord,
    "attempts": route_record.AttemptRecord,
    "attempts.speculation": SpeculationReport,
    "segments": route_record.SegmentRecord,
    "migrations": route_record.MigrationRecord,
    "pace": route_record.LatencyRecord,
    "ledger.charges": Charge,
    "deprioritised": CoolDown,
    "budget_cuts": BudgetCut,
    "judgements": route_record.JudgementRecord,
    "assist": AssistRecord,
    "power": Power,
    "why": Reason,
    "shadow": shadow_record.ShadowRecord,
    "shadow.plan, shadow.real": shadow_record.PlanRecord,
    "shadow.endpoints": shadow_record.ShadowEndpoint,
}
"""The parts of a route record, by where they are in it."""


def record_page() -> str:
    """Every field of a route record, from its classes."""
    parts = [
        MADE,
        ABOUT_RECORDS,
    ]
    for where, record in RECORD.items():
        about = (inspect.getdoc(record) or "").split("Attributes:")[0].split("\n\n")[0]
        heading = f"## {', '.join(f'`{one}`' for one in where.split(', '))}" if where else "## Fields"
        meanings = described(record)
        rows = [
            f"| {', '.join(f'`{name}`' for name in names)} | {_cell(_prose(_sentence(meaning)))} |"
            for meaning, names in _grouped(record, meanings)
        ]
        parts += [heading, _prose(_sentence(" ".join(about.split()))) if where else ""]
        parts.append("\n".join(["| field | meaning |", "|---|---|", *rows]))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _grouped(record: type, meanings: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The fields in their order; those that are described together, together."""
    fields = [name for name in inspect.get_annotations(record) if not name.startswith("_")]
    for meaning in dict.fromkeys(meanings.get(name, "") for name in fields):
        yield meaning, [name for name in fields if meanings.get(name, "") == meaning]


def _sentence(text: str) -> str:
    """Text that begins with a capital letter and ends with a full stop."""
    text = " ".join(text.split())
    first = text[:1].upper() if text[:1].isascii() else text[:1]
    return first + text[1:] + ("" if not text or text.endswith((".", ")")) else ".")


def _prose(text: str) -> str:
    """A docstring's mentions of a page, as a link to it, and of a section's class, as the section."""
    text = re.sub(r"`(\w+)Section`", lambda section: f"`[{section[1].lower()}]`", text)
    return re.sub(r"docs/([\w/-]+/([\w-]+)\.md)", r"[\2](../\1)", text)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text)


WRITERS = {
    "cli.md": command_line_page,
    "preset-file.md": preset_page,
    "serve-settings.md": serve_page,
    "route-record.md": record_page,
}
"""Pages in docs/reference/, with what writes each."""


def write() -> None:
    """Write all pages."""
    for name, page in WRITERS.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
