"""Importing this module names what is missing where the openai package is not installed, or is too old.

Otherwise the first import that fails would name a package that no one asked for.
"""

from __future__ import annotations

from importlib.util import find_spec

__all__: list[str] = []

_OPENAI = "openai>=3.50,<4"
_COMES_WITH_IT = "httpx2"  # the HTTP client of these versions


def _check() -> None:
    """Raise an error with the remedy where the openai package is missing or too old.

    Raises:
        ImportError: it is.
    """
    if find_spec("openai") is not None and find_spec(_COMES_WITH_IT) is not None:
        return
    from importlib import metadata  # noqa: PLC0415 - takes time, and is needed for this message only

    try:
        has = f"openai {metadata.version('openai')} is installed"
    except metadata.PackageNotFoundError:
        has = "it is not installed"
    raise ImportError(f'disco needs {_OPENAI}, and {has} here. Type: pip install "{_OPENAI}"')


_check()
