"""Packages whose names are loaded when they are first used, because what they need takes long to import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["loader"]


def loader(package: str, names: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: it loads a public name, or a module of the package.

    Args:
        package: its name.
        names: of modules below it, and the names that each defines.
    """
    module_of = {name: module for module, defined in names.items() for name in defined}

    def load(name: str) -> Any:
        if name in module_of:
            value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
            setattr(sys.modules[package], name, value)  # found at once the next time
            return value
        if name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
