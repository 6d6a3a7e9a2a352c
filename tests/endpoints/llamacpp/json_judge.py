"""Whether a document is valid under a JSON schema: the specification once more, keyword by keyword, for tests."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from contextlib import suppress
from fractions import Fraction

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
FORMATS = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: datetime.time.fromisoformat(text.replace("z", "Z")),
    "date-time": lambda text: datetime.datetime.fromisoformat(text.upper()),
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "email": lambda text: re.fullmatch(r"\S+@\S+\.[A-Za-z]+", text)[0],
}


def parses(text):
    with suppress(ValueError):
        json.loads(text)
        return True
    return False


def is_a(value, kind):
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("number", "integer"):
        return number and (kind == "number" or value == int(value))
    return isinstance(value, TYPES[kind])


def valid(value, schema, root=None):
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    return all(CHECKS[keyword](value, schema, root) for keyword in schema if keyword in CHECKS)


def same(one, other):
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def target(ref, root):
    for step in ref.split("/")[1:]:
        root = root[step]
    return root


def parts(keyword, count):
    return lambda v, s, root: count(sum(valid(v, one, root) for one in s[keyword]), len(s[keyword]))


def of(kind, check):
    """A keyword that says something of one type only."""
    return lambda v, s, root: not is_a(v, kind) or check(v, s, root)


def form_kept(value, schema):
    with suppress(ValueError, TypeError):
        FORMATS.get(schema["format"], str)(value)
        return True
    return False


def unlisted(value, schema):
    patterns = schema.get("patternProperties", {})
    names = [name for name in value if name not in schema.get("properties", {})]
    return [name for name in names if not any(re.search(pattern, name) for pattern in patterns)]


def tail(value, schema):
    return value[len(schema.get("prefixItems", ())) :]


CHECKS = {
    "type": lambda v, s, _: any(
        is_a(v, k) for k in ([s["type"]] if isinstance(s["type"], str) else s["type"])
    ),
    "enum": lambda v, s, _: any(same(v, one) for one in s["enum"]),
    "const": lambda v, s, _: same(v, s["const"]),
    "anyOf": parts("anyOf", lambda n, _: n >= 1),
    "oneOf": parts("oneOf", lambda n, _: n == 1),
    "allOf": parts("allOf", lambda n, of_all: n == of_all),
    "$ref": lambda v, s, root: valid(v, target(s["$ref"], root), root),
    "required": of("object", lambda v, s, _: v.keys() >= set(s["required"])),
    "properties": of(
        "object", lambda v, s, r: all(valid(v[n], one, r) for n, one in s["properties"].items() if n in v)
    ),
    "patternProperties": of(
        "object",
        lambda v, s, r: all(
            valid(v[n], one, r) for p, one in s["patternProperties"].items() for n in v if re.search(p, n)
        ),
    ),
    "additionalProperties": of(
        "object", lambda v, s, r: all(valid(v[n], s["additionalProperties"], r) for n in unlisted(v, s))
    ),
    "propertyNames": of("object", lambda v, s, r: all(valid(n, s["propertyNames"], r) for n in v)),
    "minProperties": of("object", lambda v, s, _: len(v) >= s["minProperties"]),
    "prefixItems": of(
        "array", lambda v, s, r: all(valid(x, y, r) for x, y in zip(v, s["prefixItems"], strict=False))
    ),
    "items": of("array", lambda v, s, r: all(valid(x, s["items"], r) for x in tail(v, s))),
    "minItems": of("array", lambda v, s, _: len(v) >= s["minItems"]),
    "maxItems": of("array", lambda v, s, _: len(v) <= s["maxItems"]),
    "minLength": of("string", lambda v, s, _: len(v) >= s["minLength"]),
    "maxLength": of("string", lambda v, s, _: len(v) <= s["maxLength"]),
    "pattern": of("string", lambda v, s, _: re.search(s["pattern"], v)),
    "format": of("string", lambda v, s, _: form_kept(v, s)),
    "minimum": of("number", lambda v, s, _: v >= s["minimum"]),
    "exclusiveMinimum": of("number", lambda v, s, _: v > s["exclusiveMinimum"]),
    "maximum": of("number", lambda v, s, _: v <= s["maximum"]),
    "exclusiveMaximum": of("number", lambda v, s, _: v < s["exclusiveMaximum"]),
    "multipleOf": of("number", lambda v, s, _: Fraction(str(v)) % Fraction(str(s["multipleOf"])) == 0),
}
