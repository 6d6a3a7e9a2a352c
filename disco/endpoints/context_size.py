"""How long the context of a local model is, and how many answers it writes at once.

By default a model gets the context that it was trained with, as far as half of the free memory holds its cache, and
then as many slots as still fit. A cache takes its memory when it is made, whether it is used or not; so disco's engine
begins with a small one, and makes a larger one when an answer needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from disco.endpoints.gguf_header import Header
from disco.errors import ConfigurationError

__all__ = [
    "BUFFERS_BYTES",
    "LEAST_CONTEXT_TOKENS",
    "ContextSize",
    "cache_bytes_per_token",
    "context_size",
    "first_tokens",
]

LEAST_CONTEXT_TOKENS: Final = 4096
"""A model gets at least so much of its trained context, tokens, however little memory is free."""
BUFFERS_BYTES: Final = 150 * 2**20
"""llama.cpp's own buffers, and a Python; measured with SmolLM2-135M (docs/how-to/attach.md)."""
_FIRST_TOKENS: Final = 4096  # of all slots together
_LEAST_FIRST_TOKENS: Final = 512
_MOST_SLOTS: Final = 4  # the answers of one person's programs; a server for more is told its slots
_SHARE: Final = 0.5  # of the free memory; the rest is for the user's other programs
_PAD_TOKENS: Final = 256  # llama.cpp rounds a context up to a multiple
_BYTES: Final = 2  # of a number in the cache: llama.cpp keeps keys and values as f16


@dataclass(frozen=True, slots=True)
class ContextSize:
    """How long answers of a model may become, and how many it writes at once.

    Attributes:
        context_tokens: prompt and answer together, of each slot.
        slots: answers that are written at once.
        by_memory: the free memory holds less than the context that the model was trained with.
    """

    context_tokens: int
    slots: int
    by_memory: bool = False


def context_size(
    header: Header,
    *,
    file_bytes: int,
    free_bytes: int | None,
    context_tokens: int | None = None,
    slots: int | None = None,
) -> ContextSize:
    """Return the context and the slots of a model.

    Args:
        header: of the model's file.
        file_bytes: length of that file, which is in memory, too.
        free_bytes: memory that programs may still take; None: not known, so `LEAST_CONTEXT_TOKENS` in one slot.
        context_tokens: what the user asks for, taken as it is; None: the rule of this module.
        slots: what the user asks for, taken as it is; None: the rule of this module.

    Raises:
        ConfigurationError: more context is asked for than the model was trained with. Beyond that, a model writes
            nonsense, and llama.cpp's own server silently gives no more.
    """
    trained = header.trained_context_tokens
    if context_tokens is not None and trained is not None and context_tokens > trained:
        raise ConfigurationError(
            f"context_tokens is {context_tokens:,}, but this model was trained with {trained:,}, and writes nonsense "
            f"beyond them. Ask for at most {trained:,}, or name a model with a longer context."
        )
    each = cache_bytes_per_token(header)
    room: float = 0 if free_bytes is None else max(0, free_bytes - file_bytes - BUFFERS_BYTES) * _SHARE
    longest = trained or LEAST_CONTEXT_TOKENS
    context, by_memory = context_tokens, False
    if context is None:
        held = longest if each == 0 else int(room / (each * (slots or 1)))
        held = held // _PAD_TOKENS * _PAD_TOKENS
        context = min(longest, max(held, LEAST_CONTEXT_TOKENS))
        by_memory = context < longest
    if slots is None:
        held = _MOST_SLOTS if each == 0 else int(room / (each * context))
        slots = max(1, min(held, _MOST_SLOTS))
    return ContextSize(context, slots, by_memory)


def first_tokens(header: Header, size: ContextSize) -> int:
    """Return how many tokens each slot of a model's first context has room for: what short conversations need."""
    # The rotations of these models are others in a context that is longer than this, so no cache can move there.
    if (
        f"{header.metadata.get('general.architecture')}.rope.scaling.original_context_length"
        in header.metadata
    ):
        return size.context_tokens
    return min(size.context_tokens, max(_FIRST_TOKENS // size.slots, _LEAST_FIRST_TOKENS))


def cache_bytes_per_token(header: Header) -> int:
    """Return what the cache takes for each token of context, bytes; 0 where the header does not tell.

    A key and a value for every layer and key-value head. Layers that keep less than that (a sliding window, a recurrent
    state) are counted as if they kept all.
    """
    name = header.metadata.get("general.architecture")

    def entry(key: str) -> int:
        value = header.metadata.get(f"{name}.{key}")
        return value if isinstance(value, int) else 0

    heads, layers = entry("attention.head_count"), entry("block_count")
    usual = entry("embedding_length") // heads if heads else 0
    key, value = entry("attention.key_length") or usual, entry("attention.value_length") or usual
    of_layers = header.metadata.get(f"{name}.attention.head_count_kv")
    if isinstance(of_layers, tuple):  # one number for each layer; 0 for one that keeps no keys
        return sum(of_layers) * (key + value) * _BYTES
    return layers * (entry("attention.head_count_kv") or heads) * (key + value) * _BYTES
