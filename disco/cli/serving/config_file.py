"""The file of `disco serve --config`: what may be in it, and how each mistake in it is told."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from disco._settings_files import settings_toml
from disco.errors import ConfigurationError, nearest

__all__ = ["ConfigFile", "ModelTable", "ServerTable", "TierTable", "load_config", "table_name"]

# Keys by which people try to write a secret into the file.
_SECRETS: Final = frozenset({"key", "api_key", "apikey", "token", "secret", "password", "bearer"})
_REMEDY: Final = (
    "a key does not belong into this file. Put it into an environment variable and name that with key_env, or into a "
    "file of its own and name that with key_file"
)

_BARE: Final = re.compile("[A-Za-z0-9_-]+")  # a key that TOML takes without quotes
# What pydantic says of a value of another kind names classes of this program.
_KINDS: Final = {
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "list_type": "must be a list",
}

Name = Annotated[str, Field(min_length=1)]
Usd = Annotated[float, Field(ge=0.0)]


class _Table(BaseModel):
    """A table of the file. Strict: the text "5" is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ServerTable(_Table):
    """A server: `[[backups]]`, and what the other tables of servers add to.

    Attributes:
        base_url: the address of its API.
        model: the model to request from it.
        key_env: name of the environment variable that holds its key.
        key_file: the file that holds its key; relative to this file.
        price: USD per million input and output tokens.
        continuation: how it continues half-written answers (docs/concepts/continuation.md).
        name: its name in route records.
    """

    base_url: Name
    model: Name
    key_env: str | None = Field(default=None, pattern="^[A-Z_][A-Z0-9_]*$")
    key_file: Name | None = None
    price: Annotated[list[Usd], Field(min_length=2, max_length=2)] | None = None
    continuation: str = "auto"
    name: Name | None = None

    @field_validator("base_url")
    @classmethod
    def _holds_no_password(cls, value: str) -> str:
        return _checked_address(value)


class TierTable(ServerTable):
    """A model between the local one and the server: `[[tiers]]`."""

    reach: Literal["device", "own", "any"] = "any"


class ModelTable(_Table):
    """`[models.NAME]`: a model that callers ask for by its name.

    Attributes:
        preset: the name or file of its preset; None: that at the top of the file.
        local: the local model, as for --local; "none": it has none; None: that at the top of the file.
        base_url, key_env, key_file, price, continuation: of its server; None: it has no server. See `ServerTable`.
        model: what its server is asked for; None: the table's own name.
        tiers, backups: see their tables.
        budget: the most that may be spent; the keys are those of a preset's [limits]; None: that at the top.
        options: options of every request, as in the field `disco` of a request's body.
    """

    preset: Name | None = None
    local: Name | None = None
    base_url: Name | None = None
    model: Name | None = None
    key_env: str | None = Field(default=None, pattern="^[A-Z_][A-Z0-9_]*$")
    key_file: Name | None = None
    price: Annotated[list[Usd], Field(min_length=2, max_length=2)] | None = None
    continuation: str = "auto"
    tiers: list[TierTable] = []
    backups: list[ServerTable] = []
    budget: dict[str, Any] | None = None
    options: dict[str, Any] = {}

    @field_validator("base_url")
    @classmethod
    def _holds_no_password(cls, value: str | None) -> str | None:
        return None if value is None else _checked_address(value)


class PageTable(_Table):
    """`[page]`: the live page.

    Attributes:
        enabled: whether there is one.
        text: whether it shows prompts and answers.
        answers: how many of the last answers it keeps.
    """

    enabled: bool = True
    text: bool = False
    answers: int = Field(default=50, ge=1, le=1000)


class ConfigFile(_Table):
    """The whole file. A key means what the option of the same name means; None: the option's usual value."""

    host: Name | None = None
    port: int | None = Field(default=None, ge=0, le=65535)
    key_file: Name | None = None
    allow_origin: list[Name] = []
    allow_host: list[Name] = []
    max_concurrent: int | None = Field(default=None, ge=1)
    max_body_mib: float | None = Field(default=None, gt=0.0)
    grace_s: float | None = Field(default=None, ge=0.0)
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    record: Name | None = None
    state: Name | None = None
    histories: Name | None = None
    power: Literal["auto", "off"] | None = None
    shadow: Name | None = None
    redact: Name | None = None
    local: Name | None = None
    isolation: Literal["thread", "process"] | None = None
    runtime: Literal["auto", "compiled", "prebuilt"] | None = None
    preset: Name | None = None
    prompt_cache: bool | str | None = None
    prompt_cache_mib: int | None = Field(default=None, ge=1)
    prompt_cache_private: bool | None = None
    verify: Name | None = None
    layers: Name | None = None
    slots: int | None = Field(default=None, ge=1)
    context_tokens: int | None = Field(default=None, ge=1)
    threads: int | None = Field(default=None, ge=1)
    attach: bool | None = None
    default: Name | None = None
    budget: dict[str, Any] | None = None
    page: PageTable = PageTable()
    tiers: list[TierTable] = []
    backups: list[ServerTable] = []
    models: dict[str, ModelTable] = {}

    @field_validator("prompt_cache", mode="before")
    @classmethod
    def _is_a_folder(cls, value: object) -> object:
        if isinstance(value, bool) or (isinstance(value, str) and value):
            return value
        raise ValueError("must be true, false or the name of a folder")


def load_config(path: Path) -> ConfigFile:
    """Read the file.

    Raises:
        ConfigurationError: it cannot be read, is no TOML, or has a mistake; the message names file, table and key.
    """
    values = settings_toml(path, "--config")
    try:
        return ConfigFile.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=True)
        told = "; ".join(map(_sentence, found))
        raise ConfigurationError(f"{path}: {told}{'' if told.endswith(('?', '.')) else '.'}") from None


def _checked_address(value: str) -> str:
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
    message = _KINDS.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "dict_type" and key == "budget":
        message = 'must say of what and for how long, such as budget = { usd = 5, per = "month" }'
    if detail["type"] == "list_type" and key in ("tiers", "backups"):
        message = f"must be an array of tables: write [[{_dotted([*table, key])}]]"
    given = detail["input"]
    shown = f", not {given!r}" if isinstance(given, bool | int | float) else ""
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}"


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
    kind: Any = ConfigFile
    for part in table:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[str(part)].annotation
            continue
        inside = [a for a in typing.get_args(kind) if a is not str and a is not type(None)]
        kind = inside[0] if inside else kind
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
