"""Spelling of llama.cpp's grammar language (GBNF), and the rules of JSON that every grammar here shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = [
    "JSON_RULES",
    "MAX_REPEATS",
    "WS",
    "alternatives",
    "characters",
    "grammar_text",
    "literal",
    "repeated",
]

MAX_REPEATS = 1000
"""llama.cpp refuses a repetition of more than 2,000 and takes ever longer with the number."""

WS = "ws"
"""Between two parts of a JSON document: one space or none, so that no model can write blanks for ever."""

# Digits are bounded so that every number is one that any JSON reader keeps, and surrogates left out because half
# of one is no character. Control characters may not stand in a JSON string as they are.
JSON_RULES: Mapping[str, str] = {
    "ws": '" "?',
    "json-hex": "[0-9a-fA-F]",
    "json-char": (
        r'[^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" '
        r"([0-9a-cA-CeEfF] json-hex | [dD] [0-7]) json-hex json-hex)"
    ),
    "json-string": r'"\"" json-char* "\""',
    "json-integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "json-number": 'json-integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9] [0-9]?)?',
    "json-boolean": '"true" | "false"',
    "json-null": '"null"',
    "json-pair": 'json-string ws ":" ws json-value',
    "json-object": '"{" ws (json-pair (ws "," ws json-pair)*)? ws "}"',
    "json-array": '"[" ws (json-value (ws "," ws json-value)*)? ws "]"',
    "json-value": ("json-object | json-array | json-string | json-number | json-boolean | json-null"),
}


def grammar_text(root: str, rules: Mapping[str, str]) -> str:
    """A whole grammar: `root` is the expression that an answer must match."""
    return (
        "\n".join(f"{name} ::= {body}" for name, body in {"root": root, **rules, **JSON_RULES}.items()) + "\n"
    )


def literal(text: str) -> str:
    """The expression that matches exactly `text`."""
    return '"' + "".join(_escaped(ord(c)) for c in text) + '"'


def alternatives(expressions: Iterable[str]) -> str:
    """Any of the expressions, as one that can stand anywhere."""
    distinct = list(dict.fromkeys(expressions))
    return distinct[0] if len(distinct) == 1 else "(" + " | ".join(distinct) + ")"


def repeated(expression: str, least: int, most: int | None) -> str:
    """`expression`, which must be a single item, from `least` to `most` times.

    Above `MAX_REPEATS` an upper limit is lowered to it: what then matches is less than asked for, never more.
    """
    if (least, most) == (1, 1):
        return expression
    if most is None:
        return f"{expression}*" if least == 0 else f"{expression}{{{least},}}"
    if most == 0:
        return '""'
    return f"{expression}{{{least},{min(most, max(least, MAX_REPEATS))}}}"


def characters(ranges: Iterable[tuple[int, int]]) -> str:
    """The class of the code points in `ranges`, both ends included."""
    spans = (_escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}" for low, high in ranges)
    return f"[{''.join(spans)}]"


def _escaped(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in " _,:{}<>/.=+@#;"):
        return char
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
