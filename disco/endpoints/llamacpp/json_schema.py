"""JSON schemas as grammars: what follows the grammar is valid JSON, and valid under the schema.

A grammar may allow less than its schema does (properties in the order they are listed, no unlisted ones beside listed
ones, whole numbers of at most 16 digits), never more. What it cannot say is refused with the keyword's name,
rather than left out. Unknown keywords and formats are annotations, as the specification says.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.gbnf import MAX_REPEATS, alternatives, grammar_text, literal, repeated
from disco.endpoints.llamacpp.json_cost import MAX_DIGITS, SchemaCost
from disco.endpoints.llamacpp.json_numbers import integers, numbers
from disco.endpoints.llamacpp.json_patterns import PatternError, pattern_expression
from disco.endpoints.llamacpp.json_simple import SchemaError, Unsatisfiable, simplified, types_of

__all__ = ["SchemaError", "schema_grammar", "schema_rules"]

_TIME = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? '
    '("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
# No month has a 29th to 31st that some February or April lacks: an impossible date is worse than a missing one.
_DATE = '[12] [0-9] [0-9] [0-9] "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
_BYTE = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9])'
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": ' "-" '.join(f"[0-9a-f]{{{n}}}" for n in (8, 4, 4, 4, 12)),
    "email": '[a-z0-9] [a-z0-9._-]{0,30} "@" ([a-z0-9] [a-z0-9-]{0,30} "."){1,3} [a-z]{2,8}',
    "ipv4": ' "." '.join([_BYTE] * 4),
}
_LARGEST = 10**MAX_DIGITS - 1
_PRIMITIVES = {"boolean": "json-boolean", "null": "json-null"}


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """The whole grammar of a document that is valid under `schema`.

    Raises:
        SchemaError: the schema is malformed, or says something that a grammar cannot.
    """
    return grammar_text(*schema_rules(schema, "r"))


def schema_rules(
    schema: Mapping[str, Any],
    prefix: str,
    *,
    only: str | None = None,
    check: Callable[[], None] | None = None,
) -> tuple[str, dict[str, str]]:
    """The expression for a value that is valid under `schema`, and the rules it needs beside `JSON_RULES`.

    Args:
        schema: a JSON schema; `$ref` may point to anywhere inside it.
        prefix: begins the rules' names, so that those of several schemas can stand in one grammar.
        only: a type that the value must have besides.
        check: called all along; what it raises stops the translation and passes through.

    Raises:
        SchemaError: see `schema_grammar`.
    """
    converter = _Converter(schema, prefix, SchemaCost() if check is None else SchemaCost(check))
    wanted = schema if only is None else {"allOf": [schema], "type": only}
    try:
        return converter.value(wanted), converter.rules
    except RecursionError:
        raise SchemaError("it is nested too deeply") from None


class _Converter:
    """Mutable: `rules`, and `_named`, the rule of each `$ref` so far."""

    def __init__(self, document: Mapping[str, Any], prefix: str, cost: SchemaCost) -> None:
        self.rules: dict[str, str] = {}
        self._document = document
        self._prefix = prefix
        self._cost = cost
        self._named: dict[str, str] = {}

    def _rule(self, body: str, name: str | None = None) -> str:
        name = name or self._new_name()
        self.rules[name] = body
        return name

    def _new_name(self) -> str:
        name = f"{self._prefix}{len(self.rules)}"
        self.rules[name] = ""  # the name is taken; its body follows
        return name

    def value(self, schema: Any) -> str:
        """The expression for any value that is valid under `schema`."""
        if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
            ref = schema["$ref"]
            if simplified(schema, {}, self._cost) == {}:  # nothing but notes beside it
                return self._referenced(ref)
        schema = simplified(schema, self._document, self._cost)
        for union in ("anyOf", "oneOf"):
            if union in schema:
                return self._union(schema, union)
        if "enum" in schema:
            self._cost.spend("enum", len(schema["enum"]))
            return alternatives(self._literal(one) for one in schema["enum"])
        types = types_of(schema)
        if types is None:
            return "json-value"
        return alternatives(self._typed(one, schema) for one in types)

    def _literal(self, value: Any) -> str:
        text = _compact(value)
        self._cost.spend("text", len(text))
        return literal(text)

    def _referenced(self, ref: str) -> str:
        if ref not in self._named:
            name = self._named[ref] = self._new_name()
            body = self.value(simplified({"$ref": ref}, self._document, self._cost))
            if body == name:
                raise SchemaError(f"$ref {ref} refers to itself")
            self._rule(body, name)
        return self._named[ref]

    def _union(self, schema: Mapping[str, Any], union: str) -> str:
        rest = {key: value for key, value in schema.items() if key != union}
        found = []
        self._cost.spend(union, len(schema[union]))
        for one in schema[union]:
            try:
                found.append(self.value({"allOf": [one, rest]} if rest else one))
            except Unsatisfiable:
                continue  # the others may do
        if not found:
            raise Unsatisfiable(f"no alternative of {union} is possible")
        return alternatives(found)

    def _typed(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        if kind == "string":
            return self._string(schema)
        if kind in ("integer", "number"):
            return self._number(kind, schema)
        return _PRIMITIVES[kind]

    # ------------------------------------------------------------------ objects and arrays

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties: Mapping[str, Any] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        # Where properties are listed, be it none at all, only those are written.
        others = schema.get("additionalProperties", True)
        if not properties and others is not False and not (others is True and "properties" in schema):
            return self._map(schema, others, required, least, most)
        if unlisted := sorted(required - set(properties)):
            if others is False:
                raise Unsatisfiable(f"it requires {unlisted[0]!r}, which it does not allow")
            properties = {**properties, **dict.fromkeys(unlisted, others)}
        if least > len(required) or (most is not None and most < len(properties)):
            raise SchemaError("minProperties and maxProperties beside properties are not supported")
        self._cost.spend("optional", len(set(properties) - required))
        possible: dict[str, str] = {}
        for name, one in properties.items():
            try:
                possible[name] = f'{self._literal(name)} ws ":" ws {self.value(one)}'
            except Unsatisfiable:
                if name in required:
                    raise
        # Two chains over the properties in their order: with nothing written yet, and with a comma due.
        first, behind = '""', '""'
        for name, body in reversed(possible.items()):
            rest = self._rule(behind) if behind != '""' else ""
            pair = self._rule(body)
            if name in required:
                first, behind = f"{pair} {rest}", f'ws "," ws {pair} {rest}'
            else:
                start = f"{pair} {rest}".strip()
                first = f"({start} | {first})" if first != '""' else f"({start})?"
                behind = f'(ws "," ws {pair})? {rest}'
            first, behind = first.strip(), behind.strip()
        return self._rule(f'"{{" ws {first} ws "}}"')

    def _map(
        self, schema: Mapping[str, Any], others: Any, required: set[str], least: int, most: int | None
    ) -> str:
        if required:
            return self._object({**schema, "properties": dict.fromkeys(sorted(required), others)})
        if least > 1:
            raise SchemaError("minProperties above 1 is not supported: names could repeat")
        names = schema.get("propertyNames")
        if names is None and others is True and (least, most) == (0, None):
            return "json-object"
        key = "json-string" if names is None else self.value({"allOf": [{"type": "string"}, names]})
        pair = f'{key} ws ":" ws {self.value(others)}'
        return self._rule(self._listed("{", self._rule(pair), "}", least, most))

    def _array(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        items, fixed = schema.get("items", True), schema.get("prefixItems")
        if isinstance(items, Sequence):  # as drafts before 2020 wrote it
            items, fixed = schema.get("additionalItems", True), items
        if fixed:
            if least > len(fixed) or (most is not None and most < len(fixed)):
                raise SchemaError("minItems and maxItems that differ from the length of prefixItems")
            inside = ' ws "," ws '.join(self.value(one) for one in fixed)
            return self._rule(f'"[" ws {inside} ws "]"')
        if items is True and (least, most) == (0, None):
            return "json-array"
        if items is False or most == 0:
            return self._rule('"[" ws "]"')
        return self._rule(self._listed("[", self._rule(self.value(items)), "]", least, most))

    def _listed(self, opened: str, item: str, closed: str, least: int, most: int | None) -> str:
        if least > MAX_REPEATS:
            raise SchemaError(f"more than {MAX_REPEATS} items cannot be asked for")
        if most is not None and most < max(least, 0):
            raise Unsatisfiable("its upper limit is below its lower one")
        if most == 0:
            return f'"{opened}" ws "{closed}"'
        self._cost.spend("repeats", max(least, min(most or 0, MAX_REPEATS)))
        more = repeated(f'(ws "," ws {item})', max(least - 1, 0), None if most is None else most - 1)
        inside = f"{item} {more}" if least else f"({item} {more})?"
        return f'"{opened}" ws {inside} ws "{closed}"'

    # ------------------------------------------------------------------ strings and numbers

    def _string(self, schema: Mapping[str, Any]) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        pattern = schema.get("pattern")
        if pattern is not None:
            if least or most is not None:
                raise SchemaError("pattern together with minLength or maxLength is not supported")
            try:
                return self._rule(pattern_expression(pattern, self._cost))
            except PatternError as exc:
                raise SchemaError(f"its pattern is not supported: {exc}") from None
        if least or most is not None:
            if least > MAX_REPEATS:
                raise SchemaError(f"minLength above {MAX_REPEATS} is not supported")
            if most is not None and most < least:
                raise Unsatisfiable("maxLength is below minLength")
            self._cost.spend("repeats", max(least, min(most or 0, MAX_REPEATS)))
            return self._rule(f'"\\"" {repeated("json-char", least, most)} "\\""')
        form = _FORMATS.get(schema.get("format", ""))
        return "json-string" if form is None else self._rule(f'"\\"" {form} "\\""')

    def _number(self, kind: str, schema: Mapping[str, Any]) -> str:
        step = schema.get("multipleOf", 1 if kind == "integer" else None)
        if step not in (None, 1):
            raise SchemaError("multipleOf is not supported")
        if step == 1:
            kind = "integer"
        low, above = _bound(schema, "minimum", "exclusiveMinimum", max)
        high, below = _bound(schema, "maximum", "exclusiveMaximum", min)
        low, above = _within(low, above, -1, "minimum")
        high, below = _within(high, below, 1, "maximum")
        if low is None and high is None:
            return f"json-{kind}"
        if kind == "integer":
            least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
            most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
            body = integers(least, most)
        else:
            if any(one is not None and one != int(one) for one in (low, high)):
                raise SchemaError("bounds of numbers that are no whole numbers are not supported")
            body = numbers(
                None if low is None else int(low),
                None if high is None else int(high),
                above=above,
                below=below,
            )
        if body is None:
            raise Unsatisfiable("no number lies between its bounds")
        return self._rule(body)


def _bound(
    schema: Mapping[str, Any], inclusive: str, exclusive: str, stricter: Any
) -> tuple[float | None, bool]:
    """A bound, and whether it is itself excluded."""
    bound, other = schema.get(inclusive), schema.get(exclusive)
    if isinstance(other, bool):  # draft 4
        return bound, other and bound is not None
    if other is None or bound is None:
        return (other, True) if bound is None and other is not None else (bound, False)
    return (other, True) if stricter(bound, other) == other else (bound, False)


def _within(
    bound: float | None,
    excluded: bool,  # noqa: FBT001
    sign: int,
    keyword: str,
) -> tuple[float | None, bool]:
    """The bound, drawn in where it has more digits than anybody writes."""
    if bound is None or -_LARGEST <= bound <= _LARGEST:
        return bound, excluded
    if not bound * sign > 0:
        raise SchemaError(
            f"{keyword} has more than {MAX_DIGITS} digits; leave it out, or send this request to a server"
        )
    return sign * _LARGEST, False


def _compact(value: Any) -> str:
    """A JSON value as models mostly write it."""
    text = json.dumps(value, ensure_ascii=False)
    # Half characters, which JSON can name but no text can hold.
    return text if text.isascii() or text.encode("utf-8", "ignore").decode() == text else json.dumps(value)
