"""Refuse requests that every endpoint would refuse, and find values that only some servers take.

Any endpoint may answer a request, so its shape is checked once, before an endpoint is asked. The messages and error
codes are the API's. What disco itself reads as a structure (messages, tools, a format) must be one. A value of another
field that is not the API's (`"temperature": "0.7"`, a call's arguments as an object) is left to servers, some of which
take it. Fields that are not named here are passed on unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco.errors import NoEndpointError
from disco.request import NO_LIMIT, Prefix, Request, check_classes, whole_number

__all__ = ["check_chat", "check_host_body", "check_responses", "checked_order", "checked_prefix"]

Check = Callable[[str, Any], None]
"""Refuses the value of a field, given the field's name. Never called with None, which counts as "not given"."""


def _refused(param: str, wanted: str) -> NoEndpointError:
    return NoEndpointError(
        f"Invalid type for {param!r}: expected {wanted}.", code="invalid_type", param=param
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _string(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _refused(name, "a string")


def _boolean(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _refused(name, "a boolean")


def _object(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _refused(name, "an object")


def _array(name: str, value: Any) -> None:
    if not _is_sequence(value):
        raise _refused(name, "an array")


def _objects(name: str, value: Any) -> None:
    if not _is_sequence(value):
        raise _refused(name, "an array of objects")
    for number, item in enumerate(value):
        _object(f"{name}[{number}]", item)


def _string_or_object(name: str, value: Any) -> None:
    if not isinstance(value, str | Mapping):
        raise _refused(name, "a string or an object")


def _string_or_strings(name: str, value: Any) -> None:
    if not isinstance(value, str) and not (_is_sequence(value) and all(isinstance(v, str) for v in value)):
        raise _refused(name, "a string or an array of strings")


def _integer(least: float = -math.inf, most: float = math.inf) -> Check:
    def check(name: str, value: Any) -> None:
        if whole_number(value) is None:
            raise _refused(name, "an integer")
        _in_range("integer", name, value, least, most)

    return check


def _limit(name: str, value: Any) -> None:
    if whole_number(value) != NO_LIMIT:
        _integer(1)(name, value)


def _number(least: float = -math.inf, most: float = math.inf) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _refused(name, "a number")
        _in_range("decimal", name, value, least, most)

    return check


def _in_range(kind: str, name: str, value: float, least: float, most: float) -> None:
    if value < least:
        side, sign, bound = "below min", ">=", least
    elif value > most:
        side, sign, bound = "above max", "<=", most
    else:  # also NaN, which JSON cannot represent
        return
    # The message does not repeat a number of a million digits.
    given = f"{value}" if abs(value) < 1e15 else "a number far beyond it"
    raise NoEndpointError(
        f"Invalid {name!r}: {kind} {side}imum value. Expected a value {sign} {bound:g}, but got {given} instead.",
        code=f"{kind}_{side.replace(' ', '_')}_value",
        param=name,
    )


def _logit_bias(name: str, value: Any) -> None:
    _object(name, value)
    for token, bias in value.items():
        if not str(token).removeprefix("-").isdecimal():
            raise _refused(name, "an object whose names are token ids")
        _number()(name, bias)


def _stream_options(name: str, value: Any) -> None:
    _object(name, value)
    _check_fields(value, {"include_usage": _boolean, "include_obfuscation": _boolean}, f"{name}.")


def _response_format(name: str, value: Any) -> None:
    if isinstance(value, type):  # a class, as for the SDK's own `parse`
        return
    _object(name, value)
    _check_fields(value, {"type": _string, "json_schema": _object}, f"{name}.")
    if isinstance(value.get("json_schema"), Mapping):
        _check_fields(value["json_schema"], {"name": _string, "schema": _object}, f"{name}.json_schema.")


def _text_format(name: str, value: Any) -> None:
    _object(name, value)
    _check_fields(value, {"format": _object, "verbosity": _string}, f"{name}.")
    if isinstance(value.get("format"), Mapping):
        _check_fields(value["format"], {"type": _string, "schema": _object}, f"{name}.format.")


def _reasoning(name: str, value: Any) -> None:
    _object(name, value)
    _check_fields(value, {"effort": _string, "summary": _string}, f"{name}.")


def _functions(name: str, value: Any) -> None:
    _objects(name, value)
    for number, tool in enumerate(value):
        fields = {
            "type": _string,
            "function": _object,
            "custom": _object,
            "name": _string,
            "parameters": _object,
        }
        _check_fields(tool, fields, f"{name}[{number}].")
        if isinstance(tool.get("function"), Mapping):
            fields = {"name": _string, "description": _string, "parameters": _object}
            _check_fields(tool["function"], fields, f"{name}[{number}].function.")


def _calls(name: str, value: Any) -> None:
    _objects(name, value)
    for number, call in enumerate(value):
        _check_fields(call, {"id": _string, "type": _string, "function": _object}, f"{name}[{number}].")
        if isinstance(call.get("function"), Mapping):
            _check_fields(call["function"], {"name": _string}, f"{name}[{number}].function.")


def _content(name: str, value: Any) -> None:
    if isinstance(value, str):
        return
    if not _is_sequence(value):
        raise _refused(name, "a string or an array of objects")
    for number, part in enumerate(value):
        where = f"{name}[{number}]"
        _string_or_object(where, part)
        if isinstance(part, Mapping):
            fields = {"type": _string, "text": _string, "refusal": _string, "image_url": _string_or_object}
            fields |= {"input_audio": _object, "detail": _string}
            _check_fields(part, fields, f"{where}.")
            if isinstance(part.get("input_audio"), Mapping):
                _check_fields(part["input_audio"], {"data": _string}, f"{where}.input_audio.")


def _messages(name: str, value: Any) -> None:
    _objects(name, value)
    for number, message in enumerate(value):
        _check_fields(message, _MESSAGE, f"{name}[{number}].")


def _input(name: str, value: Any) -> None:
    if isinstance(value, str):
        return
    if not _is_sequence(value):
        raise _refused(name, "a string or an array of objects")
    _objects(name, value)
    for number, item in enumerate(value):
        if item.get("type", "message") in _CHAT_ITEMS:  # the server checks items of other types
            _check_fields(item, _ITEM, f"{name}[{number}].")
        else:
            _check_fields(item, {"type": _string}, f"{name}[{number}].")


_MESSAGE: Mapping[str, Check] = {
    "role": _string,
    "content": _content,
    "name": _string,
    "refusal": _string,
    "tool_calls": _calls,
    "tool_call_id": _string,
    "function_call": _object,
    "audio": _object,
}
_CHAT_ITEMS = (None, "message", "function_call", "function_call_output")
_ITEM: Mapping[str, Check] = {
    "type": _string,
    "role": _string,
    "content": _content,
    "call_id": _string,
    "name": _string,
    "arguments": _string,
    "output": _content,
}
# Fields of both APIs.
_COMMON: Mapping[str, Check] = {
    "metadata": _object,
    "model": _string,
    "parallel_tool_calls": _boolean,
    "prompt_cache_key": _string,
    "safety_identifier": _string,
    "service_tier": _string,
    "store": _boolean,
    "stream_options": _stream_options,
    "temperature": _number(0),
    "tool_choice": _string_or_object,
    "tools": _functions,
    "top_logprobs": _integer(0, 20),
    "top_p": _number(0, 1),
    "user": _string,
}
_CHAT: Mapping[str, Check] = {
    **_COMMON,
    "audio": _object,
    "frequency_penalty": _number(),
    "function_call": _string_or_object,
    "functions": _objects,
    "logit_bias": _logit_bias,
    "logprobs": _boolean,
    "max_completion_tokens": _limit,
    "max_tokens": _limit,
    "messages": _messages,
    "min_p": _number(0, 1),
    "modalities": _array,
    "n": _integer(1),
    "prediction": _object,
    "presence_penalty": _number(),
    "reasoning_effort": _string,
    "repeat_penalty": _number(),
    "repetition_penalty": _number(),
    "response_format": _response_format,
    "seed": _integer(),
    "stop": _string_or_strings,
    "top_k": _integer(),
    "verbosity": _string,
    "web_search_options": _object,
}
_RESPONSES: Mapping[str, Check] = {
    **_COMMON,
    "background": _boolean,
    "conversation": _string_or_object,
    "include": _array,
    "input": _input,
    "instructions": _string,
    "max_output_tokens": _limit,
    "max_tool_calls": _integer(0),
    "previous_response_id": _string,
    "prompt": _object,
    "reasoning": _reasoning,
    "text": _text_format,
    "truncation": _string,
}


# Fields that disco itself reads as a structure, whichever endpoint answers.
_READ = frozenset(
    {
        "audio",
        "functions",
        "messages",
        "modalities",
        "model",
        "n",
        "response_format",
        "stream_options",
        "tools",
    }
)


def check_chat(body: Mapping[str, Any]) -> dict[str, NoEndpointError]:
    """Refuse a `/chat/completions` body that no endpoint could answer.

    Returns:
        By field, how an endpoint that takes the API's own values only refuses this one; empty for most requests.

    Raises:
        NoEndpointError: a field that disco itself reads has a wrong type; `param` names it.
    """
    unusual: dict[str, NoEndpointError] = {}
    for name, value in body.items():
        try:
            _check_fields({name: value}, _CHAT)
        except NoEndpointError as error:
            if name in _READ:
                raise
            unusual[name] = error
    if param := _call_with_values(body.get("messages") or ()):
        unusual["messages"] = _refused(param, "a string")
    return unusual


def _call_with_values(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return where a call in the history has arguments that are no JSON text; None: nowhere."""
    for at, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls") or ()):
            function = call.get("function")
            if function and not isinstance(function.get("arguments") or "", str):
                return f"messages[{at}].tool_calls[{number}].function.arguments"
    return None


def check_responses(body: Mapping[str, Any]) -> None:
    """Refuse a `/responses` body with a field of a wrong type or out of range: it may have to be translated.

    Raises:
        NoEndpointError: `param` names the field.
    """
    _check_fields(body, _RESPONSES)


def _check_fields(fields: Mapping[str, Any], checks: Mapping[str, Check], where: str = "") -> None:
    for name, value in fields.items():
        check = checks.get(name)
        if check is not None and value is not None:
            check(f"{where}{name}", value)


# What another program of ours asks a model for: beyond the API's fields, what a session asks an endpoint for.

_MOST_WANTS = 16
_MOST_TOKENS = 2**31
_MOST_WITHHELD = 10_000  # characters; it is a word, and the model has to write it again


def checked_order(
    body: Mapping[str, Any], asked: Mapping[str, Any]
) -> tuple[Request, Prefix, frozenset[str]]:
    """Return what another program asks the model of this one for, checked as a request of a caller is.

    Args:
        body: a `/chat/completions` body without `model` and `stream`.
        asked: what is asked for beyond the API: `prefix`, `wants`, `classes`, `cap`, `drafts` and `may_be_saved`, or
            some of them.

    Returns:
        What `Endpoint.open` takes. The request names no model: there is one.

    Raises:
        NoEndpointError: a field has a wrong type or is out of range; `param` names it.
    """
    for error in check_chat(body).values():
        raise error
    messages = body.get("messages")
    if not messages:
        text = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        raise NoEndpointError(text, code="empty_array", param="messages")
    _no_others(asked, _ORDER, "")
    _check_fields(asked, _ORDER)
    if classes := tuple(asked.get("classes") or ()):
        try:
            check_classes(classes)
        except ValueError as error:
            raise NoEndpointError(
                f"Invalid 'classes': {error}.", code="invalid_value", param="classes"
            ) from None
    request = Request(
        messages=list(messages),
        model="",
        params={name: value for name, value in body.items() if name not in ("messages", "model", "stream")},
        classes=classes,
        cap=whole_number(asked.get("cap")),
        drafts=whole_number(asked.get("drafts")),
        may_be_saved=bool(asked.get("may_be_saved")),
    )
    return request, checked_prefix(asked.get("prefix") or {}), frozenset(asked.get("wants") or ())


def checked_prefix(fields: Mapping[str, Any], where: str = "prefix") -> Prefix:
    """Return an answer so far that came as JSON: the fields of `Prefix`.

    Args:
        fields: any of its fields may be missing.
        where: what the message calls it.

    Raises:
        NoEndpointError: a field has a wrong type or is out of range; `param` names it.
    """
    _no_others(fields, _PREFIX, f"{where}.")
    _check_fields(fields, _PREFIX, f"{where}.")
    given = {name: value for name, value in fields.items() if value is not None}
    text, withheld = given.get("text", ""), given.get("withheld", "")
    if not text.endswith(withheld) or len(withheld) > _MOST_WITHHELD:
        raise _refused(f"{where}.withheld", f"the end of its text, of at most {_MOST_WITHHELD:,} characters")
    if "ids" in given:
        given["ids"] = tuple(given["ids"])
    return Prefix(**given)


def check_host_body(what: str, body: Mapping[str, Any]) -> None:
    """Refuse what a host of ours is asked for on its own paths, where a field is missing or has a wrong type.

    Args:
        what: the path behind `/v1/disco/`, or "extend" and "draft" for an order to an answer or a drafting. Others
            are not checked.
        body: the request's.

    Raises:
        NoEndpointError: `param` names the field.
    """
    checks = _HOST.get(what, {})
    _check_fields(body, checks)
    for name in checks:
        if body.get(name) is None and what != "answers":
            raise NoEndpointError(
                f"Missing required parameter: {name!r}.", code="missing_required_parameter", param=name
            )


def _no_others(fields: Mapping[str, Any], known: Mapping[str, Check], where: str) -> None:
    """Refuse fields that nobody knows: what a newer program asks for must not be left out silently."""
    if not all(name in known for name in fields):
        # Not by its name, which is any text.
        raise NoEndpointError(
            f"There is a field beside {', '.join(f'{where}{name}' for name in known)}.",
            code="unknown_parameter",
            param=where.rstrip(".") or None,
        )


def _tokens(name: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value < _MOST_TOKENS:
        raise _refused(name, "a number of tokens")


def _token_ids(name: str, value: Any) -> None:
    if not _is_sequence(value) or not all(type(one) is int and 0 <= one < _MOST_TOKENS for one in value):
        raise _refused(name, "an array of token ids")


def _strings(most: float) -> Check:
    def check(name: str, value: Any) -> None:
        if not _is_sequence(value) or not all(isinstance(one, str) for one in value) or len(value) > most:
            raise _refused(name, "an array of strings" + (f", at most {most}" if most < math.inf else ""))

    return check


def _mode(name: str, value: Any) -> None:
    if value not in ("write", "park", "follow"):
        raise _refused(name, "write, park or follow")


_PREFIX: Mapping[str, Check] = {
    "text": _string,
    "tokens": _tokens,
    "ids": _token_ids,
    "vocabulary": _string,
    "withheld": _string,
    "ends_in_word": _boolean,
    "asked_again": _boolean,
}
_ORDER: Mapping[str, Check] = {
    "prefix": _object,
    "wants": _strings(_MOST_WANTS),
    "classes": _strings(math.inf),
    "cap": _integer(1),
    "drafts": _integer(0),
    "may_be_saved": _boolean,
}
_SEED = _integer(-(2**63), 2**64 - 1)
_HOST: Mapping[str, Mapping[str, Check]] = {
    "answers": {"id": _string, "mode": _mode, "number": _tokens},
    "extend": {"prefix": _object, "number": _tokens},
    "prompt-size": {"messages": _messages, "within_s": _number(0, 86_400)},
    "log-probabilities": {"messages": _messages, "texts": _strings(math.inf)},
    "measurements": {
        "prompt_tokens": _token_ids,
        "depths": _token_ids,
        "decode_tokens": _integer(1, 1_000_000),
        "repeats": _integer(1, 1_000_000),
    },
    "drafts": {"id": _string, "seed": _SEED, "sampling": _object, "prompt_ids": _token_ids},
    "draft": {
        "number": _tokens,
        "keep": _tokens,
        "append": _token_ids,
        "count": _tokens,
        "stop_below": _number(0, 1),
    },
}
