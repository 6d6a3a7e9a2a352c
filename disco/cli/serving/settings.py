"""The settings of `disco serve`, each declared once: for its file, its command line, Python and the reference page."""

from __future__ import annotations

import argparse
import json
import os
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from disco._settings_files import settings_toml
from disco.cli.shared_options import LOCAL_MODEL, RECORD
from disco.client.endpoint_catalog.local_servers import is_address
from disco.client.endpoint_catalog.plugged import as_plugin
from disco.client.request_options import DEFAULT_PRESET
from disco.errors import ConfigurationError, nearest

__all__ = [
    "ModelTable",
    "PageTable",
    "ServeSettings",
    "ServerTable",
    "TierTable",
    "add_options",
    "read_settings",
    "table_name",
]

MAX_ANSWERS: Final = 256
MAX_ROUNDS: Final = 1024  # of these, most wait for the model; two windows of an answer may be on their way

# Keys by which people try to write a secret into the file.
_SECRETS: Final = frozenset({"key", "api_key", "apikey", "token", "secret", "password", "bearer"})
_REMEDY: Final = (
    "a key does not belong into this file. Put it into an environment variable and name that with key_env, or into a "
    "file of its own and name that with key_file"
)
_BARE: Final = re.compile("[A-Za-z0-9_-]+")  # a key that TOML takes without quotes
# What pydantic says of these names classes of this program, or is longer than needed.
_WORDS: Final = {
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "list_type": "must be a list",
    "string_too_short": "must not be empty",
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:g}",
}


def _beside(name: str, info: ValidationInfo) -> str:
    """Return a file that a settings file names: it is relative to that file's folder."""
    return name if info.context is None else str(info.context / Path(name).expanduser())


def _unless_named(name: str, info: ValidationInfo) -> str:
    return name if name.startswith("hf:") else _beside(name, info)


def _model_beside(name: str, info: ValidationInfo) -> str:
    is_file = not name.startswith("hf:") and (name.lower().endswith(".gguf") or _has_folder(name))
    return _beside(name, info) if is_file and not is_address(name) and as_plugin(name) is None else name


def _preset_beside(name: str, info: ValidationInfo) -> str:
    return _beside(name, info) if name.endswith(".toml") or _has_folder(name) else name


def _state_beside(name: str, info: ValidationInfo) -> str:
    return name if name == "off" else _beside(name, info)


def _has_folder(name: str) -> bool:
    return "/" in name or os.sep in name


def _switch_or_folder(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError("must be true, false or the name of a folder")


def _folder_beside(value: bool | str, info: ValidationInfo) -> bool | str:  # noqa: FBT001 - a setting's value
    return _beside(value, info) if isinstance(value, str) else value


def _address(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:  # its text would repeat a part, which may be one of a password
        raise ValueError("is no address: look at the part between :// and the next /") from None
    if parts.username is not None:
        raise ValueError(f"holds a password, and {_REMEDY}")
    if not host:
        raise ValueError("names no host")
    if "?" in value or "#" in value:
        raise ValueError("must be the address where the API begins, without ? and #")
    return value


Name = Annotated[str, Field(min_length=1)]
FileName = Annotated[Name, AfterValidator(_beside)]
LoraFile = Annotated[Name, AfterValidator(_unless_named)]
ModelName = Annotated[Name, AfterValidator(_model_beside)]
PresetFile = Annotated[Name, AfterValidator(_preset_beside)]
StateFile = Annotated[Name, AfterValidator(_state_beside)]
CacheFolder = Annotated[bool | str, BeforeValidator(_switch_or_folder), AfterValidator(_folder_beside)]
Address = Annotated[Name, AfterValidator(_address)]
Variable = Annotated[str, Field(pattern="^[A-Z_][A-Z0-9_]*$")]
Usd = Annotated[float, Field(ge=0.0)]
Price = Annotated[list[Usd], Field(min_length=2, max_length=2)]


def _told(default: Any, meaning: str, *, usual: str | None = None, **bounds: Any) -> Any:
    """Return a setting of the file only.

    Args:
        default: its usual value.
        meaning: what it means.
        usual: the usual value in words, where it follows from other settings.
        bounds: of its values, as pydantic has them.
    """
    return Field(default, description=meaning, json_schema_extra={"usual": usual}, **bounds)


def _option(
    default: Any,
    meaning: str,
    *,
    flag: str = "",
    metavar: str | None = None,
    usual: str | None = None,
    **bounds: Any,
) -> Any:
    """Return a setting that is an option as well.

    Args:
        default: its usual value.
        meaning: what it means.
        flag: the option; "": the setting's own name.
        metavar: what stands for the option's value.
        usual: the usual value in words, where it follows from other settings.
        bounds: of its values, as pydantic has them.
    """
    extra: dict[str, Any] = {"flag": flag, "metavar": metavar, "usual": usual}
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


class _Table(BaseModel):
    """A table of the file. Strict: the text "5" is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ServerTable(_Table):
    """A further server, used when the first one does not answer, in the order of the file."""

    base_url: Address = Field(description="the address of its API")
    model: Name = Field(description="the model to request from it")
    key_env: Variable | None = _told(None, "the environment variable that holds its key")
    key_file: FileName | None = _told(
        None, "the file that holds its key. A server on this machine needs neither"
    )
    price: Price | None = _told(
        None, "USD per million input and output tokens, `[2.5, 10.0]`", usual="the price table's"
    )
    continuation: str = _told("auto", "how it continues half-written answers (docs/concepts/continuation.md)")
    name: Name | None = _told(None, "its name in route records")


class TierTable(ServerTable):
    """A model between the local one and the server, from the smallest to the best."""

    reach: Literal["device", "own", "any"] = _told(
        "any",
        "whose computer it runs on: this one, one of yours, or anybody's. Only `any` must have a key",
    )


class ModelTable(_Table):
    """A model that callers ask for by its name."""

    preset: PresetFile | None = _told(
        None, "a preset's name or file", usual="`preset` at the top of the file"
    )
    local: ModelName | None = _told(
        None, "its local model; `none`: it has none", usual="`local` at the top of the file"
    )
    lora: list[LoraFile] = _told(
        [],
        "LoRA adapters of its local model, as at the top of the file; those at the top are for the `local` there",
    )
    mmproj: FileName | None = _told(
        None,
        "the projector with which its local model sees images; the one at the top is for the `local` there",
    )
    base_url: Address | None = _told(
        None,
        "the address of its server; without it, it has none. `OPENAI_BASE_URL` and `OPENAI_API_KEY` do not count here",
    )
    model: Name | None = _told(None, "what its server is asked for", usual="the table's own name")
    key_env: Variable | None = _told(None, "the environment variable that holds its server's key")
    key_file: FileName | None = _told(
        None, "the file that holds its server's key. A server on this machine needs neither"
    )
    price: Price | None = _told(
        None, "of its server, USD per million input and output tokens", usual="the price table's"
    )
    continuation: str = _told(
        "auto", "how its server continues half-written answers (docs/concepts/continuation.md)"
    )
    tiers: list[TierTable] = _told([], "models between the local one and the server, see below")
    backups: list[ServerTable] = _told([], "further servers, see below")
    budget: dict[str, Any] | None = _told(
        None,
        "a budget of its own; the keys are those of a preset's `[limits]` (docs/how-to/budgets.md). Its `account` is "
        "the model's name, unless it says otherwise",
        usual="it shares that at the top",
    )
    options: dict[str, Any] = _told(
        {}, 'options of every request, as in the field `disco` of a body: `{ pace_tps = "off" }`'
    )


class PageTable(_Table):
    """The live page."""

    enabled: bool = _option(True, "show a live page at /", flag="--no-page")
    text: bool = _option(False, "show prompts and answers on the live page; needs a key", flag="--page-text")
    answers: int = _told(50, "how many of the last answers it keeps", ge=1, le=1000)


class ServeSettings(_Table):
    """The settings at the top of the file; most are options as well."""

    local: ModelName | None = _option(
        None,
        "local model: a name, a GGUF file, hf:owner/repo/file, an endpoint of an installed package (KIND:ARGUMENT, see "
        "`disco plugins`), or `none`; in a file with named models, of all that do not say otherwise",
        usual=f"{LOCAL_MODEL}; with --layers or named models none",
    )
    runtime: Literal["auto", "engine", "llama-server"] = _option(
        "auto",
        "what runs the local model: disco's own engine, or llama.cpp's server; auto: the first of these that is "
        "installed; see docs/reference/local-model.md",
    )
    lora: list[LoraFile] = _option(
        [],
        "a LoRA adapter of the local model: a GGUF file, with how much of it is added to the weights if that is not "
        "all of it (adapter.gguf:0.5)",
        metavar="FILE[:SCALE]",
    )
    mmproj: FileName | None = _option(
        None,
        "the projector with which the local model sees images, a GGUF file; llama-server then runs the model",
        metavar="FILE",
    )
    preset: PresetFile = _option(
        DEFAULT_PRESET, "a preset's name or file; see docs/start/choose-preset.md", metavar="PRESET"
    )
    shadow: PresetFile | None = _option(
        None,
        "record, with --record, what this other preset would have done, without doing it; see docs/how-to/shadow.md",
        metavar="PRESET",
    )
    power: Literal["auto", "off"] = _option(
        "auto",
        "off: the battery, the load and the network of this machine change nothing; auto: they do, where psutil is "
        "installed; see docs/how-to/power.md",
    )
    histories: FileName | None = _option(
        None,
        "keep the scores that a cascade's thresholds are learnt from, numbers only, across restarts",
        metavar="FILE",
        usual="the state file",
    )
    state: StateFile | None = _option(
        None,
        "keep what is learnt and spent in this file, numbers only, or `off`; see docs/reference/state.md",
        metavar="FILE",
        usual="the user's own state file",
    )
    prompt_cache: CacheFolder = _option(
        False,
        "save what the local model has read of system prompts and long conversations, so that it need not read them "
        "again after a restart; the files hold texts, as tokens; in the user's folder for caches, or in the one that "
        "is named; see docs/how-to/warm-start.md",
        metavar="FOLDER",
        usual="off",
    )
    prompt_cache_mib: int | None = _option(None, "most that they take, MiB", metavar="MIB", usual="512", ge=1)
    prompt_cache_private: bool = _option(
        False,
        "save prompts, too, that must stay on this machine, such as all those under the preset private",
    )
    redact: Name | None = _option(
        None,
        "a Python function that names the parts of each text that no server elsewhere may get, in a module of the "
        "current folder or an installed one; requests that are not routed are then refused; see "
        "docs/how-to/redaction.md",
        metavar="MODULE:FUNCTION",
    )
    verify: ModelName | None = _option(
        None,
        "be a verify server too: check with this model what other devices draft; it is the local model, and takes the "
        "same names as --local; see docs/concepts/speculate.md",
        metavar="MODEL",
    )
    layers: FileName | None = _option(
        None,
        "be a layer server too: compute for devices the layers that are in this file, NAME.cloud.gguf as `disco split "
        "cut` makes it; without a key for a server, no model then answers chats; see docs/concepts/split.md",
        metavar="FILE",
    )
    slots: int = _option(
        8,
        "with --verify or --layers: answers whose caches are kept at the same time; further ones wait",
        metavar="N",
        ge=1,
    )
    context_tokens: int | None = _option(
        None,
        "longest prompt and answer together of the local models; the most memory that they take grows with it",
        flag="--context",
        metavar="TOKENS",
        usual="what the model was trained with, as far as half of the free memory holds it; with --layers at most 4096",
        ge=1,
    )
    threads: int | None = _option(
        None,
        "with --verify or --layers: threads of llama.cpp",
        metavar="N",
        usual="all cores but one",
        ge=1,
    )
    host: Name = _option("127.0.0.1", "address to listen on")
    port: int = _option(8642, "port to listen on; 0 picks a free one", ge=0, le=65535)
    attach: bool = _option(
        True,
        "let other programs of this user use the local model in place of a copy; see docs/how-to/attach.md",
        flag="--no-attach",
    )
    page: PageTable = _told(PageTable(), "see below")
    key_file: FileName | None = _option(
        None, "a file that contains only the callers' key", metavar="FILE", usual="$DISCO_SERVER_KEY"
    )
    allow_origin: list[Name] = _option([], "origin of a web page that may call it", metavar="URL")
    allow_host: list[Name] = _option(
        [], "a further host name of this server, for a proxy that passes its own on", metavar="NAME"
    )
    max_concurrent: int | None = _option(
        None,
        "most answers, and rounds, at the same time; further requests get 429",
        metavar="N",
        usual=f"{MAX_ANSWERS}; with --verify {MAX_ROUNDS}",
        ge=1,
    )
    max_body_mib: float = _option(
        32.0, "longest request, MiB", flag="--max-body", metavar="MIB", gt=0.0, le=2.0**20
    )
    grace_s: float = _option(
        10.0,
        "time for open answers to end after SIGTERM or Ctrl-C, s; a second signal ends them at once",
        flag="--grace",
        metavar="S",
        ge=0.0,
        le=1e9,
    )
    record: FileName | None = _option(None, RECORD, metavar="FILE")
    log_level: Literal["debug", "info", "warning", "error"] = _option(
        "warning",
        "lowest level of the log on standard error: warning shows failures, info also answers",
    )
    default: Name | None = _told(None, "the named model that a request means which names none")
    budget: dict[str, Any] | None = _told(
        None,
        "the most that may be spent; the keys are those of a preset's `[limits]` (docs/how-to/budgets.md). Of all "
        "named models together that have none of their own; of one that reaches no server, only `device_tokens` counts",
    )
    tiers: list[TierTable] = _told([], "see below; in a file without named models. `--tier` adds one")
    backups: list[ServerTable] = _told([], "see below; in a file without named models. `--backup` adds one")
    models: dict[str, ModelTable] = _told({}, "models that callers ask for by name, see below")

    def usual_local(self) -> str:
        """Return the local model of every client whose own settings name none."""
        if self.local is not None:
            return self.local
        return "none" if self.layers is not None or self.models else LOCAL_MODEL


def options_of(table: type[BaseModel] = ServeSettings, path: tuple[str, ...] = ()) -> Iterator[_Option]:
    """Yield the settings that are options, in their order."""
    for name, field in table.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Table):
            yield from options_of(field.annotation, (*path, name))
        elif isinstance(extra := field.json_schema_extra, dict) and "flag" in extra:
            flag = str(extra["flag"]) or f"--{name.replace('_', '-')}"
            yield _Option((*path, name), flag, field)


class _Option(typing.NamedTuple):
    """A setting as an option: its place in the tables, as it is typed, and what is said of it."""

    path: tuple[str, ...]
    flag: str
    field: FieldInfo

    @property
    def destination(self) -> str:
        return ".".join(self.path)

    def how(self) -> dict[str, Any]:
        """Return how `argparse` reads it."""
        kind, inner = _kind(self.field.annotation)
        extra = typing.cast("dict[str, Any]", self.field.json_schema_extra)
        usual = extra["usual"]
        if usual is None and isinstance(self.field.default, str | int | float) and kind is not bool:
            usual = f"{self.field.default:g}" if isinstance(self.field.default, float) else self.field.default
        meaning = (
            f"{self.field.description} (default: {usual})" if usual is not None else self.field.description
        )
        how: dict[str, Any] = {"help": meaning, "metavar": extra["metavar"]}
        if kind is bool and str in inner:
            return how | {"nargs": "?", "const": True}
        if kind is bool:
            return {
                "action": "store_const",
                "const": not self.field.default,
                "help": f"do not {meaning}" if self.field.default else meaning,
            }
        if kind is Literal:
            return how | {"choices": inner}
        if kind is list:
            return how | {"action": "append", "help": f"{meaning}; may be given several times"}
        return how | {"type": kind}


def _kind(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a setting's value is, and what is in it: of a list its items, of a choice its values."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in inner if one is not types.NoneType]
        return _kind(kinds[0])[0], (*_kind(kinds[0])[1], *kinds[1:])
    return (annotation, ()) if origin is None else (origin, inner)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the settings that are options; what is not given is not in the namespace."""
    for option in options_of():
        parser.add_argument(option.flag, dest=option.destination, default=argparse.SUPPRESS, **option.how())


def read_settings(arguments: argparse.Namespace) -> ServeSettings:
    """Return the settings of the file and, in their place where given, those of the command line.

    Raises:
        ConfigurationError: the file cannot be read, a setting is wrong, or two do not go together.
    """
    path = None if arguments.config is None else Path(arguments.config)
    settings = ServeSettings() if path is None else _of_file(path)
    given = vars(arguments)
    options = {option.path: option for option in options_of() if option.destination in given}
    tables: dict[str, Any] = {}
    for place in options:
        table = tables
        for key in place[:-1]:
            table = table.setdefault(key, {})
        table[place[-1]] = given[".".join(place)]
    try:
        typed = ServeSettings.model_validate(tables)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        place = tuple(str(key) for key in first["loc"] if isinstance(key, str))
        while place not in options:
            place = place[:-1]
        raise ConfigurationError(f"{options[place].flag} {_fault(first)}") from None
    changes = {name: getattr(typed, name) for name in typed.model_fields_set}
    if "page" in changes:
        page = {name: getattr(typed.page, name) for name in typed.page.model_fields_set}
        changes["page"] = settings.page.model_copy(update=page)
    settings = settings.model_copy(update=changes)
    check(settings, path)
    for option in ("tier", "backup"):
        if settings.models and given.get(option):
            raise ConfigurationError(
                f"--{option} does not say for which model of {path}. Write [[models.NAME.{option}s]] in the file."
            )
    return settings


def check(settings: ServeSettings, path: Path | None = None) -> None:
    """Refuse settings that do not go together.

    Args:
        settings: of a file and a command line, or made in Python.
        path: the file, for messages.

    Raises:
        ConfigurationError: two do not go together, or one needs another.
    """
    given = settings.model_fields_set
    verifies, computes = settings.verify is not None, settings.layers is not None
    if verifies and computes:
        raise ConfigurationError(
            "--verify and --layers cannot be used together: they would wait for each other. Start two servers"
        )
    if verifies:
        for name in ("local", "runtime", "mmproj"):
            if name in given:
                raise ConfigurationError(
                    f"--{name} cannot be used with --verify, whose model is also the local one: leave one out"
                )
    if not (verifies or computes):
        for name, flag in (("slots", "--slots"), ("threads", "--threads")):
            if name in given:
                raise ConfigurationError(
                    f"{flag} is for a verify server or a layer server: name a model with --verify MODEL or "
                    "--layers FILE"
                )
    if settings.usual_local() == "none" and not settings.models:
        flags = {
            "runtime": "--runtime",
            "context_tokens": "--context",
            "lora": "--lora",
            "mmproj": "--mmproj",
        }
        for name, flag in flags.items():
            if name in given and not (computes and name == "context_tokens"):
                raise ConfigurationError(
                    f"{flag} is for a local model, but --local none asks for none: leave one of them out"
                )
    alone = settings.prompt_cache_mib is not None or settings.prompt_cache_private
    if settings.prompt_cache is False and alone:
        raise ConfigurationError(
            "--prompt-cache-mib and --prompt-cache-private belong to --prompt-cache: give that, too"
        )
    if settings.prompt_cache is not False and verifies:
        raise ConfigurationError(
            "--prompt-cache cannot be used with --verify, whose model reads the prompts of many: leave one of them out"
        )
    if settings.page.text and not settings.page.enabled:
        raise ConfigurationError(
            "--page-text shows prompts and answers on the page, but the page is off (--no-page): leave one of them out"
        )
    if settings.shadow is not None and settings.record is None:
        raise ConfigurationError(
            "--shadow writes only into route records: name a file for them with --record"
        )
    where = "" if path is None else f"{path}: "
    if settings.default is not None and not settings.models:
        raise ConfigurationError(
            f"{where}default names a model, but there is no table [models.NAME]. Add one, or leave default out."
        )
    for name in ("tiers", "backups"):
        if settings.models and getattr(settings, name):
            raise ConfigurationError(
                f"{where}[[{name}]] at the top is for a file without [models.NAME]. Write [[models.NAME.{name}]]."
            )


def _of_file(path: Path) -> ServeSettings:
    values = settings_toml(path, "--config")
    try:
        return ServeSettings.model_validate(values, context=path.parent)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=True)
        told = "; ".join(map(_sentence, found))
        raise ConfigurationError(f"{path}: {told}{'' if told.endswith(('?', '.')) else '.'}") from None


def _sentence(detail: ErrorDetails) -> str:
    """Return where a mistake is, what it is, and what to write instead; a text that was given is not repeated."""
    *table, key = detail["loc"]
    item = ""
    if isinstance(key, int):  # of a list
        item = f" number {key + 1}"
        *table, key = table
    where = f"{table_name(table)} {key}{item}".strip()
    if detail["type"] == "extra_forbidden":
        if str(key).lower() in _SECRETS:
            return f"{where}: {_REMEDY}"
        return f"{where}: there is no such key. {nearest(str(key), _keys_of(table))}"
    if detail["type"] == "missing":
        return f"{where}: this key is missing"
    if detail["type"] == "string_pattern_mismatch" and key == "key_env":
        # It may be the key itself.
        return f"{where}: must be the name of an environment variable, in capitals, such as OPENAI_API_KEY"
    if detail["type"] == "dict_type" and key == "budget":
        return f'{where}: must say of what and for how long, such as budget = {{ usd = 5, per = "month" }}'
    if detail["type"] == "list_type" and key in ("tiers", "backups"):
        return f"{where}: must be an array of tables: write [[{_dotted([*table, key])}]]"
    return f"{where}: {_fault(detail)}"


def _fault(detail: ErrorDetails) -> str:
    """Return what is wrong with a value; a text that was given is not repeated."""
    words = _WORDS.get(detail["type"])
    message = detail["msg"].removeprefix("Value error, ") if words is None else words
    message = message.format(**detail.get("ctx", {})) if words is not None else message
    given = detail["input"]
    shown = f", not {given!r}" if isinstance(given, bool | int | float) else ""
    return f"{message[:1].lower()}{message[1:]}{shown}"


def table_name(table: Sequence[int | str]) -> str:
    """Return a table as the file writes it, "" for the file itself; a table of an array with its number.

    Args:
        table: the keys on the way to it, and its place in an array, which counts from 0.
    """
    *keys, last = table or [""]
    if isinstance(last, int):
        return f"[[{_dotted(keys)}]] number {last + 1}"
    return f"[{_dotted(table)}]" if table else ""


def _dotted(keys: Sequence[int | str]) -> str:
    return ".".join(
        key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in map(str, keys)
    )


def _keys_of(table: list[int | str]) -> list[str]:
    """Return the keys that a table may have."""
    kind: Any = ServeSettings
    for part in table:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
            continue
        inside = [a for a in typing.get_args(kind) if a is not str and a is not type(None)]
        kind = inside[0] if inside else kind
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
