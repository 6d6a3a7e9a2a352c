"""Where profiles are kept: those that ship with disco, and the user's own, which come first."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from disco._resources import resource_dir
from disco.errors import ConfigurationError, nearest
from disco.profiles.profile_toml import dump_toml, read_toml, validate
from disco.profiles.profile_types import DeviceProfile, LengthsProfile, PriceTable, Profile, ServerProfile

__all__ = [
    "available_profiles",
    "load_device",
    "load_lengths",
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
_P = TypeVar("_P", DeviceProfile, ServerProfile, LengthsProfile)


def user_profile_dir() -> Path:
    """The folder of the user's own profiles; it need not exist.

    `$XDG_DATA_HOME/disco/profiles` where that is set (to an absolute path, as its specification asks),
    else `%LOCALAPPDATA%` on Windows and `~/.local/share` elsewhere.

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
    """Names that `load_profile` knows, sorted; of one kind only where `kind` is given."""
    names = _paths()
    if kind is None:
        return tuple(sorted(names))
    return tuple(sorted(name for name, path in names.items() if read_toml(path).get("kind") == kind))


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Load a profile by its name, the user's own first, or by a path.

    Args:
        name: a name as in `available_profiles()`; anything with a folder or `.toml` is a path.

    Raises:
        ConfigurationError: no such profile, or a file that is not one (with file and line).
    """
    path = _find(name)
    return _profile(path, _version(path))


@lru_cache(maxsize=32)  # a client reads three of them; an application may make a client for each request
def _profile(path: Path, version: tuple[int, ...]) -> Profile:  # noqa: ARG001 - read anew when it changes
    data = read_toml(path)
    kind = data.get("kind")
    if kind not in _MODELS:
        raise ConfigurationError(
            f"{path}: kind must be one of {', '.join(map(repr, _MODELS))}"
            + ("" if kind is None else f" (is {kind!r})")
        )
    return validate(_MODELS[kind], data, path)


def load_device(name: str | os.PathLike[str]) -> DeviceProfile:
    """As `load_profile`, for a device; another kind is a ConfigurationError."""
    return _of_kind(name, DeviceProfile, "device")


def load_server(name: str | os.PathLike[str]) -> ServerProfile:
    """As `load_profile`, for a server; another kind is a ConfigurationError."""
    return _of_kind(name, ServerProfile, "server")


def load_lengths(name: str | os.PathLike[str]) -> LengthsProfile:
    """As `load_profile`, for prompt and answer lengths; another kind is a ConfigurationError."""
    return _of_kind(name, LengthsProfile, "lengths")


def load_prices(path: str | os.PathLike[str] | None = None) -> PriceTable:
    """The shipped price table, with the user's own prices over it.

    Args:
        path: a price file to lay over the shipped one; None takes `prices.toml` of the user's folder where
            there is one. The result carries the date and source of the file laid on top.

    Raises:
        ConfigurationError: a price file is missing or broken.
    """
    shipped = _prices(resource_dir("profiles") / f"{_PRICES}.toml")
    if path is None:
        path = next((own for folder in _own() if (own := folder / f"{_PRICES}.toml").is_file()), None)
        if path is None:
            return shipped
    over = _prices(Path(path))
    return over.model_copy(update={"models": {**shipped.models, **over.models}})


def save_profile(
    profile: Profile | PriceTable, path: str | os.PathLike[str], *, comment: str | None = None
) -> Path:
    """Write a profile where `load_profile` can read it; folders are made, an old file is replaced whole.

    Args:
        profile: what to write.
        path: a `.toml` file; `user_profile_dir() / f"{name}.toml"` makes it loadable by name.
        comment: put at the file's top.

    Returns:
        The file's path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = dump_toml(profile.model_dump(mode="python"), comment=comment)
    # Replaced in one step: a reader, or a crash, never meets half a file.
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
        found.update({path.stem: path for path in folder.glob("*.toml") if path.stem != _PRICES})
    return found


def _find(name: str | os.PathLike[str]) -> Path:
    text = os.fspath(name)
    if not isinstance(name, str) or text.endswith(".toml") or os.sep in text or "/" in text:
        path = Path(text).expanduser()
        if not path.is_file():
            raise ConfigurationError(f"there is no profile file {path}")
        return path
    known = _paths()
    if text not in known:
        raise ConfigurationError(f"there is no profile {text!r}. {nearest(text, known)}")
    return known[text]


def _of_kind(name: str | os.PathLike[str], wanted: type[_P], kind: Kind) -> _P:
    profile = load_profile(name)
    if not isinstance(profile, wanted):
        raise ConfigurationError(
            f"profile {os.fspath(name)!r} is of kind {profile.kind!r}, and a {kind} profile is needed here; "
            f"known: {', '.join(available_profiles(kind))}"
        )
    return profile


def _prices(path: Path) -> PriceTable:
    if not path.is_file():
        raise ConfigurationError(f"there is no price file {path}")
    return _price_table(path, _version(path))


@lru_cache(maxsize=8)
def _price_table(path: Path, version: tuple[int, ...]) -> PriceTable:  # noqa: ARG001 - as for `_profile`
    return validate(PriceTable, read_toml(path), path)


def _version(path: Path) -> tuple[int, ...]:
    """Another one whenever the file was written or replaced."""
    state = path.stat()
    return state.st_mtime_ns, state.st_size, state.st_ino
