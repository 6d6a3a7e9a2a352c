"""What a request may ask of a model on this machine: what is served, what is a hint, and what is refused by name.

The one table of it, for the engine and for llama-server alike; docs/reference/local-model.md shows it to users. A hint
may be ignored: the answer is a right one without it. A demand may not: where it cannot be kept exactly, the request is
refused, with the parameter's name and with what would serve it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, Final

from disco.endpoints.llamacpp.constraints import accepted_schema
from disco.endpoints.llamacpp.json_schema import SchemaError, check_for_llama_server
from disco.endpoints.llamacpp.refusals import malformed, unserved
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools, read_tools
from disco.endpoints.runtimes import Program
from disco.request import Prefix, Request

__all__ = [
    "FEATURES",
    "Sampling",
    "lacks",
    "needs_compiling",
    "plain_params",
    "read_params",
    "refuse_costly_schemas",
    "refuse_unserved",
    "template_variables",
    "unserved_params",
]

MOST_LOGPROBS = 20  # the API's own limit
MOST_STOPS = 16  # the API's own limit is 4; agents' prompts have some more
MOST_STOP_CHARS = 1000  # of one of them
MOST_TOOLS = 128  # the API's own limit
MOST_BIASES = 10_000

# Parameters that change how the answer is made. Values that have no effect are served too.
_SERVED: Final = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_p",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "repeat_penalty",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    }
)
# Of them, the chat template is given those that say how much the model is to think (`template_variables`). The others
# are about accounting, caching and speed, and have no meaning here.
_HINTS: Final = frozenset(
    {
        "cache_prompt",
        "chat_template_kwargs",
        "keep_alive",
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "ttl",
        "user",
        "verbosity",
    }
)
# Other servers' names of what is served; `plain_params` translates them.
_SCHEMA_NAMES: Final = ("guided_json", "json_schema", "structured_outputs")
_NO_SCHEMA: Final[tuple[Any, ...]] = (None, {}, "")
_OTHER_NAMES: Final = frozenset({"repetition_penalty", *_SCHEMA_NAMES})

_NOTHING_ASKED: Final[Mapping[str, tuple[Any, ...]]] = {
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "n": (1,),
}
_BY_A_SCHEMA: Final = "ask for a JSON schema (response_format)"
_INSTEAD: Final[Mapping[str, str]] = {
    "function_call": "use tools and tool_choice",
    "functions": "use tools",
    "grammar": _BY_A_SCHEMA,
    "guided_choice": f"{_BY_A_SCHEMA} with an enum",
    "guided_grammar": _BY_A_SCHEMA,
    "guided_regex": f"{_BY_A_SCHEMA} with a pattern",
    "structured_outputs": f"give it nothing but json, or {_BY_A_SCHEMA}",
    "n": "ask the client, which writes one answer after another",
}

FEATURES: Final = (
    frozenset({"json_schema", "logit_bias", "logprobs", "reasoning", "tools"}) | _HINTS | _OTHER_NAMES
)
"""What a model on this machine serves, as `Capabilities.features` names it."""

_LACKS: Final[Mapping[str, str]] = {
    "audio": "the model on this machine reads and writes text",
    "web_search": "only a server searches the web",
}
_NO_IMAGES: Final[Mapping[Program, str]] = {
    "engine": 'disco\'s own engine reads text; runtime="llama-server" with mmproj="mmproj.gguf" sees images',
    "llama-server": 'the model has no projector for images; mmproj="mmproj.gguf" names one',
}


def lacks(program: Program, *, sees: bool = False) -> Mapping[str, str]:
    """Return why a model on this machine does not serve a feature (`Capabilities.lacks`).

    Args:
        program: what runs it.
        sees: whether it has a projector for images.
    """
    return _LACKS if sees else {**_LACKS, "images": _NO_IMAGES[program]}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. The defaults are llama.cpp's own.

    Attributes:
        temperature: 0 picks the most probable token.
        schema: the schema that the answer must be valid under, as `accepted_schema` returns it; None for free text.
        tools: the functions that may be called; None where there are none.
        top_logprobs: alternatives reported for each token; None when log probabilities are not asked for.
        max_tokens: length limit of the whole answer; None for no limit but the context.
        template: variables for the chat template, besides the conversation.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    schema: str | None = field(default=None, repr=False)
    tools: Tools | None = None
    top_logprobs: int | None = None
    stop: tuple[str, ...] = field(default=(), repr=False)
    max_tokens: int | None = None
    template: Mapping[str, Any] = field(default_factory=dict, repr=False)


def unserved_params(params: Mapping[str, Any]) -> list[str]:
    """Return the given parameters that the local model cannot serve and must not ignore, by name.

    Args:
        params: parameters of a request, by name.
    """
    names = []
    for name, value in params.items():
        if value is None or value in _NOTHING_ASKED.get(name, ()):
            continue
        is_served = name in _SERVED or name in _HINTS or name in _OTHER_NAMES
        if name in _SCHEMA_NAMES:
            is_served = value in _NO_SCHEMA or _schema_in(name, value) is not None
        if not is_served or name in _NOTHING_ASKED:
            names.append(name)
    return sorted(names)


def refuse_unserved(params: Mapping[str, Any], *, endpoint: str) -> None:
    """Raise a failure that names the parameters which a model on this machine cannot serve and must not ignore.

    Args:
        params: parameters of a request, by name.
        endpoint: the endpoint's name, for the message.

    Raises:
        EndpointFailure: UNSERVED: another endpoint may serve the request.
    """
    if names := unserved_params(params):
        instead = dict.fromkeys(_INSTEAD[name] for name in names if name in _INSTEAD)
        raise unserved(
            f"Endpoint {endpoint!r}, a model on this machine, does not serve {', '.join(names)}: "
            f"{''.join(f'{one}, ' for one in instead)}leave it out, or configure a server that serves it.",
            names[0],
        )
    _refuse_too_much(params, endpoint)


def refuse_costly_schemas(params: Mapping[str, Any], *, endpoint: str) -> None:
    """Raise where llama-server, which has no such limits, would be kept from all others by a request's schemas.

    Args:
        params: parameters of a request, by name.
        endpoint: the endpoint's name, for the message.

    Raises:
        EndpointFailure: UNSERVED: another endpoint may serve the request. BAD_REQUEST: its format is none.
    """
    form, tools = params.get("response_format"), params.get("tools")
    if isinstance(form, Mapping) and form.get("type", "text") not in _FORMATS:
        raise malformed(f"Endpoint {endpoint!r} does not understand this response_format.", "response_format")
    schemas = []
    if isinstance(form, Mapping):
        inner = form.get("json_schema")
        schemas += [("response_format", form.get("schema"))]  # llama-server's own way
        schemas += [("response_format", inner.get("schema"))] if isinstance(inner, Mapping) else []
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        schemas += [("tools", function.get("parameters"))] if isinstance(function, Mapping) else []
    for name, schema in schemas:
        if isinstance(schema, Mapping):
            try:
                check_for_llama_server(schema)
            except SchemaError as exc:
                raise unserved(
                    f"Endpoint {endpoint!r} (llama-server) cannot keep to the JSON schema in {name}: {exc}.",
                    name,
                ) from exc


def _refuse_too_much(params: Mapping[str, Any], endpoint: str) -> None:
    """Raise where a parameter is so large that one request would take a model from all others."""
    stop = params.get("stop")
    several = stop if isinstance(stop, list | tuple) else (stop,)
    longest = max((len(text) for text in several if isinstance(text, str)), default=0)
    sizes = [
        ("stop", len(several), MOST_STOPS, "texts"),
        ("stop", longest, MOST_STOP_CHARS, "characters in one text"),
    ]
    for name, most, what in (("tools", MOST_TOOLS, "tools"), ("logit_bias", MOST_BIASES, "tokens")):
        value = params.get(name)
        sizes += [(name, len(value), most, what)] if isinstance(value, Sized) else []
    for name, has, most, what in sizes:
        if has > most:
            raise unserved(
                f"Endpoint {endpoint!r} (llama.cpp) serves at most {most:,} {what} in {name}, not {has:,}.",
                name,
            )


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked of the model, under OpenAI's and llama.cpp's names: no hints, no nulls, no other names.

    Args:
        params: those of a request that `refuse_unserved` has let pass.

    Raises:
        EndpointFailure: BAD_REQUEST where the request asks for two different structures of its answer.
    """
    plain = {name: value for name, value in params.items() if value is not None and name in _SERVED}
    if "repeat_penalty" not in plain and params.get("repetition_penalty") is not None:
        plain["repeat_penalty"] = params["repetition_penalty"]
    asked = [name for name in _SCHEMA_NAMES if params.get(name) not in _NO_SCHEMA]
    if not asked:
        return plain
    if len(asked) > 1 or plain.get("response_format", _ANY_TEXT) != _ANY_TEXT:
        raise malformed(
            "The request says in two ways what its answer must look like: leave one out.", asked[0]
        )
    schema = _schema_in(asked[0], params[asked[0]])
    plain["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return plain


_FORMATS: Final = ("text", "json_object", "json_schema")
_ANY_TEXT: Final = {"type": "text"}


def _schema_in(name: str, value: Any) -> Mapping[str, Any] | None:
    """Return the schema in a parameter of another server's; None where it asks for something else."""
    if name == "structured_outputs":  # vLLM's
        if not isinstance(value, Mapping):
            return None
        given = {key: part for key, part in value.items() if part is not None and part is not False}
        if given == {"json_object": True}:
            return {"type": "object"}
        value = given.pop("json", None)
        if given:
            return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def template_variables(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a request says to the chat template: `chat_template_kwargs`, and how much the model is to think.

    Templates that know neither `reasoning_effort` nor `enable_thinking` ignore them. The conversation and its tools
    are no variables of the request's.

    Args:
        params: the request's.
    """
    reasoning = params.get("reasoning")
    effort = params.get("reasoning_effort") or (isinstance(reasoning, Mapping) and reasoning.get("effort"))
    variables: dict[str, Any] = {}
    if effort == "none":
        variables["enable_thinking"] = False
    elif isinstance(effort, str):
        variables["reasoning_effort"] = effort
    given = params.get("chat_template_kwargs")
    if isinstance(given, Mapping):
        variables |= {str(name): value for name, value in given.items() if name not in _OF_CONVERSATION}
    if not isinstance(variables.get("enable_thinking", False), bool):
        del variables["enable_thinking"]  # llama-server refuses the request for it
    return variables


_OF_CONVERSATION: Final = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


def needs_compiling(request: Request) -> bool:
    """Return whether the request has schemas to compile, which may take about a second."""
    names = ("tools", "response_format", *_SCHEMA_NAMES)
    return any(request.params.get(name) for name in names)


def read_params(
    request: Request, prefix: Prefix, *, endpoint: str, check: Callable[[], None] | None = None
) -> Sampling:
    """Translate a request's parameters.

    Args:
        request: its `params`.
        prefix: the answer so far.
        endpoint: the endpoint's name, for messages.
        check: called while schemas are read; an exception that it raises stops the reading and passes through.

    Raises:
        EndpointFailure: UNSERVED for a request that another endpoint may serve, BAD_REQUEST for a malformed one.
    """
    refuse_unserved(request.params, endpoint=endpoint)
    params = plain_params(request.params)
    schema = _schema(params.get("response_format"), endpoint, check)
    tools = read_tools(params, endpoint=endpoint, check=check)
    if prefix and (schema is not None or (tools is not None and tools.required)):
        raise unserved(f"Endpoint {endpoint!r} cannot continue an answer with structured output.")
    given = {name: _number(name, params[name], made, endpoint) for name, made in _NUMBERS if name in params}
    bias = _number("logit_bias", params.get("logit_bias", {}), _biases, endpoint)
    max_tokens = (
        None if request.max_tokens is None else _number("max_tokens", request.max_tokens, int, endpoint)
    )
    top_logprobs = _number("top_logprobs", params.get("top_logprobs", 0), int, endpoint)
    if not 0 <= top_logprobs <= MOST_LOGPROBS:
        raise malformed(f"top_logprobs must lie between 0 and {MOST_LOGPROBS}.", "top_logprobs")
    stop = params.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(text, str) for text in stops):
        raise malformed("stop must be a text or a list of texts.", "stop")
    return Sampling(
        **given,
        logit_bias=bias,
        schema=schema,
        tools=tools,
        top_logprobs=top_logprobs if params.get("logprobs") else None,
        stop=request.stops,
        max_tokens=max_tokens,
        template=template_variables(request.params),
    )


_NUMBERS: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    *((name, float) for name in ("temperature", "top_p", "min_p")),
    *((name, float) for name in ("frequency_penalty", "presence_penalty", "repeat_penalty")),
    *((name, int) for name in ("top_k", "seed")),
)


def _number(name: str, value: Any, made: Callable[[Any], Any], endpoint: str) -> Any:
    try:
        return made(value)
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise malformed(f"Endpoint {endpoint!r}: {name} is not a number.", name) from exc


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), float(bias)) for token, bias in value.items())


def _schema(response_format: Any, endpoint: str, check: Callable[[], None] | None) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return accepted_schema({"type": "object"})
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
        if isinstance(schema, Mapping):
            try:
                return accepted_schema(schema, check=check)
            except SchemaError as exc:
                raise unserved(
                    f"Endpoint {endpoint!r} (llama.cpp) cannot keep to this JSON schema: {exc}.",
                    "response_format",
                ) from exc
    raise malformed(f"Endpoint {endpoint!r} does not understand this response_format.", "response_format")
