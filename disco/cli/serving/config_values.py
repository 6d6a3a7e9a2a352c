"""What the file of `disco serve --config` says, as the values of the command's options."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from disco._settings_files import settings_text
from disco.cli.serving.config_file import (
    ConfigFile,
    ModelTable,
    ServerTable,
    TierTable,
    load_config,
    table_name,
)
from disco.client.endpoint_catalog.backups import Backup
from disco.client.endpoint_catalog.local_servers import is_address, is_loopback
from disco.client.endpoint_catalog.plugged import as_plugin
from disco.client.endpoint_catalog.tiers import Tier
from disco.errors import ConfigurationError, DiscoError

__all__ = ["ModelSettings", "config_values"]

# Keys whose option has another name.
_OPTIONS: Final = {"max_body_mib": "max_body", "grace_s": "grace", "context_tokens": "context"}
_FILES: Final = ("key_file", "record", "histories", "verify", "layers")
_KEY: Final = re.compile("[!-~]+")  # what a header can carry
_NO_KEY: Final = "none"  # what is sent to a server on this machine that checks no key


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a client is made with that answers under one name.

    Attributes:
        where: the table, for messages.
        model: what its server is asked for.
        preset, local: as the options; None: as the options say.
        base_url, api_key: of its server; None: it has none.
        price, continuation: of its server.
        tiers, backups: further endpoints.
        budget: its budget; None: it has none of its own.
        options: options of every request.
    """

    where: str
    model: str
    preset: str | None = None
    local: str | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    price: tuple[float, float] | None = None
    continuation: str = "auto"
    tiers: Sequence[Tier] = ()
    backups: Sequence[Backup] = ()
    budget: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def config_values(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that the file gives, by the names of `argparse`; None: it does not say.

    Args:
        path: the file. Names of files in it are relative to its folder.
        given: what the command line says: an option that replaces one of the file.

    Raises:
        ConfigurationError: the file has a mistake, a key is missing, or the command line does not go with the file.
    """
    config = load_config(path)
    folder = path.parent
    values: dict[str, Any] = {
        _OPTIONS.get(name, name): value
        for name, value in config
        if name not in ("page", "attach", "models", "tiers", "backups")
    }
    for name in _FILES:
        if _is_file(name, values[name]):
            values[name] = _file(folder, values[name])
    if config.state is not None and config.state != "off":
        values["state"] = _file(folder, config.state)
    values["local"], values["preset"] = _model_file(folder, config.local), _preset_file(folder, config.preset)
    values["shadow"] = _preset_file(folder, config.shadow)
    cache = config.prompt_cache
    if isinstance(cache, str):
        values["prompt_cache"] = _file(folder, cache)
    else:
        values["prompt_cache"] = "" if cache else None
    values["no_attach"] = None if config.attach is None else not config.attach
    values["no_page"], values["page_text"] = not config.page.enabled or None, config.page.text or None
    values["page_answers"] = config.page.answers
    try:
        values["tiers"] = _tiers(config.tiers, ["tiers"], folder)
        values["backups"] = _backups(config.backups, ["backups"], folder)
        values["models"] = {name: _settings(name, table, folder) for name, table in config.models.items()}
    except DiscoError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    _check(path, config, given)
    return values


def _check(path: Path, config: ConfigFile, given: Mapping[str, Any]) -> None:
    """Refuse what does not go with models that have names.

    Raises:
        ConfigurationError: something does not.
    """
    if not config.models:
        if config.default is not None:
            raise ConfigurationError(
                f"{path}: default names a model, but there is no table [models.NAME]. Add one, or leave default out."
            )
        return
    for name in ("tiers", "backups"):
        if getattr(config, name):
            raise ConfigurationError(
                f"{path}: [[{name}]] at the top is for a file without [models.NAME]. Write [[models.NAME.{name}]]."
            )
    for option in ("tier", "backup"):
        if given.get(option):
            raise ConfigurationError(
                f"--{option} does not say for which model of {path}. Write [[models.NAME.{option}s]] in the file."
            )


def _settings(name: str, table: ModelTable, folder: Path) -> ModelSettings:
    where = table_name(["models", name])
    server = {"model", "key_env", "key_file", "price", "continuation", "backups"}
    if table.base_url is None and server & table.model_fields_set:
        raise ConfigurationError(
            f"{where} says something of a server, but not where it is. Add base_url, such as "
            '"https://api.openai.com/v1".'
        )
    key = None if table.base_url is None else _key(table.base_url, table, where, folder)
    budget = None if table.budget is None else {"account": name, **table.budget}
    return ModelSettings(
        where=where,
        model=table.model or name,
        preset=_preset_file(folder, table.preset),
        local=_model_file(folder, table.local),
        base_url=table.base_url,
        api_key=key,
        price=_price(table.price),
        continuation=table.continuation,
        tiers=_tiers(table.tiers, ["models", name, "tiers"], folder),
        backups=_backups(table.backups, ["models", name, "backups"], folder),
        budget=budget,
        options=table.options,
    )


def _tiers(tables: Sequence[TierTable], array: list[str], folder: Path) -> list[Tier]:
    tiers = []
    for number, table in enumerate(tables):
        where = table_name([*array, number])
        # Only a server of the user's own may check no key.
        needs = table.reach == "any" or table.key_env is not None or table.key_file is not None
        key = _key(table.base_url, table, where, folder) if needs else None
        try:
            tiers.append(
                Tier(
                    base_url=table.base_url,
                    model=table.model,
                    api_key=key,
                    reach=table.reach,
                    price=_price(table.price),
                    continuation=table.continuation,
                    name=table.name,
                )
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    return tiers


def _backups(tables: Sequence[ServerTable], array: list[str], folder: Path) -> list[Backup]:
    return [
        Backup(
            base_url=table.base_url,
            api_key=_key(table.base_url, table, table_name([*array, number]), folder),
            model=table.model,
            price=_price(table.price),
            continuation=table.continuation,
            name=table.name,
        )
        for number, table in enumerate(tables)
    ]


def _price(given: Sequence[float] | None) -> tuple[float, float] | None:
    return None if given is None else (float(given[0]), float(given[1]))


def _key(base_url: str, table: ModelTable | ServerTable, where: str, folder: Path) -> str:
    """Return the key of a server.

    Raises:
        ConfigurationError: it is not where the table says, or the table does not say where.
    """
    if table.key_env is not None and table.key_file is not None:
        raise ConfigurationError(f"{where} has key_env and key_file. Leave one of them out.")
    if table.key_env is not None:
        key = os.environ.get(table.key_env, "").strip()
        if not key:
            raise ConfigurationError(
                f"{where} key_env: the environment variable {table.key_env} is not set. Set it to the server's key."
            )
        return _checked_key(key, f"{where} key_env: the environment variable {table.key_env}")
    if table.key_file is not None:
        path = Path(_file(folder, table.key_file))
        key = settings_text(path, f"{where} key_file:").strip()
        if not key:
            raise ConfigurationError(f"{where} key_file: {path} is empty. Put the key into it.")
        return _checked_key(key, f"{where} key_file: {path}")
    if not is_loopback(urlsplit(base_url).hostname or ""):
        raise ConfigurationError(
            f"{where} has no key for its server. Name the environment variable that holds it with key_env, or a file "
            "with key_file (any text in it if the server checks none)."
        )
    return _NO_KEY


def _checked_key(key: str, source: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"{source} holds more than a key, which is one word of ASCII characters. Leave the rest out."
        )
    return key


def _file(folder: Path, name: str) -> str:
    return str(folder / Path(name).expanduser())


def _is_file(option: str, value: object) -> bool:
    """Return whether an option names a file; `verify` may also be a model's name."""
    return isinstance(value, str) and (option != "verify" or _is_path(value))


def _is_path(text: str) -> bool:
    return not text.startswith("hf:") and (text.lower().endswith(".gguf") or "/" in text or os.sep in text)


def _model_file(folder: Path, local: str | None) -> str | None:
    if local is None or is_address(local) or as_plugin(local) is not None or not _is_path(local):
        return local
    return _file(folder, local)


def _preset_file(folder: Path, preset: str | None) -> str | None:
    if preset is not None and (preset.endswith(".toml") or "/" in preset or os.sep in preset):
        return _file(folder, preset)
    return preset
