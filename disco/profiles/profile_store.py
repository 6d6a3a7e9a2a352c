"""Loads and saves profiles: the user's own take precedence over those that ship with disco."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from disco._resources import resource_dir
from disco.errors import ConfigurationError, nearest
from disco.profiles.price_lookup import PriceTables
from disco.profiles.price_table import PriceTable
from disco.profiles.profile_toml import dump_toml, read_toml, validate
from disco.profiles.profile_types import DeviceProfile, LengthsProfile, Profile, ServerProfile

__all__ = [
    "available_profiles",
    "load_device",
    "load_lengths",
    "load_paper_prices",
    "load_prices",
    "load_profile",
    "load_server",
    "save_profile",
    "user_profile_dir",
]

Kind = Literal["device", "server", "lengths"]
_MODELS: dict[str, type[Profile]] = {
    "device": DeviceProfile,
    "server": ServerProfile,
    "lengths": LengthsProfile,
}
_PRICES = "prices"
_PAPER_PRICES = "prices-2024-10"
_P = TypeVar("_P", DeviceProfile, ServerProfile, LengthsProfile)


def user_profile_dir() -> Path:
    """Return the folder of the user's own profiles, which need not exist.

    `$XDG_DATA_HOME/disco/profiles` where that variable is set (to an absolute path, as its specification requires),
    else `disco/profiles` in `%LOCALAPPDATA%` on Windows and in `~/.local/share` on other systems.

    Raises:
        ConfigurationError: this user has no home directory.
    """
    chosen = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not chosen.is_absolute():
        local = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
        try:
            chosen = Path(local) if local else Path.home() / ".local" / "share"
        except RuntimeError as error:
            raise ConfigurationError("this user has no home directory; set XDG_DATA_HOME") from error
    return chosen / "disco" / "profiles"


def available_profiles(kind: Kind | None = None) -> tuple[str, ...]:
    """Return the names that `load_profile` accepts, sorted; only those of one kind if `kind` is given."""
    names = _paths()
    if kind is None:
        return tuple(sorted(names))
    return tuple(sorted(name for name, path in names.items() if read_toml(path).get("kind") == kind))


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Load a profile by its name or by a path; the user's own profile takes precedence over a shipped one.

    Args:
        name: a name of `available_profiles()`, or a path; a string with a folder or `.toml` is a path.

    Raises:
        ConfigurationError: no such profile, or a file that is not a valid profile (with file and line).
    """
    path = _find(name)
    return _profile(path, _version(path))


@lru_cache(maxsize=32)  # a client reads three profiles; an application may make a client for each request
def _profile(path: Path, version: tuple[int, ...]) -> Profile:  # noqa: ARG001 - part of the cache's key
    data = read_toml(path)
    kind = data.get("kind")
    if kind not in _MODELS:
        raise ConfigurationError(
            f"{path}: kind must be one of {', '.join(map(repr, _MODELS))}"
            + ("" if kind is None else f" (is {kind!r})")
        )
    return validate(_MODELS[kind], data, path)


def load_device(name: str | os.PathLike[str]) -> DeviceProfile:
    """Load a device profile; see `load_profile`. A profile of another kind raises ConfigurationError.

    Args:
        name: a profile's name, or the path of its file.
    """
    return _of_kind(name, DeviceProfile, "device")


def load_server(name: str | os.PathLike[str]) -> ServerProfile:
    """Load a server profile; see `load_profile`. A profile of another kind raises ConfigurationError.

    Args:
        name: a profile's name, or the path of its file.
    """
    return _of_kind(name, ServerProfile, "server")


def load_lengths(name: str | os.PathLike[str]) -> LengthsProfile:
    """Load prompt and answer lengths; see `load_profile`. A profile of another kind raises ConfigurationError.

    Args:
        name: a profile's name, or the path of its file.
    """
    return _of_kind(name, LengthsProfile, "lengths")


def load_prices(path: str | os.PathLike[str] | None = None) -> PriceTables:
    """Return the prices: the user's own before the shipped ones, and those of the paper (2024) behind them.

    Args:
        path: a price file of the user's; None: `prices.toml` in the user's folder, if there is one.

    Raises:
        ConfigurationError: a price file is missing or invalid.
    """
    shipped = _prices(resource_dir("profiles") / f"{_PRICES}.toml"), *load_paper_prices().tables
    if path is None:
        path = next((own for folder in _own() if (own := folder / f"{_PRICES}.toml").is_file()), None)
        if path is None:
            return PriceTables(shipped)
    mine = _prices(Path(path).expanduser())
    known = {name for table in shipped for name, one in table.providers.items() if one.hosts}
    for name, section in mine.providers.items():
        if not section.hosts and name not in known:
            raise ConfigurationError(
                f"price file {path}: [providers.{name}] has no hosts, so no server is at its prices. Add "
                'hosts = ["llm.example.org"] with the host of its API, or put the models under [models].'
            )
    return PriceTables((mine, *shipped), own=1)


def load_paper_prices() -> PriceTables:
    """Return the prices that the DiSCo paper prints, with which its evaluation is replayed; never the user's."""
    return PriceTables((_prices(resource_dir("profiles") / f"{_PAPER_PRICES}.toml"),))


def save_profile(
    profile: Profile | PriceTable, path: str | os.PathLike[str], *, comment: str | None = None
) -> Path:
    """Write a profile to a file that `load_profile` can read; makes missing folders and replaces an old file.

    Args:
        profile: the profile or price table.
        path: a `.toml` file; a profile at `user_profile_dir() / f"{name}.toml"` can be loaded by its name.
        comment: a comment for the top of the file.

    Returns:
        The file's path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = dump_toml(profile.model_dump(mode="python"), comment=comment)
    # The file is replaced in one step, so that neither a reader nor a crash can see half a file.
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _own() -> tuple[Path, ...]:
    # Without a home folder there are no user profiles; the shipped ones still work.
    try:
        return (user_profile_dir(),)
    except ConfigurationError:
        return ()


def _paths() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in (resource_dir("profiles"), *_own()):
        found.update(
            {path.stem: path for path in folder.glob("*.toml") if path.stem not in (_PRICES, _PAPER_PRICES)}
        )
    return found


def _find(name: str | os.PathLike[str]) -> Path:
    text = os.fspath(name)
    if not isinstance(name, str) or text.endswith(".toml") or os.sep in text or "/" in text:
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigurationError(
                f"there is no profile file {path}; correct the path, or give a profile's name"
            )
        return path
    known = _paths()
    if text not in known:
        raise ConfigurationError(f"there is no profile {text!r}. {nearest(text, known)}")
    return known[text]


def _of_kind(name: str | os.PathLike[str], wanted: type[_P], kind: Kind) -> _P:
    profile = load_profile(name)
    if not isinstance(profile, wanted):
        raise ConfigurationError(
            f"profile {os.fspath(name)!r} is of kind {profile.kind!r}, but a {kind} profile is needed here; "
            f"known: {', '.join(available_profiles(kind))}"
        )
    return profile


def _prices(path: Path) -> PriceTable:
    if not path.is_file():
        raise ConfigurationError(f"there is no price file {path}; check the path")
    return _price_table(path, _version(path))


@lru_cache(maxsize=8)
def _price_table(path: Path, version: tuple[int, ...]) -> PriceTable:  # noqa: ARG001 - part of the cache's key
    return validate(PriceTable, read_toml(path), path)


def _version(path: Path) -> tuple[int, ...]:
    """Return numbers that differ after the file was written or replaced."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino
