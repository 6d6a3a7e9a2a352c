"""The forms in which models write calls: one per family of chat templates, and one for all other models.

A call is written `open`, `before`, the function's name as a JSON string, `between`, its arguments as JSON, `after`.
Each further call begins with `again`; `close` ends the last one. The grammar allows no other spelling, so calls can be
read without guessing, and a model writes the same form that its template shows for earlier calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from disco.endpoints.llamacpp.constraints import alternatives, grammar_text, json_rule, literal
from disco.endpoints.llamacpp.refusals import unserved
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools

__all__ = ["GENERIC", "HERMES", "LLAMA", "MAX_CALLS", "MISTRAL", "CallFormat", "form_of"]

MAX_CALLS = 16
"""Calls in one answer; without this limit, a model that does not stop would continue to the end of its context."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """A form of calls; the module's docstring explains `open`, `before`, `between`, `after`, `again` and `close`.

    Attributes:
        name: for messages and tests.
        only_first: an answer is calls from its first character on, or it is text; `open` inside a text is text.
        native: the model's template writes the tools and earlier calls itself.
        id_chars: length of the call ids that the template accepts; None for any.
    """

    name: str
    open: str
    before: str
    between: str
    after: str
    again: str | None
    close: str = ""
    only_first: bool = False
    native: bool = True
    id_chars: int | None = None

    def _rest_of_calls(self, tools: Tools) -> tuple[str, dict[str, str]]:
        """Return the expression for the text after `open`, and the rules that it needs."""
        rules: dict[str, str] = {}
        one = []
        for number, function in enumerate(tools.callable):
            arguments = f"arguments_{number}"
            rules[arguments] = json_rule(function.arguments)
            before = f'"{function.name}"{self.between}'
            one.append(f"{literal(before)} {arguments} {literal(self.after)}")
        rules["call"] = alternatives(one)
        more = ""
        if tools.several and self.again is not None:
            more = f" ({literal(self.again)} call){{0,{MAX_CALLS - 1}}}"
        close = f" {literal(self.close)}" if self.close else ""
        return f"{literal(self.before)} call{more}{close}", rules

    def grammar(self, tools: Tools) -> str:
        """Return the whole grammar of the text after `open`."""
        return grammar_text(*self._rest_of_calls(tools))

    def grammar_beside(self, tools: Tools, schema: str) -> str:
        """Return the grammar of a whole answer that is either calls or structured output.

        Args:
            tools: the functions that may be called.
            schema: as `accepted_schema` returns it.

        Raises:
            EndpointFailure: UNSERVED where calls and structured output begin alike.
        """
        if self.only_first:
            raise unserved("This model's calls look like JSON: give it tools or a response_format, not both.")
        calls, rules = self._rest_of_calls(tools)
        either = alternatives(("document", f"{literal(self.open)} {calls}"))
        return grammar_text(either, {"document": json_rule(schema), **rules})

    def written(self, name: str, arguments: str) -> str:
        """Return a whole call, as an answer contains it."""
        return f'{self.open}{self.before}"{name}"{self.between}{arguments}{self.after}{self.close}'


GENERIC = CallFormat(
    "generic",
    open="<tool_call>",
    before='\n{"name": ',
    between=', "arguments": ',
    after="}\n</tool_call>",
    again=None,  # one call only: models that were never trained on calls do not stop
    native=False,
)
HERMES = CallFormat(
    "hermes",
    open=GENERIC.open,
    before=GENERIC.before,
    between=GENERIC.between,
    after=GENERIC.after,
    again='\n<tool_call>\n{"name": ',
)
LLAMA = CallFormat(
    "llama",
    open='{"name":',
    before=" ",
    between=', "parameters": ',
    after="}",
    again=None,
    only_first=True,
)
MISTRAL = CallFormat(
    "mistral",
    open="[TOOL_CALLS]",
    before='[{"name": ',
    between=', "arguments": ',
    after="}",
    again=', {"name": ',
    close="]",
    id_chars=9,
)


def form_of(template: str) -> CallFormat:
    """Return the form that a model with this chat template writes, as far as the template shows it."""
    if "tools" not in template:
        return GENERIC
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    if "<tool_call>" in template and "arguments" in template:
        # The same tag around XML parameters or a bare name is another form.
        others = ("<function=", "<arg_key>", "<parameter")
        return GENERIC if any(one in template for one in others) else HERMES
    if "<|start_header_id|>" in template and '"parameters": ' in template:
        return LLAMA
    return GENERIC
