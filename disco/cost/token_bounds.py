"""Upper bounds of prompt lengths, in tokens; `dispatch.request_features` has estimates instead.

No tokenizer in use makes more tokens of a text than it has bytes in UTF-8, and a chat template adds less to a message
than JSON does. Ordinary text has a quarter to a third as many tokens; the difference is released as soon as the true
number is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from disco.request import Prefix, Request

__all__ = ["MOST_PROOF", "most_prefix_tokens", "most_prompt_tokens"]

MOST_PROOF = 2560, 896
"""The most tokens that an attempt reads and writes to prove that its endpoint continues, besides prompt and answer.

That is: a probe of four short requests, an instruction, and the words that it quotes.
"""

# Header of the answer, a system message that a template brings along, and what a server adds for its tools.
_FOR_REQUEST = 128
_FOR_MESSAGE = 16
_FOR_FIELD = 4  # quotes, colon, comma
_FOR_SCALAR = 24  # the longest number JSON writes
# The largest image on the OpenAI model that charges most for one: 2,833 tokens and eight tiles of 5,667.
_FOR_IMAGE = 48_169
# Ten tokens per second of speech, at the 750 bytes/s of the codec with the lowest bit rate, in base64.
_AUDIO_CHARS_PER_TOKEN = 100

_IMAGES = frozenset({"image_url", "input_image"})
_AUDIO = frozenset({"input_audio", "audio"})
# Parameters that shape the answer and are not part of what the model reads.
_UNREAD = frozenset(
    """
    logit_bias logprobs max_completion_tokens max_tokens metadata min_p n seed stop store stream_options temperature
    top_k top_logprobs top_p user
    """.split()  # noqa: SIM905 - sixteen lines otherwise
)


def most_prompt_tokens(request: Request) -> int:
    """Return an upper bound of the prompt's tokens, with its chat template, tools and schemas.

    Text, images and audio are bounded. What a server adds by itself (a web search, a stored prompt) is not.
    """
    read = {name: value for name, value in request.params.items() if name not in _UNREAD}
    own = _FOR_REQUEST + _FOR_MESSAGE * len(request.messages) + request.added_tokens
    return own + _most(list(request.messages)) + _most(read)


def most_prefix_tokens(prefix: Prefix) -> int:
    """Return an upper bound of the prefix's tokens."""
    return len(prefix.text.encode("utf-8", "surrogatepass"))


def _most(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping):
        kind = value.get("type")
        if kind in _IMAGES:
            return _FOR_IMAGE
        if kind in _AUDIO:
            return len(str(value)) // _AUDIO_CHARS_PER_TOKEN + _FOR_SCALAR
        return sum(_most(name) + _most(item) + _FOR_FIELD for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(_most(item) + _FOR_FIELD for item in value)
    return _FOR_SCALAR
