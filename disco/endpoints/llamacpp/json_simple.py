"""What a JSON schema says at its top level, with `$ref` and `allOf` resolved into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from disco.endpoints.llamacpp.json_cost import SchemaCost, SchemaError

__all__ = ["SchemaError", "Unsatisfiable", "simplified", "types_of"]

# Keywords that narrow what is valid and that no grammar here expresses.
_UNSUPPORTED = (
    "not", "if", "then", "else", "contains", "dependencies", "dependentRequired", "dependentSchemas",
    "patternProperties", "unevaluatedItems", "$dynamicRef",
)  # fmt: skip
_OBJECT = frozenset(
    {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "propertyNames"}
)
_ARRAY = frozenset({"items", "prefixItems", "minItems", "maxItems", "additionalItems"})
_STRING = frozenset({"pattern", "minLength", "maxLength"})
_NUMBER = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
# The keywords that are looked at; all others are annotations.
_MEANT = (
    _OBJECT
    | _ARRAY
    | _STRING
    | _NUMBER
    | {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "format"}
)
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_MOST_STEPS = 64


class Unsatisfiable(SchemaError):
    """Nothing is valid under the schema."""


def simplified(schema: Any, document: Mapping[str, Any], cost: SchemaCost, steps: int = 0) -> dict[str, Any]:
    """The schema with its annotations dropped, without `$ref`, `allOf` and `const` at its top level.

    Args:
        schema: a schema inside `document`; True and False are schemas too.
        document: what its `$ref`s point into; where it is empty, they are left out.
        cost: counts what is asked for.
        steps: how many references led here.

    Raises:
        SchemaError: it is malformed, unsupported, or refers to itself for ever.
    """
    cost.spend("schema")
    if schema is True:
        return {}
    if schema is False:
        raise Unsatisfiable("it is false")
    if not isinstance(schema, Mapping):
        raise SchemaError("a schema is not an object")
    if steps > _MOST_STEPS:
        raise SchemaError("its $ref lead nowhere, or nest too deeply")
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise SchemaError(f"{keyword} is not supported")
    if schema.get("uniqueItems"):
        raise SchemaError("uniqueItems is not supported")
    found = {key: value for key, value in schema.items() if key in _MEANT}
    for union in ("anyOf", "oneOf"):
        if isinstance(found.get(union), list):
            cost.spend("schema", len(found[union]))
    if isinstance(found.get("enum"), list):
        cost.expect("enum", len(found["enum"]))
    if "const" in found:
        found = _merged({"enum": [found.pop("const")]}, found, cost)
    ref, parts = found.pop("$ref", None), found.pop("allOf", ())
    if ref is not None and document:
        found = _merged(simplified(_target(ref, document), document, cost, steps + 1), found, cost)
    for part in parts:
        found = _merged(found, simplified(part, document, cost, steps + 1), cost)
    return _filtered(found)


def types_of(schema: Mapping[str, Any]) -> list[str] | None:
    """The types a value may have; None for any value at all."""
    given = schema.get("type")
    if given is not None:
        return [given] if isinstance(given, str) else list(given)
    for keywords, kind in ((_OBJECT, "object"), (_ARRAY, "array"), (_STRING, "string"), (_NUMBER, "number")):
        if not keywords.isdisjoint(schema):
            return [kind]
    return None


def _target(ref: Any, document: Mapping[str, Any]) -> Any:
    if not isinstance(ref, str) or not ref.startswith("#"):
        raise SchemaError("a $ref leads out of the schema")
    found: Any = document
    for step in unquote(ref[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError("a $ref leads nowhere")
    return found


def _filtered(schema: dict[str, Any]) -> dict[str, Any]:
    """Types checked, and with `enum` left only the values of these types."""
    types = schema.get("type")
    listed = [types] if isinstance(types, str) else types
    if listed is not None:
        if not isinstance(listed, list) or any(one not in _TYPES for one in listed):
            raise SchemaError("a type is not one of JSON's")
        if not listed:
            raise Unsatisfiable("its types exclude each other")
    values = schema.get("enum")
    if values is not None:
        if not isinstance(values, list):
            raise SchemaError("an enum is not a list")
        if listed is not None:
            values = [value for value in values if any(_is_a(value, one) for one in listed)]
        if not values:
            raise Unsatisfiable("its enum allows nothing")
        # A value is valid or not whatever else the schema says of it; only its type is looked at.
        schema = {key: value for key, value in schema.items() if key in ("anyOf", "oneOf")} | {"enum": values}
    return schema


def _is_a(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    classes: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "null": type(None),
    }
    return isinstance(value, classes[kind])


def _merged(one: Mapping[str, Any], other: Mapping[str, Any], cost: SchemaCost) -> dict[str, Any]:
    """What is valid under both."""
    found = dict(one)
    for key, value in other.items():
        old: Any = found.get(key)
        if key not in found or old == value:
            found[key] = value
        elif key == "properties":
            both = {name: {"allOf": [old[name], value[name]]} for name in old if name in value}
            found[key] = {**old, **value, **both}
        elif key == "required":
            found[key] = list(dict.fromkeys([*old, *value]))
        elif key == "type":
            found[key] = _common_types(old, value)
        elif key == "enum":
            found[key] = [item for item in old if item in value]
        elif key in _LARGER and not isinstance(value, bool):
            found[key] = max(old, value)
        elif key in _SMALLER and not isinstance(value, bool):
            found[key] = min(old, value)
        elif key == "additionalProperties" and (old is False or value is False):
            found[key] = False
        elif key in ("anyOf", "oneOf"):
            # One union of all pairs.
            cost.spend("schema", len(old) * len(value))
            found[key] = [{"allOf": [a, b]} for a in old for b in value]
        elif key in ("items", "propertyNames", "additionalProperties"):
            found[key] = {"allOf": [old, value]}
        else:
            raise SchemaError(f"its parts disagree about {key}")
    return found


def _common_types(one: Any, other: Any) -> list[str]:
    first = [one] if isinstance(one, str) else list(one)
    second = [other] if isinstance(other, str) else list(other)
    common = [kind for kind in first if kind in second]
    # Every integer is a number.
    if "integer" not in common and ("integer" in first + second) and ("number" in first + second):
        both = ("integer" in first and "number" in second) or ("integer" in second and "number" in first)
        common += ["integer"] if both else []
    return common
