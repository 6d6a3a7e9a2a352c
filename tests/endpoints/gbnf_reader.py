"""A second reading of llama.cpp's grammar language, to check grammars without a model: it matches and it writes."""

from __future__ import annotations

import re
from math import inf

__all__ = ["Grammar"]

_TOKEN = re.compile(
    r'\s*(?:("(?:\\.|[^"\\])*")|(\[(?:\\.|[^\]\\])*\])|([a-zA-Z0-9-]+)|(\{\d+(?:,\d*)?\})|([|()*+?]))'
)
_ESCAPE = re.compile(r"\\x(..)|\\u(....)|\\U(........)|\\(.)|(.)", re.DOTALL)
_LAST = 0x10FFFF


def _chars(text):
    """Code points of an escaped text, with None for an unescaped '-' or '^'."""
    out = []
    for x, u, wide, escaped, plain in _ESCAPE.findall(text):
        if x or u or wide:
            out.append(int(x or u or wide, 16))
        elif escaped:
            out.append(ord({"n": "\n", "r": "\r", "t": "\t"}.get(escaped, escaped)))
        else:
            out.append(plain)
    return out


class Grammar:
    """The rules of a grammar as nodes: ("lit", text), ("class", ranges), ("ref", name), ("seq" | "alt", nodes),
    ("rep", node, least, most)."""

    def __init__(self, text: str) -> None:
        self.rules = {}
        for line in text.strip().splitlines():
            name, body = line.split(" ::= ", 1)
            self._tokens = self._tokenised(body)
            self._at = 0
            assert name not in self.rules, name
            self.rules[name] = self._alt()
            assert self._at == len(self._tokens), (name, body)
        used = {n[1] for rule in self.rules.values() for n in self._walk(rule) if n[0] == "ref"}
        assert used <= set(self.rules), used - set(self.rules)
        self._cost = dict.fromkeys(self.rules, inf)
        for _ in self.rules:
            for name, rule in self.rules.items():
                self._cost[name] = self.cost(rule)

    # Reading the grammar

    @staticmethod
    def _tokenised(body):
        tokens, at = [], 0
        while body[at:].strip():
            found = _TOKEN.match(body, at)
            assert found, body[at:]
            tokens.append(found.groups())
            at = found.end()
        return tokens

    def _peek(self):
        return self._tokens[self._at] if self._at < len(self._tokens) else (None,) * 5

    def _alt(self):
        options = [self._seq()]
        while self._peek()[4] == "|":
            self._at += 1
            options.append(self._seq())
        return options[0] if len(options) == 1 else ("alt", options)

    def _seq(self):
        items = []
        while True:
            text, chars, name, _, sign = self._peek()
            if text is not None:
                node = ("lit", "".join(c if isinstance(c, str) else chr(c) for c in _chars(text[1:-1])))
            elif chars is not None:
                node = self._class(chars[1:-1])
            elif name is not None:
                node = ("ref", name)
            elif sign == "(":
                self._at += 1
                node = self._alt()
                assert self._peek()[4] == ")"
            else:
                return ("seq", items)
            self._at += 1
            _, _, _, braces, sign = self._peek()
            if braces is not None:
                low, _, high = braces[1:-1].partition(",")
                most = int(low) if "," not in braces else int(high) if high else inf
                node = ("rep", node, int(low), most)
                self._at += 1
            elif sign in ("*", "+", "?"):
                node = ("rep", node, int(sign == "+"), 1 if sign == "?" else inf)
                self._at += 1
            items.append(node)

    def _class(self, text):
        negated = text.startswith("^")
        chars = _chars(text[negated:])
        ranges, at = [], 0
        while at < len(chars):
            low = chars[at] if isinstance(chars[at], int) else ord(chars[at])
            high, at = low, at + 1
            if at + 1 < len(chars) and chars[at] == "-":
                high = chars[at + 1] if isinstance(chars[at + 1], int) else ord(chars[at + 1])
                at += 2
            ranges.append((low, high))
        if negated:
            rest, start = [], 0
            for low, high in sorted(ranges):
                if start < low:
                    rest.append((start, low - 1))
                start = max(start, high + 1)
            ranges = [*rest, (start, _LAST)]
        return ("class", ranges)

    def _walk(self, node):
        yield node
        if node[0] in ("seq", "alt"):
            for child in node[1]:
                yield from self._walk(child)
        elif node[0] == "rep":
            yield from self._walk(node[1])

    # Matching

    def matches(self, text: str) -> bool:
        self._memo = {}
        return len(text) in self._ends(("ref", "root"), text, 0)

    def _ends(self, node, text, at):
        key = (id(node) if node[0] != "ref" else node[1], at)
        if key not in self._memo:
            self._memo[key] = frozenset()
            self._memo[key] = frozenset(self._find(node, text, at))
        return self._memo[key]

    def _find(self, node, text, at):
        kind = node[0]
        if kind == "lit":
            return {at + len(node[1])} if text.startswith(node[1], at) else set()
        if kind == "class":
            inside = at < len(text) and any(low <= ord(text[at]) <= high for low, high in node[1])
            return {at + 1} if inside else set()
        if kind == "ref":
            return self._ends(self.rules[node[1]], text, at)
        if kind == "alt":
            return {end for one in node[1] for end in self._ends(one, text, at)}
        if kind == "seq":
            ends = {at}
            for one in node[1]:
                ends = {end for start in ends for end in self._ends(one, text, start)}
            return ends
        _, inner, least, most = node
        found, ends, count = set(), {at}, 0
        while ends and count <= min(most, len(text) + least + 1):
            if count >= least:
                if ends <= found:
                    break
                found |= ends
            ends = {end for start in ends for end in self._ends(inner, text, start)}
            count += 1
        return found

    # Writing

    def cost(self, node) -> float:
        """How deep the shallowest text of a node is."""
        kind = node[0]
        if kind in ("lit", "class"):
            return 0
        if kind == "ref":
            return 1 + self._cost[node[1]]
        if kind == "alt":
            return min(map(self.cost, node[1]))
        if kind == "seq":
            return max(map(self.cost, node[1]), default=0)
        return self.cost(node[1]) if node[2] else 0

    def write(self, random, depth: int = 12) -> str:
        """A random text of the grammar; beyond `depth` it is as shallow as it can be."""
        out = []
        self._write(("ref", "root"), random, depth, out)
        return "".join(out)

    def _write(self, node, random, depth, out):
        kind = node[0]
        if kind == "lit":
            out.append(node[1])
        elif kind == "class":
            low, high = random.choice(node[1])
            out.append(chr(random.randint(low, min(high, low + 200))))
        elif kind == "ref":
            self._write(self.rules[node[1]], random, depth - 1, out)
        elif kind == "alt":
            least = min(map(self.cost, node[1]))
            options = node[1] if depth > 0 else [one for one in node[1] if self.cost(one) == least]
            self._write(random.choice(options), random, depth, out)
        elif kind == "seq":
            for one in node[1]:
                self._write(one, random, depth, out)
        else:
            _, inner, least, most = node
            extra = random.randint(0, int(min(most - least, 3))) if depth > 0 else 0
            for _ in range(least + extra):
                self._write(inner, random, depth, out)
