"""Chat templates, rendered as llama.cpp renders them, in an environment that can stop a rendering.

Every kind of endpoint renders with this module, so that a server continues the same text that the local model reads.
A template comes with a model's file and may be hostile. So it runs in a Jinja sandbox with checkpoints: at every
block of statements (so at every turn of a loop), every call and every filter. A checkpoint stops the rendering when
its prompt is no longer needed, or when it has used more processor time or memory than the limits allow. Even so it may
take seconds, so nothing is rendered in an event loop.

What happens between two checkpoints is bounded by the sizes of the values. Forty lists that hold each other twice look
small and take Python for ever to compare or to write. So every list, tuple and dict is weighed when it is made, with
all that it holds, as often as it holds it.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["MAX_CPU_S", "MAX_MADE", "Allowance", "ChatTemplate", "TemplateLimitError"]

MAX_CPU_S = 5.0
"""Limit on the processor time of the renderings for one request, s; a common template takes some 0.04 ms a message."""

MAX_MADE = 2**24
"""Limit on the characters and list entries that a single step makes."""

_MAX_MADE_IN_ALL = 2**30
_MAX_EXPECTED = (
    2**28
)  # the same where only the product of the operands' sizes is known, which mostly is far more
_MAX_SOURCE = 2**18  # characters; common templates have some thousand, and compiling this many takes a second
_MAX_WEIGHT = 2**22  # values in a list and in the lists in it; to compare two such lists takes some 0.1 s
_CHARS_TO_ONE = MAX_MADE // _MAX_WEIGHT  # so many characters weigh as much as a value
_MAX_NUMBER_BITS = 4096
_MAX_WALKED = 2**22  # characters of a text that a filter walks through in Python, which takes seconds
_AT_ONCE = frozenset(  # filters that take a text as a whole
    {"capitalize", "count", "d", "default", "e", "escape", "float", "forceescape", "int", "length", "lower"}
    | {"replace", "safe", "string", "tojson", "trim", "upper"}
)
_SLOW_FILTERS = (
    "pprint",
    "striptags",
    "urlize",
    "wordwrap",
    "xmlattr",
)  # minutes for one text; llama.cpp has none
_WIDE = re.compile(r"%[^a-zA-Z%]*\d{7}|\{[^{}]*\d{7}")
_LOOK_EVERY = 64  # checkpoints between two readings of the processor's clock


class TemplateLimitError(Exception):
    """The template would exceed a limit; the message names the limit, in a clause."""


def _ignore() -> None:
    """Do nothing: the checkpoint of a caller that waits as long as the limits allow."""


class Allowance:
    """What the renderings for one request may use together; of the thread that makes it. Mutable."""

    def __init__(self) -> None:
        self._steps = self._made = 0
        self._until_s = time.thread_time() + MAX_CPU_S

    def step(self) -> None:
        """Count a checkpoint; raise where the time is up."""
        self._steps += 1
        if self._steps % _LOOK_EVERY == 0 and time.thread_time() > self._until_s:
            raise TemplateLimitError(f"it takes more than {MAX_CPU_S:g} s")

    def make(self, size: int) -> None:
        """Count what a step has made, in characters or entries; raise where that is too much."""
        self._made += size
        if size > MAX_MADE or self._made > _MAX_MADE_IN_ALL:
            raise TemplateLimitError(f"it makes more than {MAX_MADE:,} characters in one go")


class _Current(threading.local):
    """The rendering that a thread is at."""

    def __init__(self) -> None:
        self.check: Callable[[], None] = _ignore
        self.allowance = Allowance()


class ChatTemplate:
    """A compiled chat template, safe from any thread.

    Args:
        source: the template, in Jinja.
        eos_text, bos_text: the values of the template's `eos_token` and `bos_token`.

    Raises:
        jinja2.TemplateSyntaxError: the source is not a valid Jinja template, or longer than any.
    """

    def __init__(self, source: str, *, eos_text: str, bos_text: str) -> None:
        import jinja2  # noqa: PLC0415 - needed only where a prompt is rendered here

        if len(source) > _MAX_SOURCE:
            raise jinja2.TemplateSyntaxError(f"it has more than {_MAX_SOURCE:,} characters", 1)
        self._environment = _environment_class()()
        try:
            self._template = self._environment.from_string(source)
        except (RecursionError, MemoryError, SyntaxError):  # of Python's own compiler, too
            raise jinja2.TemplateSyntaxError("it is nested too deeply", 1) from None
        self._own = {
            "eos_token": eos_text,
            "bos_token": bos_text,
            "raise_exception": _refuse,
            "strftime_now": _now,
        }

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        opens_turn: bool = True,
        extra: Mapping[str, Any] | None = None,
        check: Callable[[], None] = _ignore,
        allowance: Allowance | None = None,
    ) -> str:
        """Return the conversation as the template writes it.

        Args:
            messages: roles and content.
            tools: as the API writes them.
            opens_turn: the text is to end where the assistant's answer begins (`add_generation_prompt`).
            extra: further variables of the template; they replace none of those above.
            check: called at every checkpoint; an exception that it raises stops the rendering and passes through.
            allowance: what this rendering may use; None: all that one request may.

        Raises:
            TemplateLimitError: the rendering would take too long or too much memory.
            Exception: whatever the template raises.
        """
        variables = {
            "functions": None,
            "function_call": None,
            "tool_choice": None,
            **(extra or {}),
            **self._own,
            "messages": list(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": opens_turn,
        }
        environment = self._environment
        environment.begin(check, allowance or Allowance())
        try:
            context = self._template.new_context(variables)
            return str(environment.concat(self._template.root_render_func(context)))
        except RecursionError:
            raise TemplateLimitError("its macros call themselves too often") from None
        finally:
            environment.begin(_ignore, Allowance())


def _refuse(message: str) -> None:
    raise ValueError(message)


def _now(pattern: str) -> str:
    return dt.datetime.now().astimezone().strftime(pattern)


@functools.cache
def _environment_class() -> Any:
    """Define the class when it is first needed, so that importing this module does not import Jinja."""
    import jinja2  # noqa: PLC0415
    from jinja2.compiler import CodeGenerator  # noqa: PLC0415
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.filters import do_format  # noqa: PLC0415
    from jinja2.runtime import Macro  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class WithCheckpoints(CodeGenerator):
        """Writes a checkpoint before every block of statements, and `~` as a function that keeps the limits."""

        def blockvisit(self, nodes: Any, frame: Any) -> None:
            self.writeline("environment.checkpoint()")
            super().blockvisit(nodes, frame)

        def visit_Concat(self, node: Any, frame: Any) -> None:  # noqa: N802 - Jinja's name
            self.write("environment.joined((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def _weighed(self, visit: Callable[[Any, Any], None], node: Any, frame: Any) -> None:
            if getattr(node, "ctx", "load") != "load":  # the names that values are given to
                visit(node, frame)
                return
            self.write("environment.weighed(")
            visit(node, frame)
            self.write(")")

        def visit_List(self, node: Any, frame: Any) -> None:  # noqa: N802 - Jinja's name
            self._weighed(super().visit_List, node, frame)

        def visit_Tuple(self, node: Any, frame: Any) -> None:  # noqa: N802
            self._weighed(super().visit_Tuple, node, frame)

        def visit_Dict(self, node: Any, frame: Any) -> None:  # noqa: N802
            self._weighed(super().visit_Dict, node, frame)

    class Generation(Extension):
        """`{% generation %}` marks the text that a model is trained on; rendering ignores the mark."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's form

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Environment(ImmutableSandboxedEnvironment):
        """Mutable: `_current`."""

        code_generator_class = WithCheckpoints
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def __init__(self) -> None:
            self._current = _Current()  # compiling uses filters, too
            super().__init__(
                trim_blocks=True,
                lstrip_blocks=True,
                extensions=[Generation, loopcontrols],
                loader=jinja2.BaseLoader(),
            )
            del self.globals["lipsum"]  # makes text of any length in one call
            for name in _SLOW_FILTERS:
                del self.filters[name]
            self.filters["tojson"] = self._tojson
            self.filters = {name: self._limited(name, made) for name, made in self.filters.items()}

        def begin(self, check: Callable[[], None], allowance: Allowance) -> None:
            """Begin a rendering in this thread."""
            self._current.check, self._current.allowance = check, allowance

        def checkpoint(self) -> None:
            """Raise where the rendering is to stop, or has taken too long."""
            self._current.check()
            self._current.allowance.step()

        def _use(self, size: int) -> None:
            self._current.allowance.make(size)

        def _use_result(self, value: Any) -> Any:
            if isinstance(value, str | list | tuple):
                self._use(len(value))
            return self.weighed(value)

        def weighed(self, value: Any) -> Any:
            """Return the value; raise where a list or dict holds too much."""
            if isinstance(value, list | tuple | dict) and _weight(value, {}) > _MAX_WEIGHT:
                raise TemplateLimitError(f"it makes lists that hold more than {_MAX_WEIGHT:,} values")
            return value

        def _expect(self, values: Sequence[Any], most: int = _MAX_EXPECTED) -> None:
            """Raise before a step makes something as large as the product of its operands' sizes."""
            product = 1
            for value in values:
                product *= max(1, _size(value))
                if product > most:
                    raise TemplateLimitError(f"it makes more than {MAX_MADE:,} characters in one go")

        def _expect_width(self, pattern: str) -> None:
            """Raise before a format makes very wide text."""
            if _WIDE.search(pattern):
                raise TemplateLimitError("it formats text with a width of more than 6 digits")

        def concat(self, parts: Any) -> str:  # overrides Jinja's own function
            """Join text that the template wrote."""
            kept: list[str] = []
            for part in parts:
                self._use(len(part))
                kept.append(part)
            return "".join(kept)

        def joined(self, parts: tuple[Any, ...]) -> str:
            """Return the text that `~` makes of values."""
            return self.concat([part if isinstance(part, str) else str(part) for part in parts])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            self.checkpoint()
            if operator == "**" or (operator == "*" and isinstance(left, int) and isinstance(right, int)):
                grown = right if operator == "**" else 1
                bits = _bits(left) * abs(grown) + (0 if operator == "**" else _bits(right))
                if bits > _MAX_NUMBER_BITS:
                    raise TemplateLimitError(f"it makes a number of more than {_MAX_NUMBER_BITS} bits")
            elif operator == "*" or (operator == "%" and isinstance(left, str)):
                if operator == "%":
                    self._expect_width(left)
                exact = operator == "*"
                values = (left, *(right if isinstance(right, tuple) else (right,)))
                self._expect(values, MAX_MADE if exact else _MAX_EXPECTED)
            return self._use_result(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, /, *args: Any, **named: Any) -> Any:  # noqa: N805
            __self.checkpoint()
            __self.weighed((*args, *named.values()))  # a macro has them as a tuple and a dict
            if not isinstance(__obj, Macro):
                # The sandbox wraps a text's own format method in a function.
                text = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
                if hasattr(__obj, "__wrapped__") and isinstance(text, str):
                    __self._expect_width(text)
                # A text's `translate` puts the values of a dict in the place of characters.
                given = (
                    [*one.values()] if isinstance(one, dict) else one for one in (*args, *named.values())
                )
                __self._expect((text, *given))
            return __self._use_result(super().call(__context, __obj, *args, **named))

        def _limited(self, name: str, made: Callable[..., Any]) -> Callable[..., Any]:
            passed = 1 if hasattr(made, "jinja_pass_arg") else 0  # Jinja passes a context before the values

            @functools.wraps(made)
            def limited(*args: Any, **named: Any) -> Any:
                self.checkpoint()
                if made is do_format:
                    self._expect_width(str(args[0]))
                value, *given = args[passed:]
                if isinstance(value, str) and len(value) > _MAX_WALKED and name not in _AT_ONCE:
                    raise TemplateLimitError(
                        f"it gives a filter a text of more than {_MAX_WALKED:,} characters"
                    )
                if isinstance(value, Iterator):
                    value = self._listed(value)
                    args = (*args[:passed], value, *given)
                self._expect((1 if isinstance(value, int) else value, *given, *named.values()))
                return self._use_result(made(*args, **named))

            return limited

        def _listed(self, values: Iterator[Any]) -> list[Any]:
            found = []
            for value in values:
                self.checkpoint()
                found.append(self._use_result(value))
            return found

        def _tojson(
            self,
            x: Any,
            ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates may give it by position
            indent: int | None = None,
            separators: tuple[str, str] | None = None,
            sort_keys: bool = False,  # noqa: FBT001, FBT002
        ) -> str:
            encoder = json.JSONEncoder(
                ensure_ascii=ensure_ascii,
                indent=indent,
                separators=separators,
                sort_keys=sort_keys,
            )
            kept = []
            for part in encoder.iterencode(x):
                self.checkpoint()
                self._use(len(part))
                kept.append(part)
            return "".join(kept)

    return Environment


def _weight(value: Any, known: dict[int, int]) -> int:
    """Return how many values a value holds, itself included, each as often as it is held; long texts count more.

    Args:
        value: of a template.
        known: the weights of the lists and dicts that were seen on the way, by id: their number is small even where
            the weight is not.
    """
    if isinstance(value, str):
        return 1 + len(value) // _CHARS_TO_ONE
    if not isinstance(value, list | tuple | dict):
        return 1
    found = known.get(id(value))
    if found is None:
        held = (*value, *value.values()) if isinstance(value, dict) else value
        found = known[id(value)] = 1 + sum(_weight(one, known) for one in held)
    return found


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 64


def _size(value: Any) -> int:
    if isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(len(one) if isinstance(one, str) else 1 for one in value)
    return 1
