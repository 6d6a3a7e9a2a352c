"""What llama-server is asked for: tools, where its own formats cannot do them, are asked for and read here, in text.

llama-server writes calls where the model's chat template has a place for tools, and nothing there makes it write one.
So a call that is required is asked for as a JSON document, which llama-server's grammars enforce, and is turned back
into a call. Where the template has no place for tools, messages describe them in the generic form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from disco.endpoints.contract import Attempt, Event
from disco.endpoints.llamacpp.json_schema import SchemaError
from disco.endpoints.llamacpp.prompting.template_messages import as_text, plain_messages
from disco.endpoints.llamacpp.refusals import unserved
from disco.endpoints.llamacpp.request_params import (
    plain_params,
    refuse_costly_schemas,
    refuse_unserved,
    template_variables,
)
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, CallFormat
from disco.endpoints.llamacpp.tool_calls.call_parser import CallReader
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools, read_tools
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, DeltaKind, Ended, SeamReport, ToolCallDelta, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["CallsAttempt", "CallsInText", "asked_of_server"]

_DOCUMENT: Final = CallFormat(
    "document", open="", before='{"name":', between=',"arguments":', after="}", again=None, native=False
)
_END: Final = GENERIC.after.strip("}\n")
# Of a document that is a call: a stop string would cut its arguments, and log probabilities belong to text.
_OF_TEXT: Final = ("stop", "logprobs", "top_logprobs")


def asked_of_server(
    request: Request, prefix: Prefix, *, endpoint: str, has_place: bool
) -> tuple[Request, CallsInText | None]:
    """Return the request as llama-server can keep it, and what reads the calls out of its answer; None: it does.

    Args:
        request: as the application made it.
        prefix: the answer so far.
        endpoint: the endpoint's name, for messages.
        has_place: whether the model's chat template has a place for tools.

    Raises:
        EndpointFailure: as `refuse_unserved`, `refuse_costly_schemas`, `plain_params` and `read_tools`; UNSERVED where
            a call, or structured output beside one, cannot be enforced.
    """
    # llama-server ignores what it does not know, and its log quotes a grammar that it cannot read.
    refuse_unserved(request.params, endpoint=endpoint)
    params = plain_params(request.params)
    refuse_costly_schemas(params, endpoint=endpoint)
    tools = read_tools(params, endpoint=endpoint, keeps=_as_given)
    params.pop("tools", None)
    params.pop("tool_choice", None)
    at_once = params.pop("parallel_tool_calls", None)
    reader: CallsInText | None = None
    if tools is not None and tools.required:
        if prefix:
            raise unserved(
                f"Endpoint {endpoint!r} cannot continue an answer that must be a call.", "tool_choice"
            )
        params = {name: value for name, value in params.items() if name not in _OF_TEXT}
        schema = {"name": "call", "schema": _schema_of_call(tools)}
        params["response_format"] = {"type": "json_schema", "json_schema": schema}
        if has_place:  # the template shows the functions; a choice would bring a grammar of its own
            params |= {"tools": tools.offered, "tool_choice": "none"}
        reader = CallsInText(_DOCUMENT, tools, endpoint=endpoint)
    elif tools is not None:
        if (params.get("response_format") or {}).get("type", "text") != "text":
            raise unserved(
                f"Endpoint {endpoint!r} (llama-server) serves tools, or a response_format, not both: leave one out, "
                'use runtime="engine", or configure a server that serves both.',
                "response_format",
            )
        if has_place:
            names = {function.name for function in tools.callable}
            params["tools"] = [tool for tool in tools.offered if tool["function"]["name"] in names]
            params |= {} if at_once is None else {"parallel_tool_calls": at_once}
        else:
            stop = params.get("stop") or ()
            params["stop"] = [*((stop,) if isinstance(stop, str) else stop), _END]
            reader = CallsInText(GENERIC, tools, endpoint=endpoint)
    if variables := template_variables(request.params):
        params["chat_template_kwargs"] = variables
    messages = request.messages
    if not has_place and (tools is not None or any(map(_is_of_calls, messages))):
        messages = as_text(plain_messages(messages, endpoint=endpoint), tools)
    return replace(request, params=params, messages=messages), reader


def _is_of_calls(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _as_given(schema: Mapping[str, Any], **_how: Any) -> str:
    """Return a schema that llama-server converts itself."""
    if schema.get("type", "object") != "object":
        raise SchemaError("arguments are an object")
    return json.dumps({"type": "object", **schema})


def _schema_of_call(tools: Tools) -> dict[str, Any]:
    """Return the schema of a document that is a call of one of the functions."""
    arguments, calls = {}, []
    for number, function in enumerate(tools.callable):
        place = f"#/$defs/{number}"
        arguments[str(number)] = _moved(json.loads(function.arguments), place)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "arguments": {"$ref": place}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": arguments}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references are to its parts at their new place."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(part, place) for name, part in schema.items()}
    if isinstance(to := schema.get("$ref"), str) and to.startswith("#"):
        moved["$ref"] = place + to[1:]
    return moved


class CallsInText:
    """Reads the calls out of an answer's deltas.

    A required call is passed on as it is written: a grammar holds it. One in the generic form is held back until it
    is complete, because nothing but the model's good will makes it one; what is none stays text.

    Mutable: all private attributes.

    Args:
        form: how calls are written.
        tools: the functions that may be called.
        endpoint: the endpoint's name, for messages.
    """

    def __init__(self, form: CallFormat, tools: Tools, *, endpoint: str) -> None:
        self._form = form
        self._names = {function.name for function in tools.callable}
        self._endpoint = endpoint
        self._reader = CallReader(form, spaced=True)
        self._held: list[Delta] = []  # text that may belong to a call
        self._has_text = False
        self._tokens = 0  # of the call, in no delta yet

    def read(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return what of an answer may be passed on by now.

        Raises:
            EndpointFailure: GARBAGE where a required call is none.
        """
        out: list[Delta] = []
        for delta in deltas:
            if delta.kind is not DeltaKind.TEXT:
                out.append(delta)
            elif not self._form.open:
                out += self._calls(delta.text, delta.tokens)
            else:
                self._held.append(delta)
                out += self._text()
        return out

    def _text(self) -> list[Delta]:
        """Return the held text before the first place at which a call may begin."""
        held = "".join(delta.text for delta in self._held)
        at = _begins(held, self._form.open)
        if not self._has_text and not held[:at].strip():  # blanks: mostly a call follows them
            return []
        out: list[Delta] = []
        while self._held and at >= len(self._held[0].text):
            out.append(self._held.pop(0))
            at -= len(out[-1].text)
        if at and self._held:
            first = self._held[0]
            out.append(replace(first, text=first.text[:at]))
            self._held[0] = replace(first, text=first.text[at:], tokens=0)
        self._has_text = self._has_text or bool(out)
        return out

    def _calls(self, text: str, tokens: int) -> list[Delta]:
        self._tokens += tokens
        try:
            parts = self._reader.feed(text)
        except ValueError as exc:
            raise self._no_call() from exc
        out = []
        for part in parts:
            call = ToolCallDelta(part.index, part.arguments, part.id, part.name)
            out.append(Delta("", tokens=self._tokens, kind=DeltaKind.TOOL, tool_calls=(call,)))
            self._tokens = 0
        return out

    def end(self, reason: str) -> tuple[list[Delta], str]:
        """Return what was held back, and why the answer ended, given llama-server's reason.

        Raises:
            EndpointFailure: GARBAGE where a required call is not complete.
        """
        held, self._held = self._held, []
        text = "".join(delta.text for delta in held).lstrip()
        if self._form.open and text.startswith(self._form.open):
            with_calls = self._calls_in(
                text.removeprefix(self._form.open), sum(delta.tokens for delta in held)
            )
            if with_calls:
                return with_calls, "tool_calls" if self._reader.whole and reason != "length" else reason
        elif not self._form.open and self._reader.whole:
            return [], "tool_calls"
        elif not self._form.open and reason != "length":
            raise self._no_call()
        return held, reason

    def _calls_in(self, text: str, tokens: int) -> list[Delta]:
        """Return the call that a model has written in the generic form; empty where it is none."""
        try:
            deltas = self._calls(text, tokens)
            pieces = [call for delta in deltas for call in delta.tool_calls]
            known = bool(pieces) and pieces[0].name in self._names
            if known and self._reader.whole:
                json.loads("".join(piece.arguments for piece in pieces))
        except (EndpointFailure, ValueError):
            return []
        return deltas if known else []

    def _no_call(self) -> EndpointFailure:
        error = IncompleteAnswerError(
            f"Endpoint {self._endpoint!r} wrote something else than the required call."
        )
        return EndpointFailure(FailureKind.GARBAGE, error)


def _begins(text: str, opening: str) -> int:
    """Return where `opening` begins in a text, or may begin at its end; the text's length: nowhere."""
    if (at := text.find(opening)) >= 0:
        return at
    for length in range(min(len(opening) - 1, len(text)), 0, -1):
        if text.endswith(opening[:length]):
            return len(text) - length
    return len(text)


class CallsAttempt(Attempt):
    """An attempt of a server whose calls `CallsInText` reads. Mutable: `_end`."""

    def __init__(self, attempt: Attempt, calls: CallsInText) -> None:
        self._attempt = attempt
        self._calls = calls
        self._end: Ended | None = None  # behind what was held back until then

    async def __anext__(self) -> Event:
        if self._end is not None:
            end, self._end = self._end, None
            return end
        while True:
            event = await anext(self._attempt)
            if isinstance(event, Ended):
                held, reason = self._calls.end(event.finish_reason)
                end = replace(event, finish_reason=reason)
                if not held:
                    return end
                self._end = end
                return held
            if not isinstance(event, list):
                return event
            if deltas := self._calls.read(event):
                return deltas

    async def aclose(self) -> None:
        await self._attempt.aclose()

    @property
    def usage(self) -> Usage:
        return self._attempt.usage

    @property
    def traffic(self) -> Traffic:
        return self._attempt.traffic

    @property
    def seam(self) -> SeamReport | None:
        return self._attempt.seam
