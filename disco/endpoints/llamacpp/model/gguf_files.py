"""What the package `gguf` reads of a model's file, in the form in which its writer takes it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, NamedTuple

from disco.errors import ConfigurationError

__all__ = ["Entry", "metadata_entries", "require_gguf"]


def require_gguf() -> Any:
    """Import and return the package `gguf`.

    Raises:
        ConfigurationError: it is not installed.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigurationError(
            'Writing a model file needs the package gguf, which is in the extra "split": '
            'pip install "disco-llm[split]"'
        )
    import gguf  # noqa: PLC0415 - optional

    return gguf


class Entry(NamedTuple):
    """An entry of the metadata: its name, what it holds, and the types of that and, in an array, of its items."""

    name: str
    content: Any
    kind: Any
    of_items: Any


def metadata_entries(gguf: Any, reader: Any) -> Iterator[Entry]:
    """Yield the entries that another file of the same model has, too, for `GGUFWriter.add_key_value`."""
    for field in reader.fields.values():
        name, kinds = field.name, field.types
        if name.startswith(("GGUF.", "split.")) or name in ("general.architecture", "general.alignment"):
            continue  # the writer has its own
        is_array = kinds[0] == gguf.GGUFValueType.ARRAY
        if is_array and len(kinds) == 1:  # an empty one, which the writer refuses
            continue
        yield Entry(name, _content(gguf, field), kinds[0], kinds[-1] if is_array else None)


def _content(gguf: Any, field: Any) -> Any:
    """Return what an entry of the metadata holds; texts as bytes, since not every token is valid UTF-8."""
    if field.types[-1] != gguf.GGUFValueType.STRING:
        return field.contents()
    texts = [field.parts[place].tobytes() for place in field.data]
    return texts if len(field.types) > 1 else texts[0]
