"""The constraints on an answer, as a mask over the vocabulary for each token, computed by llguidance.

A grammar here is in llguidance's Lark format: the rule `start`, and others that it names. JSON schemas are embedded
in it unchanged.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.json_schema import REMEDY, SchemaError, prepared_schema
from disco.endpoints.llamacpp.refusals import unserved
from disco.errors import EndpointFailure

__all__ = [
    "Constraint",
    "Vocabulary",
    "accepted_schema",
    "alternatives",
    "grammar_text",
    "json_rule",
    "literal",
]

# Limits on llguidance's work: a compilation takes at most about a second, a token some milliseconds.
_LIMITS = {"max_lexer_states": 50_000, "max_grammar_size": 200_000, "verbose_errors": False}
_BYTES = "byte"  # llguidance's own vocabulary of 256 bytes: enough to check a grammar without a model

# Why llguidance refuses a schema. Its own messages may quote the schema, so only these are passed on.
_REASONS = (
    ("Unable to determine", f"its patterns and lengths take too much work to keep to; {REMEDY}"),
    (
        "regex",
        "its pattern is not supported: it is malformed, or has look-ahead, look-behind or back-references",
    ),
    ("min/maxProperties", "minProperties and maxProperties beside optional properties are not supported"),
    ("Unsatisfiable schema: minimum", "no number lies between its bounds"),
    ("NoExtension", "no text can be valid under it: a $ref may refer to itself"),
    (
        "Unsatisfiable",
        "nothing is valid under it: its parts exclude each other, or a required part is false",
    ),
    ("Invalid type", "it names a type that JSON does not have"),
    ("recursion limit", "it is nested too deeply"),
    ("surrogate", "it holds a lone surrogate (half of a character)"),
    ("patternProperties", "its patternProperties overlap"),
    ("circular references", "a $ref with other keywords beside it refers to itself"),
)
_TOO_MUCH = re.compile(r"too (big|large|many|complex)|fuel|stack level|max is|panic|limit")
_EXPECTED = re.compile(r"Expected [a-z0-9 ]+ for '(\w+)'|(\w+) must be an? ")


def _llguidance() -> Any:
    if find_spec("llguidance") is None:
        raise unserved(
            'JSON schemas and required calls on this machine need llguidance: pip install "disco-llm[local]"'
        )
    return importlib.import_module("llguidance")


# Grammars


def literal(text: str) -> str:
    """Return the expression that matches exactly `text`."""
    return json.dumps(text, ensure_ascii=False)


def alternatives(expressions: Iterable[str]) -> str:
    """Return an expression that matches any of the given ones and can be used anywhere."""
    return f"({' | '.join(expressions)})"


def json_rule(schema: str) -> str:
    """Return the body of a rule for documents that are valid under a schema, as `accepted_schema` returns it."""
    return f"%json {schema}"


def grammar_text(start: str, rules: Mapping[str, str]) -> str:
    """Return a whole grammar: `start` is the expression that an answer must match."""
    return "\n".join(f"{name}: {body}" for name, body in {"start": start, **rules}.items())


def accepted_schema(
    schema: Mapping[str, Any], *, only: str | None = None, check: Callable[[], None] | None = None
) -> str:
    """Return the schema in the form that a grammar can hold, checked without a model.

    Args:
        schema: a JSON schema.
        only: a type that the value must also have.
        check: called while the schema is read; an exception that it raises stops the reading and passes through.

    Raises:
        SchemaError: the schema cannot be kept to.
        EndpointFailure: UNSERVED where llguidance is not installed.
    """
    text = prepared_schema(schema, only=only, check=check)
    _matcher(_byte_tokenizer(), grammar_text("document", {"document": json_rule(text)}))
    return text


@functools.cache
def _byte_tokenizer() -> Any:
    return _llguidance().LLTokenizer(_BYTES)


def _matcher(tokenizer: Any, grammar: str) -> Any:
    library = _llguidance()
    limits = library.LLParserLimits(**_LIMITS)
    matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    matcher.compute_bitmask()  # a grammar that matches no text is detected only when its first token is asked for
    if matcher.is_error():
        raise SchemaError(_reason(matcher.get_error()))
    return matcher


def _reason(message: str) -> str:
    message = message.strip().partition("\n")[0]
    if expected := _EXPECTED.search(message):
        return f"{expected[1] or expected[2]} is malformed"
    for part, reason in _REASONS:
        if part in message:
            return reason
    if _TOO_MUCH.search(message):
        return f"it takes too much work to keep to; {REMEDY}"
    return f"llguidance does not support it; {REMEDY}"


# Masks


class Vocabulary:
    """A model's tokens as llguidance needs them.

    Making one takes some 0.1 s of a core for 50,000 tokens, during which llguidance holds the interpreter's lock. So
    it is made once for a model, when it is first needed.

    Args:
        pieces: the bytes that each token spells; empty for control tokens.
        ends: ids of the tokens that end an answer.
        tokenize: the ids of a text. It must not refer to the model: the garbage collector cannot look into llguidance.

    Raises:
        EndpointFailure: UNSERVED where llguidance is not installed.
    """

    def __init__(
        self, pieces: Sequence[bytes], ends: Sequence[int], tokenize: Callable[[str], Sequence[int]]
    ) -> None:
        library = _llguidance()
        self.tokens = len(pieces)
        wrapper = library.TokenizerWrapper(_Tokens(pieces, ends[0], tokenize))
        self.tokenizer = library.LLTokenizer(wrapper, eos_token=list(ends), slices=[])


class _Tokens:
    """A tokenizer in the form that llguidance reads."""

    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], end: int, tokenize: Callable[[str], Sequence[int]]) -> None:
        self.eos_token_id = end
        # Control tokens spell no text of an answer; the prefix 0xff marks them for llguidance.
        self.tokens = [piece or b"\xff<%d>" % token for token, piece in enumerate(pieces)]
        self._tokenize = tokenize

    def __call__(self, text: str | bytes) -> list[int]:
        return list(self._tokenize(text if isinstance(text, str) else text.decode("utf-8", "replace")))


def _unkept(reason: str) -> EndpointFailure:
    return unserved(
        f"The model on this machine cannot keep to this JSON schema: {reason}.", "response_format"
    )


class Constraint:
    """A grammar, and the position that an answer has reached in it.

    Mutable: `_matcher`.

    Raises:
        EndpointFailure: UNSERVED where the grammar cannot be kept to.
    """

    def __init__(self, vocabulary: Vocabulary, grammar: str) -> None:
        try:
            self._matcher = _matcher(vocabulary.tokenizer, grammar)
        except SchemaError as exc:
            raise _unkept(str(exc)) from exc
        self._tokens = vocabulary.tokens

    def allowed(self) -> npt.NDArray[np.intp]:
        """Return the ids of the tokens that may come next, with those that end an answer where it may end.

        Raises:
            EndpointFailure: UNSERVED where computing them takes too much work, or where there are none.
        """
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise _unkept(_reason(self._matcher.get_error()))
        return np.flatnonzero(np.unpackbits(mask, count=self._tokens, bitorder="little"))

    def accept(self, token: int) -> None:
        """Advance by the token that was chosen, one of `allowed`."""
        self._matcher.consume_token(token)

    @property
    def over(self) -> bool:
        """Whether the answer must end here."""
        return bool(self._matcher.is_stopped())
