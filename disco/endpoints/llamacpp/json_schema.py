"""JSON schemas in the form that llguidance receives.

llguidance keeps to a schema exactly, or refuses it. This module removes a schema's annotations. It adds limits that
keep a document readable and a small model from writing without end. It refuses, by the keyword's name, a keyword that
narrows what is valid in a way that llguidance does not know. Every change allows less than the schema does, never
more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

__all__ = ["MAX_INTEGER", "REMEDY", "SchemaError", "check_for_llama_server", "prepared_schema"]

MAX_INTEGER = 2**53 - 1
"""Integers and bounds lie within plus and minus this: JSON readers round larger integers."""

REMEDY = "make it simpler, say it in the prompt instead, or send this request to a server"

# Limits on one schema. llguidance limits its own work too, but it cannot be interrupted while it compiles.
_MAX_SUBSCHEMAS = 10_000
_MAX_CHARACTERS = 250_000
_MAX_OPTIONAL = 300
_MAX_DEPTH = 60
_MAX_STEPS = 10_000  # the sum of the digits of every `multipleOf`, read as whole numbers: 0.25 counts 25
_MAX_CONJUNCTION = (
    12  # patterns that one string may have to match at once: each one doubles llguidance's work
)

# Limits on a schema for llama-server. It keeps every way in which a text may go on, and looks at each for every token
# of the vocabulary: 8 ms of a core for each way and token with 49,152 tokens, and all other answers wait for it.
_MAX_WAYS = 250
_MAX_EMPTY_PARTS = 20  # of a pattern; with 100 (`a?` a hundred times) one token takes more than 30 s
_MAX_PATTERN = 10_000  # characters that a pattern matches one by one, repetitions in groups counted

_MAPS = frozenset({"properties", "patternProperties"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset({"items", "additionalItems", "additionalProperties"})
_PLAIN = frozenset(
    {"type", "enum", "const", "required", "minProperties", "maxProperties", "minItems", "maxItems"}
    | {"minLength", "maxLength", "pattern", "format", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_COMBINERS = frozenset({"anyOf", "oneOf", "allOf", "$ref"})
_OBJECT = frozenset(
    {"properties", "required", "additionalProperties", "minProperties", "maxProperties", "patternProperties"}
)
# Keywords that narrow what is valid and that llguidance does not know, with the values that have no effect.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("not", "if", "then", "else", "contains"), ()),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), ()),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), (True, {})),
    "uniqueItems": (False,),
}
_TYPE_OF = {
    **dict.fromkeys(_OBJECT, "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "additionalItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), "number"),
}
# llguidance's formats, and what it must check besides: no 29 February, no 61st second, no mail address without a dot.
_DAY = r"[1-9]\d{3}-(?:(?:0[13-9]|1[0-2])-\d\d|02-(?:[01]\d|2[0-8]))"
_SECONDS = r":[0-5]\d(?:\.\d{1,6})?(?:[zZ]|[+-]\d\d:\d\d)"
_FORMATS: Mapping[str, str | None] = {
    **dict.fromkeys(("duration", "hostname", "ipv4", "ipv6", "uri", "uuid")),
    "date": f"^{_DAY}$",
    "time": rf"^\d\d:\d\d{_SECONDS}$",
    "date-time": rf"^{_DAY}T\d\d:\d\d{_SECONDS}$",
    "email": r"\.[A-Za-z]{2,24}$",
}


class SchemaError(ValueError):
    """The schema cannot be kept to; the message says why, in a clause, and quotes only keywords."""


def prepared_schema(
    schema: Mapping[str, Any], *, only: str | None = None, check: Callable[[], None] | None = None
) -> str:
    """Return the schema as JSON text for llguidance.

    Args:
        schema: a JSON schema; `$ref` may point to anywhere inside it.
        only: a type that the value must also have.
        check: called throughout the work; an exception that it raises stops the work and passes through.

    Raises:
        SchemaError: the schema is malformed, too large, or has a keyword that cannot be kept to.
    """
    reader = _Reader(schema, check or (lambda: None))
    found = reader.document()
    if only is not None:
        kinds = found.get("type", only)
        if only not in ([kinds] if isinstance(kinds, str) else kinds):
            raise SchemaError(f"its types exclude {only}, which is required here")
        found["type"] = only
    options = {"whitespace_pattern": "[ ]", "coerce_one_of": True}
    try:
        text = json.dumps({"x-guidance": options, **found}, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise SchemaError("it holds a value that JSON cannot represent") from exc
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None
    if len(text) > _MAX_CHARACTERS:
        raise _too_much(len(text), _MAX_CHARACTERS, "characters")
    return text


def _too_much(has: int, most: int, what: str) -> SchemaError:
    return SchemaError(f"it has {has:,} or more {what}, and at most {most:,} are kept to; {REMEDY}")


def _part(document: Mapping[str, Any], ref: str) -> Any:
    """Return the part of a schema that a `$ref` ("#/...") points to.

    Raises:
        SchemaError: there is none.
    """
    found: Any = document
    for step in unquote(ref[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and len(key) < 10 and int(key) < len(found):
            found = found[int(key)]
        else:
            raise SchemaError("a $ref points to a part that does not exist")
    return found


class _Reader:
    """Mutable: all attributes but `_document` and `_check`."""

    def __init__(self, document: Mapping[str, Any], check: Callable[[], None]) -> None:
        self._document = document
        self._check = check
        self._subschemas = self._optional = self._characters = self._steps = self._conjunctions = 0
        self._patterns: set[str] = set()
        self._names: dict[str, str] = {}  # of the definitions, by the `$ref` that points to them
        self._unread: list[str] = []
        self._closable: list[dict[str, Any]] = []
        self._combines = False

    def document(self) -> dict[str, Any]:
        """Return the whole schema, with the definitions it uses."""
        found: dict[str, Any] = self._read(self._document, 0)
        definitions: dict[str, Any] = {}
        while self._unread:
            ref = self._unread.pop()
            definitions[self._names[ref]] = self._read(self._target(ref), 1)
        if definitions:
            found["$defs"] = definitions
        if min(self._conjunctions, len(self._patterns)) > _MAX_CONJUNCTION:
            raise _too_much(
                len(self._patterns), _MAX_CONJUNCTION, "patterns and formats where parts are combined"
            )
        # A model should not invent properties. Where parts are combined, a part does not know the others' properties.
        if not self._combines:
            for one in self._closable:
                one["additionalProperties"] = False
        return found

    def _read(self, schema: Any, depth: int) -> Any:
        self._check()
        self._subschemas += 1
        if self._subschemas > _MAX_SUBSCHEMAS:
            raise _too_much(self._subschemas, _MAX_SUBSCHEMAS, "subschemas")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise SchemaError("a schema is not an object")
        if depth > _MAX_DEPTH:
            raise SchemaError("it is nested too deeply")
        found: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in _REFUSED and value not in _REFUSED[keyword]:
                raise SchemaError(f"{keyword} is not supported")
            if keyword == "$id" and depth and not str(value).startswith("#"):
                raise SchemaError("$id inside a schema is not supported")
            if keyword in _MAPS and isinstance(value, Mapping):
                found[keyword] = {name: self._read(one, depth + 1) for name, one in value.items()}
            elif (keyword in _LISTS or keyword == "items") and isinstance(value, list):
                found[keyword] = [self._read(one, depth + 1) for one in value]
            elif keyword in _SINGLE:
                found[keyword] = self._read(value, depth + 1)
            elif keyword == "$ref":
                found[keyword] = self._reference(value)
            elif keyword in _PLAIN:
                found[keyword] = value
            elif keyword in _MAPS | _LISTS:
                raise SchemaError(f"{keyword} is malformed")
        if "propertyNames" in schema:
            self._name_properties(found, self._read(schema["propertyNames"], depth + 1))
        return self._limited(found)

    # References

    def _reference(self, ref: Any) -> str:
        if ref == "#":
            return "#"
        if not isinstance(ref, str) or not ref.startswith("#/"):
            raise SchemaError("a $ref points outside the schema, or to an anchor")
        seen, target = {ref}, self._target(ref)
        while isinstance(target, Mapping) and isinstance(further := target.get("$ref"), str):
            if further in seen:
                raise SchemaError("a $ref refers to itself")
            seen.add(further)
            target = self._target(further) if further.startswith("#/") else None
        if ref not in self._names:
            self._names[ref] = f"d{len(self._names)}"
            self._unread.append(ref)
        return f"#/$defs/{self._names[ref]}"

    def _target(self, ref: str) -> Any:
        return _part(self._document, ref)

    # One schema, whose parts are already read

    def _name_properties(self, found: dict[str, Any], names: Any) -> None:
        """Rewrite `propertyNames`: listed names become properties, a pattern becomes a pattern property."""
        if names is True:
            return
        if isinstance(names, dict) and "$ref" in names and len(names) == 1:
            ref = next(ref for ref, name in self._names.items() if names["$ref"] == f"#/$defs/{name}")
            names = self._read(self._target(ref), 1)
        others = found.get("additionalProperties", True)
        said = names.keys() - {"type"} if isinstance(names, dict) else {"propertyNames"}
        if "properties" not in found and "patternProperties" not in found:
            if said == {"pattern"}:
                found["patternProperties"] = {names["pattern"]: others}
                found["additionalProperties"] = False
                return
            if said in ({"enum"}, {"const"}):
                listed = names.get("enum", [names.get("const")])
                found["properties"] = {name: others for name in listed if isinstance(name, str)}
                found["additionalProperties"] = False
                return
        if said:
            raise SchemaError("propertyNames other than an enum or a pattern alone is not supported")

    def _limited(self, found: dict[str, Any]) -> dict[str, Any]:
        combined = found.keys() & _COMBINERS
        if combined == {"allOf"} and found.keys() == combined and len(found["allOf"]) == 1:
            part = found["allOf"][0]
            return part if isinstance(part, dict) else found
        if "allOf" in found or len(combined) > 1 or (combined and found.keys() & _OBJECT):
            self._combines = True
        self._conjunctions += len(found.get("allOf", ())) + bool(combined and len(found) > 1)
        self._patterns |= {str(found[keyword]) for keyword in ("pattern", "format") if keyword in found}
        if "type" not in found and not found.keys() & (_COMBINERS | {"enum", "const"}):
            kinds = [_TYPE_OF[keyword] for keyword in found if keyword in _TYPE_OF]
            found |= {"type": kinds[0]} if kinds else {}
        self._limit_values(found)
        self._limit_numbers(found)
        self._limit_properties(found)
        form = found.pop("format", None)
        if isinstance(form, str) and form in _FORMATS:
            found["format"] = form
            if (narrower := _FORMATS[form]) is not None:
                found["allOf"] = [*found.get("allOf", ()), {"pattern": narrower}]
        return found

    def _limit_values(self, found: dict[str, Any]) -> None:
        for keyword in ("enum", "const"):
            values = [found[keyword]] if keyword in found else []
            while values:
                self._check()
                value = values.pop()
                if isinstance(value, list | Mapping):
                    values += value.values() if isinstance(value, Mapping) else value
                elif isinstance(value, str):
                    self._characters += len(value)
                elif isinstance(value, int) and abs(value) > MAX_INTEGER:
                    raise SchemaError(f"{keyword} has an integer beyond 2^53 - 1")
                self._characters += 1
                if self._characters > _MAX_CHARACTERS:
                    raise _too_much(self._characters, _MAX_CHARACTERS, f"characters in {keyword}")

    def _limit_numbers(self, found: dict[str, Any]) -> None:
        for keyword, sign in (
            ("minimum", -1),
            ("exclusiveMinimum", -1),
            ("maximum", 1),
            ("exclusiveMaximum", 1),
        ):
            bound = found.get(keyword)
            if isinstance(bound, bool) or not isinstance(bound, int | float) or abs(bound) <= MAX_INTEGER:
                continue
            if bound * sign < 0:
                raise SchemaError(
                    f"{keyword} is beyond 2^53 - 1; leave it out, or send this request to a server"
                )
            found[keyword] = sign * MAX_INTEGER
        if isinstance(step := found.get("multipleOf"), int | float):
            digits = Decimal(str(step)).normalize().as_tuple().digits
            self._steps += int("".join(map(str, digits)))
            if self._steps > _MAX_STEPS:
                raise _too_much(self._steps, _MAX_STEPS, "steps of multipleOf")
        kinds = found.get("type", ())
        if "integer" in ([kinds] if isinstance(kinds, str) else kinds):
            found.setdefault("minimum", -MAX_INTEGER)
            found.setdefault("maximum", MAX_INTEGER)

    def _limit_properties(self, found: dict[str, Any]) -> None:
        properties, required = found.get("properties", {}), found.get("required", ())
        if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
            raise SchemaError("required is malformed")
        least = found.get("minProperties", 0)
        if isinstance(least, int) and least > max(1, len(required)):
            raise SchemaError("minProperties above 1 is not supported: the same name could be written twice")
        optional = len(properties.keys() - set(required))
        bounded = least or "maxProperties" in found
        # With a bound, every optional property needs a rule that names all the others.
        self._optional += max(optional, optional * optional // 30) if bounded else optional
        if self._optional > _MAX_OPTIONAL:
            raise _too_much(self._optional, _MAX_OPTIONAL, "optional properties")
        listed = "properties" in found and "patternProperties" not in found
        if listed and "additionalProperties" not in found and set(required) <= properties.keys():
            self._closable.append(found)


# llama-server


def check_for_llama_server(schema: Mapping[str, Any]) -> None:
    """Refuse a schema that llama-server, which has no such limit, would take too long to keep to.

    Raises:
        SchemaError: the schema is too large.
    """
    try:
        characters = len(json.dumps(schema, ensure_ascii=False))
        if characters > _MAX_CHARACTERS:
            raise _too_much(characters, _MAX_CHARACTERS, "characters")
        _Ways(schema).of(schema)
    except (TypeError, ValueError) as exc:
        if isinstance(exc, SchemaError):
            raise
        raise SchemaError("it holds a value that JSON cannot represent") from exc
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


class _Ways:
    """Counts the ways in which a text may go on at the same time, at most. Mutable: `_known`, `_read`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._known: dict[str, int] = {}  # by `$ref`
        self._read = 0

    def of(self, schema: Any, depth: int = 0) -> int:
        """Return how many there are in a part of the schema.

        Raises:
            SchemaError: more than are kept to.
        """
        self._read += 1
        if self._read > _MAX_SUBSCHEMAS:
            raise _too_much(self._read, _MAX_SUBSCHEMAS, "subschemas")
        if depth > _MAX_DEPTH:
            raise SchemaError("it is nested too deeply")
        if not isinstance(schema, Mapping):
            return 1
        ways = self._own(schema)
        for keyword, value in schema.items():
            if keyword in _MAPS and isinstance(value, Mapping):
                # One property is written behind the other, so the ways of one are over where those of the next begin.
                ways = max(ways, *(self.of(one, depth + 1) for one in value.values()), 1)
            elif keyword in _SINGLE or keyword in ("items", "prefixItems"):
                parts = value if isinstance(value, list) else [value]
                ways = max(ways, *(self.of(one, depth + 1) for one in parts), 1)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := schema.get(keyword), list):
                ways += sum(self.of(one, depth + 1) for one in branches)
        if isinstance(ref := schema.get("$ref"), str):
            ways += self._of_target(ref, depth)
        if ways > _MAX_WAYS:
            raise _too_much(ways, _MAX_WAYS, "values, names or parts to choose between")
        return ways

    def _own(self, schema: Mapping[str, Any]) -> int:
        listed, kinds = schema.get("enum"), schema.get("type")
        ways = max(len(one) if isinstance(one, list) else 1 for one in (listed, kinds))
        properties, required = schema.get("properties"), schema.get("required")
        if isinstance(properties, Mapping):
            names = (
                {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            )
            ways = max(ways, len(properties.keys() - names) + 1)
        if isinstance(pattern := schema.get("pattern"), str):
            ways = max(ways, _ways_of_pattern(pattern))
        return ways

    def _of_target(self, ref: str, depth: int) -> int:
        if ref not in self._known:
            self._known[ref] = 1  # where it refers to itself
            try:
                target = _part(self._document, ref) if ref.startswith("#") else True
            except SchemaError:
                target = True  # llama-server says what is wrong with it
            self._known[ref] = self.of(target, depth + 1)
        return self._known[ref]


_PARTS = re.compile(
    r"(?P<atom>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^()|*+?{}])|(?P<open>\()|(?P<close>\))|(?P<other>\|)"
    r"|(?P<times>[*+?]|\{(?P<least>\d{0,9})(?P<range>,(?P<most>\d{0,9}))?\})",
    re.DOTALL,
)


def _ways_of_pattern(pattern: str) -> int:
    """Return how many alternatives a pattern has.

    Raises:
        SchemaError: it is too long once its repetitions are written out, or too much of it may be left out.
    """
    # Of each group that is open: its characters, and its parts that may be empty; and the same of its last part.
    groups, last = [(0, 0)], (0, 0)
    alternatives = 1
    for part in _PARTS.finditer(pattern):
        chars, empty = groups[-1]
        if part["open"]:
            groups.append((0, 0))
        elif part["close"]:
            if len(groups) > 1:
                last = groups.pop()
                groups[-1] = (groups[-1][0] + last[0], groups[-1][1] + last[1])
        elif part["other"]:
            alternatives += 1
        elif part["atom"]:
            last = (1, 0)
            groups[-1] = (chars + 1, empty)
        else:
            least, most = (int(part[name] or 0) for name in ("least", "most"))
            counted = part["times"].startswith("{")
            times = max(least, most, 1) if counted else 1
            may_be_empty = (least == 0) if counted else part["times"] != "+"
            # llama.cpp counts the repetitions of a single character, and writes those of a group out.
            written = times if last != (1, 0) else 1
            more = last[0] * (written - 1), last[1] * (times - 1) + may_be_empty
            last = last[0] + more[0], last[1] + more[1]
            groups[-1] = chars + more[0], empty + more[1]
        if groups[-1][0] > _MAX_PATTERN:
            raise _too_much(groups[-1][0], _MAX_PATTERN, "characters in a pattern")
        if groups[-1][1] > _MAX_EMPTY_PARTS:
            raise _too_much(groups[-1][1], _MAX_EMPTY_PARTS, "parts in a pattern that may be left out")
    return alternatives
