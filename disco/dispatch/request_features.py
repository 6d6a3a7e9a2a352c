"""What dispatch needs to know of a request: how long it is and what it asks of an endpoint. Numbers only.

Token counts come from an estimate that needs no tokenizer (see `estimate_tokens`). It only shifts one prompt to the
other side of a threshold: the distributions that policies are fitted on must be counted in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disco.plan import Reach
from disco.request import Request

__all__ = ["Features", "estimate_tokens", "features_of"]

# Most tokenizers spend about four Latin characters on a token. Bytes of non-ASCII UTF-8 are the one cheap
# measure that fits the other scripts: 3 bytes are one CJK character, one and a half Cyrillic ones.
_LATIN_CHARS_PER_TOKEN = 4
_OTHER_BYTES_PER_TOKEN = 3
# Role, separators and newlines that a chat template puts around every message, and the header it opens
# the answer with (4 and 3 in OpenAI's own counting recipe; ChatML is the same to within one).
_TOKENS_PER_MESSAGE = 4
_TOKENS_FOR_ANSWER_HEADER = 3
# OpenAI's prices for a low-detail image and a 1024 x 1024 one; what is inside is not decoded to find out.
_TOKENS_PER_IMAGE_LOW = 85
_TOKENS_PER_IMAGE = 765
# About ten tokens a second of speech, at the 16 kB/s of an ordinary MP3 in base64.
_AUDIO_CHARS_PER_TOKEN = 2000

_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text"})
_PART_NEEDS = {
    "image_url": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio": "audio",
}
# Bodies of other vendors and of local servers that mean the same as `response_format`.
_STRUCTURE_KEYS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                   "grammar", "json_schema")  # fmt: skip
# Answers that mean something only as a whole, or that have no single text: never moved in mid-sentence.
_PINNED = frozenset({"tools", "json_schema", "n", "audio", "logprobs"})
_NO_NEEDS: frozenset[str] = frozenset()
# Parameters that every endpoint serves, or that change nothing about the answer itself. Any other one is a need
# of its own name: an endpoint must say that it serves it, for a parameter that is ignored changes the answer.
_PLAIN_PARAMS = frozenset(
    """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    metadata min_p modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_retention reasoning reasoning_effort repeat_penalty response_format safety_identifier seed
    service_tier stop store temperature tool_choice tools top_k top_logprobs top_p user web_search_options
    """.split()  # noqa: SIM905 - forty lines otherwise
) | {*_STRUCTURE_KEYS}


@dataclass(frozen=True, slots=True)
class Features:
    """A request as policies see it.

    Attributes:
        prompt_tokens: length of the prompt with its template, tokens; estimated.
        max_tokens: limit of the answer, tokens; None when the caller set none.
        needs: what the endpoint must be able to do: "tools", "json_schema", "images", "audio",
            "logprobs", "n", "logit_bias", "reasoning". Anything disco does not know (a content part of a
            new type, say) stands here under its own name, so that only an endpoint whose features are
            not restricted gets it.
        reach: how far the prompt may travel, at most.
        stream: the caller reads the answer as it is written.
        may_migrate: the answer may be handed over in mid-sentence; False with tools, structured output,
            several choices, audio or logprobs.
    """

    prompt_tokens: int
    max_tokens: int | None = None
    needs: frozenset[str] = _NO_NEEDS
    reach: Reach = "any"
    stream: bool = True
    may_migrate: bool = True

    @property
    def local_only(self) -> bool:
        """The prompt must not leave this machine."""
        return self.reach == "device"


def features_of(
    request: Request, *, stream: bool, local_only: bool = False, reach: Reach = "any"
) -> Features:
    """Read the features off a request, in a few microseconds for a short one.

    Args:
        request: the request; it is not changed.
        stream: the caller asked for a stream.
        local_only: the prompt must not leave this machine: reach "device".
        reach: how far the prompt may travel otherwise.
    """
    needs = _needs(request)
    limit = request.max_tokens
    return Features(
        prompt_tokens=_estimate(request),
        max_tokens=limit if isinstance(limit, int) else None,  # what it is else, the endpoint refuses
        needs=needs,
        reach="device" if local_only else reach,
        stream=stream,
        may_migrate=not needs or needs.isdisjoint(_PINNED),
    )


def estimate_tokens(text: str) -> float:
    """Tokens of a text without a tokenizer: one per 4 ASCII characters, one per 3 other UTF-8 bytes.

    So four Latin letters, one Chinese character, or one and a half Cyrillic ones are a token.
    """
    if text.isascii():
        return len(text) / _LATIN_CHARS_PER_TOKEN
    ascii_chars = len(text.encode("ascii", "ignore"))
    other_bytes = len(text.encode("utf-8", "replace")) - ascii_chars
    return ascii_chars / _LATIN_CHARS_PER_TOKEN + other_bytes / _OTHER_BYTES_PER_TOKEN


def _estimate(request: Request) -> int:
    tokens = float(_TOKENS_FOR_ANSWER_HEADER)
    for message in request.messages:
        tokens += _TOKENS_PER_MESSAGE
        content = message.get("content")
        if isinstance(content, str):
            tokens += estimate_tokens(content)
        elif content is not None:
            tokens += _estimate_parts(content)
        if "tool_calls" in message:
            tokens += _estimate_json(message["tool_calls"])
    for key in ("tools", "functions"):
        if key in request.params:
            tokens += _estimate_json(request.params[key])
    return int(tokens + 0.5)


def _estimate_parts(parts: Sequence[Any]) -> float:
    tokens = 0.0
    for part in parts:
        if isinstance(part, str):
            tokens += estimate_tokens(part)
            continue
        if not isinstance(part, Mapping):
            continue
        need = _PART_NEEDS.get(part.get("type", ""))
        if need == "images":
            image = part.get("image_url")
            low = isinstance(image, Mapping) and image.get("detail") == "low"
            tokens += _TOKENS_PER_IMAGE_LOW if low else _TOKENS_PER_IMAGE
        elif need == "audio":
            audio = part.get("input_audio")
            data = audio.get("data", "") if isinstance(audio, Mapping) else ""
            tokens += len(data) / _AUDIO_CHARS_PER_TOKEN
        else:
            text = part.get("text") or part.get("refusal")
            if isinstance(text, str):
                tokens += estimate_tokens(text)
    return tokens


def _estimate_json(value: Any) -> float:
    return len(json.dumps(value, default=str)) / _LATIN_CHARS_PER_TOKEN if value else 0.0


def _needs(request: Request) -> frozenset[str]:
    needs: set[str] = set()
    if request.params:
        _add_needs_of_params(request.params, needs)
    for message in request.messages:
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            for part in content:
                if isinstance(part, Mapping):
                    kind = str(part.get("type", ""))
                    if kind not in _TEXT_PARTS:
                        # A type is a word; anything else may be text that got there by mistake.
                        named = kind if kind.isidentifier() else "part without a type"
                        needs.add(_PART_NEEDS.get(kind, named))
        # A conversation with calls in it can only be templated by a model that knows tools.
        if message.get("role") in ("tool", "function") or message.get("tool_calls"):
            needs.add("tools")
        if message.get("audio"):
            needs.add("audio")
    return frozenset(needs) if needs else _NO_NEEDS


def _add_needs_of_params(params: Mapping[str, Any], needs: set[str]) -> None:
    needs.update(name for name in params if name not in _PLAIN_PARAMS and params[name] is not None)
    if params.get("tools") or params.get("functions"):
        needs.add("tools")
    response_format = params.get("response_format")
    if isinstance(response_format, Mapping):
        if response_format.get("type", "text") != "text":
            needs.add("json_schema")
    elif isinstance(response_format, type):  # a pydantic model, as the SDK's parse() takes it
        needs.add("json_schema")
    if any(params.get(key) for key in _STRUCTURE_KEYS):
        needs.add("json_schema")
    if params.get("logprobs") or params.get("top_logprobs"):
        needs.add("logprobs")
    if (params.get("n") or 1) > 1:
        needs.add("n")
    if params.get("logit_bias"):
        needs.add("logit_bias")
    if params.get("audio") or "audio" in (params.get("modalities") or ()):
        needs.add("audio")
    if params.get("reasoning") or params.get("reasoning_effort") not in (None, "none"):
        needs.add("reasoning")
    if params.get("web_search_options") is not None:  # an empty object asks for a search too
        needs.add("web_search")
