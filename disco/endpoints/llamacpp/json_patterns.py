"""Regular expressions as JSON schemas use them, as grammar expressions of JSON strings."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from disco.endpoints.llamacpp.gbnf import MAX_REPEATS, alternatives, characters, literal, repeated
from disco.endpoints.llamacpp.json_cost import SchemaCost

__all__ = ["PatternError", "pattern_expression"]

_Ranges = list[tuple[int, int]]

_LAST = 0x10FFFF
# What may stand in a JSON string as it is: all but control characters, quote, backslash and half characters.
_PLAIN: _Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, _LAST)]
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
# As ECMAScript reads them, which JSON schema follows; of blanks, those that people type.
_CATEGORIES: dict[str, _Ranges] = {
    "CATEGORY_DIGIT": [(0x30, 0x39)],
    "CATEGORY_WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "CATEGORY_SPACE": [(0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20)],
}
_ALL_SPACE: _Ranges = [
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip


class PatternError(ValueError):
    """The pattern is no regular expression, or uses something that a grammar cannot say."""


def pattern_expression(pattern: str, cost: SchemaCost | None = None) -> str:
    """The JSON strings, quotes included, in which `pattern` is found.

    Raises:
        PatternError: see there.
        SchemaError: it costs more than `cost` allows.
    """
    cost = SchemaCost() if cost is None else cost
    cost.spend("pattern", len(pattern))
    parser = importlib.import_module("re._parser")  # the standard library's own syntax tree
    try:
        tree = list(parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as exc:
        raise PatternError("it is not a regular expression") from exc
    cost.forget("optionals")
    _count(tree, cost, 1)
    branches = tree[0][1][1] if len(tree) == 1 and _name(tree[0]) == "BRANCH" else [tree]
    inside = alternatives(_anchored(list(branch)) for branch in branches)
    return f'"\\"" {inside} "\\""'


def _count(nodes: Sequence[Any], cost: SchemaCost, times: int) -> None:
    """Count what llama.cpp must follow side by side: the branches, and the parts that may be left out.

    Args:
        nodes: a sequence of the syntax tree.
        cost: counts them.
        times: how often the sequence is repeated.
    """
    for node in nodes:
        name, value = _name(node), node[1]
        cost.spend("branches", 0)
        if name == "BRANCH":
            cost.spend("branches", len(value[1]))
            for branch in value[1]:
                _count(list(branch), cost, times)
        elif name == "SUBPATTERN":
            _count(list(value[3]), cost, times)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most = int(value[0]), min(int(value[1]), MAX_REPEATS)
            empty = value[2].getwidth()[0] == 0
            # What may be empty can be left out at each turn, anything else only at the end.
            cost.spend(
                "optionals", (times if least < most else 0) + (most * times if empty and most > 1 else 0)
            )
            cost.spend("repeats", max(least, most) if str(value[1]) != "MAXREPEAT" else least)
            _count(list(value[2]), cost, times if empty or least == most else 1)


def _name(node: Any) -> str:
    return str(node[0])


def _anchored(nodes: list[Any]) -> str:
    """A whole alternative; where it is not tied to the string's ends, anything may stand around it."""
    before = after = "json-char* "
    if nodes and _name(nodes[0]) == "AT" and str(nodes[0][1]) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        before, nodes = "", nodes[1:]
    if nodes and _name(nodes[-1]) == "AT" and str(nodes[-1][1]) in ("AT_END", "AT_END_STRING"):
        after, nodes = "", nodes[:-1]
    return f"({before}{_sequence(nodes)} {after.strip()})"


def _sequence(nodes: Sequence[Any]) -> str:
    return " ".join(_node(node) for node in nodes) or '""'


def _node(node: Any) -> str:
    name, value = _name(node), node[1]
    if name == "LITERAL":
        return literal(_in_json(value))
    if name == "NOT_LITERAL":
        return characters(_common(_PLAIN, _complement([(value, value)])))
    if name == "ANY":
        return characters(_PLAIN)
    if name == "IN":
        return _set(value)
    if name == "BRANCH":
        return alternatives(_sequence(list(branch)) for branch in value[1])
    if name == "SUBPATTERN" and not value[1] and not value[2]:
        return f"({_sequence(list(value[3]))})"
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, inner = int(value[0]), value[1], list(value[2])
        endless = str(most) == "MAXREPEAT"
        if least > MAX_REPEATS:
            raise PatternError(f"it asks for more than {MAX_REPEATS} repetitions")
        return repeated(f"({_sequence(inner)})", least, None if endless else int(most))
    raise PatternError(f"it uses {_WORDS.get(name, name.lower().replace('_', ' '))}")


_WORDS = {
    "ASSERT": "a look-ahead or look-behind",
    "ASSERT_NOT": "a look-ahead or look-behind",
    "AT": "^, $ or \\b inside",
    "GROUPREF": "a back-reference",
    "SUBPATTERN": "flags",
}


def _in_json(code: int) -> str:
    char = chr(code)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if code < 0x20 or 0xD800 <= code <= 0xDFFF:
        raise PatternError("it asks for a control character or half a character")
    return char


def _set(items: Iterable[Any]) -> str:
    wanted: _Ranges = []
    negated = False
    for item in items:
        name, value = _name(item), item[1]
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            wanted.append((value, value))
        elif name == "RANGE":
            wanted.append((value[0], value[1]))
        elif name == "CATEGORY":
            category = str(value).replace("NOT_", "")
            if category not in _CATEGORIES:
                raise PatternError("it uses a class of characters that is not known here")
            if "NOT_" in str(value):
                wanted += _complement(_ALL_SPACE if category == "CATEGORY_SPACE" else _CATEGORIES[category])
            else:
                wanted += _ALL_SPACE if negated and category == "CATEGORY_SPACE" else _CATEGORIES[category]
    if negated:
        wanted = _complement(wanted)
    found = [characters(plain)] if (plain := _common(_PLAIN, wanted)) else []
    if not negated:
        found += [
            literal(escape)
            for char, escape in _ESCAPES.items()
            if any(low <= ord(char) <= high for low, high in wanted)
        ]
    if not found:
        raise PatternError("it asks for a control character or half a character")
    return alternatives(found)


def _complement(ranges: _Ranges) -> _Ranges:
    out: _Ranges = []
    at = 0
    for low, high in sorted(ranges):
        if at < low:
            out.append((at, low - 1))
        at = max(at, high + 1)
    if at <= _LAST:
        out.append((at, _LAST))
    return out


def _common(one: _Ranges, other: _Ranges) -> _Ranges:
    pairs = (
        (max(low, a), min(high, b)) for low, high in one for a, b in other if max(low, a) <= min(high, b)
    )
    return sorted(set(pairs))
