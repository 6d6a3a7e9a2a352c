"""Which strings of a request are texts: those that the hook reads, and in which originals are replaced.

Every string is a text unless it is part of the protocol: roles, types, ids, names of tools, names of a schema's fields.
Pictures, sounds and files, and their addresses, are no texts either. A field that is not known here is a text, so that
what an API adds later is redacted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from disco.errors import RedactionError
from disco.request import Request

__all__ = ["with_texts"]

# Fields whose strings, alone or in a list, are no texts. Fields with a few fixed values are not listed: it does no harm
# to read them.
_PROTOCOL = frozenset(
    """
    call_id encrypted_content file_data file_id file_url id image_url item_id model previous_response_id required role
    tool_call_id type $ref $schema
    """.split()  # noqa: SIM905 - a line each otherwise
)
_MEDIA = frozenset(
    {"image_url", "input_audio"}
)  # parts of a message that hold a picture or a sound, or its address
# Fields whose content is the application's own: inside, nothing is part of the protocol.
_DATA = frozenset({"metadata", "enum", "const", "default", "examples", "variables", "chat_template_kwargs"})
# Where a name is code, that of a tool or a schema: in the value of such a field, in an object of such a type, or in the
# message of such a role. Any other name is a text.
_NAMED = frozenset({"function", "functions", "function_call", "custom", "json_schema"})
_NAMED_ROLES = frozenset({"tool", "function"})


def with_texts(request: Request, change: Callable[[str], str]) -> Request:
    """Return the request with each of its texts changed; the request itself stays as it is.

    Raises:
        RedactionError: the request holds a value that JSON has no form for.
    """
    return replace(
        request,
        messages=_changed(list(request.messages), change),
        params=_of_body(request.params, change),
        responses=None if request.responses is None else _of_body(request.responses, change),
        classes=tuple(map(change, request.classes)),
    )


def _of_body(body: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    changed: dict[str, Any] = _changed(dict(body), change)
    return changed


def _changed(value: Any, change: Callable[[str], str], *, inside: object = "", is_data: bool = False) -> Any:
    """Return JSON with its texts changed.

    Args:
        value: the JSON.
        change: changes a text.
        inside: the field whose value it is.
        is_data: all of it is the application's own.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        changed = {}
        for name, item in value.items():
            is_fixed = not is_data and _is_protocol(name, item, value, inside)
            own = is_data or name in _DATA
            new = item if is_fixed else _changed(item, change, inside=name, is_data=own)
            changed[change(name) if is_data and isinstance(name, str) else name] = new
        return changed
    if isinstance(value, list | tuple):
        return [_changed(item, change, inside=inside, is_data=is_data) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise RedactionError(
        f"The request holds a {type(value).__name__}, which cannot be redacted, so nothing was sent. Give plain JSON "
        "values: text, numbers, lists and dicts."
    )


def _is_protocol(name: object, item: Any, around: Mapping[str, Any], inside: object) -> bool:
    is_string = isinstance(item, str)
    if name == "name":
        is_code = inside in _NAMED or around.get("type") in _NAMED or around.get("role") in _NAMED_ROLES
        return is_string and is_code
    if name in _MEDIA and around.get("type") == name:
        return True
    strings = is_string or (isinstance(item, list) and all(isinstance(part, str) for part in item))
    return strings and name in _PROTOCOL
