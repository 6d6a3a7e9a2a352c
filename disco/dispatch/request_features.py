"""What dispatch needs to know about a request: its length and the features it needs of an endpoint. Numbers only.

Token counts come from an estimate that needs no tokenizer (see `estimate_tokens`). An error of the estimate can only
move a prompt across a threshold. The distributions that policies are fitted on must be counted in the same way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disco.candidate import PromptSize, Reach
from disco.request import Request

__all__ = ["TYPICAL_ANSWER_TOKENS", "Features", "estimate_tokens", "features_of"]

TYPICAL_ANSWER_TOKENS = 256
"""Assumed length of an answer where the caller set no limit, tokens; used to rank endpoints, not to bound answers."""

# Most tokenizers use about four Latin characters per token. For the other scripts, the number of non-ASCII UTF-8
# bytes is the one cheap measure that fits: 3 bytes are one CJK character, or one and a half Cyrillic ones.
_LATIN_CHARS_PER_TOKEN = 4
_OTHER_BYTES_PER_TOKEN = 3
# Role, separators and newlines that a chat template puts around every message, and the header it opens
# the answer with (4 and 3 in OpenAI's own counting recipe; ChatML is the same to within one).
_TOKENS_PER_MESSAGE = 4
_TOKENS_FOR_ANSWER_HEADER = 3
LEAST_PROMPT_TOKENS = _TOKENS_PER_MESSAGE + _TOKENS_FOR_ANSWER_HEADER
"""Of a request with one empty message, as `features_of` counts them."""
# OpenAI's token counts for a low-detail image and a 1024 x 1024 one; images are not decoded to find their size.
_TOKENS_PER_IMAGE_LOW = 85
_TOKENS_PER_IMAGE = 765
# About ten tokens per second of speech, at the 16 kB/s of an ordinary MP3 in base64.
_AUDIO_CHARS_PER_TOKEN = 2000

_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text"})
_PART_NEEDS = {
    "image_url": "images",
    "input_image": "images",
    "input_audio": "audio",
    "audio": "audio",
}
# Parameters of other vendors and of local servers that mean the same as `response_format`.
_STRUCTURE_KEYS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                   "grammar", "json_schema")  # fmt: skip
# Needs whose answers are valid only as a whole, or have more than one text: these never migrate.
_PINNED = frozenset({"tools", "json_schema", "n", "audio", "logprobs"})
_NO_NEEDS: frozenset[str] = frozenset()
# Parameters that every endpoint serves, or that do not change the answer itself. Any other parameter is a need under
# its own name: an endpoint must declare that it serves the parameter, since ignoring it would change the answer.
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
        class_tokens: length of the longest class, tokens, estimated; None where the answer is no class.
        needs: the features that the endpoint must serve: "tools", "json_schema", "images", "audio",
            "logprobs", "n", "logit_bias", "reasoning". A feature that disco does not know (such as a content part of
            a new type) is listed under its own name, so that only an endpoint with unrestricted features gets it.
        reach: how far the prompt may travel at most.
        stream: whether the caller reads the answer as it is written.
        deadline_s: seconds after the request by which the whole answer must be complete; None: no deadline.
        divided_at_tps: the slowest pace, tokens/s, at which an answer that two endpoints write may be shown; None:
            nothing would hide the hand-over from the reader, or the caller forbids one.
        heir_prompts: by device, the prompt that it would read as an heir, refined where it is: as the device counts it.
            Without the devices that have not counted it.
        counted: by endpoint, how long the prompt is with that endpoint's own tokenizer and template. Without those that
            have not counted it.
        refined_tokens: length of the prompt without the sentences that an heir need not read, tokens, estimated; None:
            the prompt is not refined.
        endpoint: the name of the only endpoint that may serve; None: any may.
        may_migrate: whether the answer may migrate; False with tools, structured output, several choices, audio or
            logprobs.
    """

    prompt_tokens: int
    max_tokens: int | None = None
    needs: frozenset[str] = _NO_NEEDS
    reach: Reach = "any"
    stream: bool = True
    may_migrate: bool = True
    endpoint: str | None = None
    deadline_s: float | None = None
    class_tokens: int | None = None
    divided_at_tps: float | None = None
    refined_tokens: int | None = None
    heir_prompts: Mapping[str, PromptSize] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)

    @property
    def expected_tokens(self) -> int:
        """Expected length of the answer, tokens: that of the longest class, else a typical one; at most the limit."""
        typical = self.class_tokens or TYPICAL_ANSWER_TOKENS
        return typical if self.max_tokens is None else min(self.max_tokens, typical)

    def prompt_tokens_at(self, endpoint: str) -> int:
        """Return the length of the prompt at an endpoint, tokens: as that counted it, else as estimated."""
        return self.counted.get(endpoint, self.prompt_tokens)

    @property
    def local_only(self) -> bool:
        """Whether the prompt must not leave this machine."""
        return self.reach == "device"


def features_of(
    request: Request, *, stream: bool, local_only: bool = False, reach: Reach = "any"
) -> Features:
    """Return the features of a request; takes a few microseconds for a short one.

    Args:
        request: the request, which is not changed.
        stream: whether the caller asked for a stream.
        local_only: whether the prompt must not leave this machine (reach "device").
        reach: how far the prompt may travel where `local_only` is False.
    """
    needs = _needs(request)
    return Features(
        prompt_tokens=_estimate(request),
        max_tokens=request.max_tokens,
        needs=needs,
        reach="device" if local_only else reach,
        stream=stream,
        may_migrate=not needs or needs.isdisjoint(_PINNED),
        deadline_s=request.timeouts.total_s,
        class_tokens=math.ceil(max(map(estimate_tokens, request.classes))) if request.classes else None,
    )


def estimate_tokens(text: str) -> float:
    """Estimate the tokens of a text without a tokenizer: one per 4 ASCII characters, one per 3 other UTF-8 bytes.

    So four Latin letters, one Chinese character, or one and a half Cyrillic letters count as one token.
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
    needs: set[str] = set(request.unusual)  # only an endpoint that takes everything is asked for such a value
    if request.params:
        usual = {name: value for name, value in request.params.items() if name not in request.unusual}
        _add_needs_of_params(usual, needs)
    for message in request.messages:
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            for part in content:
                if isinstance(part, Mapping):
                    kind = str(part.get("type", ""))
                    if kind not in _TEXT_PARTS:
                        # A type is a single word; anything else may be text that was put there by mistake.
                        named = kind if kind.isidentifier() else "part without a type"
                        needs.add(_PART_NEEDS.get(kind, named))
        # Only the chat template of a model with tools can render a conversation that contains calls.
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
