"""Tiny models of random weights, as GGUF files: a few hundred kilobytes that load in milliseconds."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import gguf
import numpy as np

__all__ = ["tiny_llama"]

F32 = gguf.GGMLQuantizationType.F32
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_llama(
    path: Path,
    layers: int = 4,
    hidden: int = 64,
    *,
    architecture: str = "llama",
    vocabulary: int = 96,
    heads: int = 4,
    tied: bool = True,
    rope_freqs: bool = False,
    quantised: bool = False,
    context_tokens: int = 512,
    seed: int = 7,
    scale: float = 1.0,
    writes: bool = False,
    ends: bool = True,
    quiet_from: int | None = None,
    more: dict[str, Any] | None = None,
    tensors: dict[str, tuple[int, ...]] | None = None,
) -> Path:
    """Write a model; qwen2 gets biases in its attention, qwen3 norms of queries and keys.

    Args:
        path: the file.
        layers: how many.
        hidden: length of a state; a multiple of 32.
        architecture: llama, qwen2 or qwen3; another name is only written down.
        vocabulary: how many tokens, at least 40: the space, small letters and digits, and words that no text has.
        heads: of the queries; keys and values have half as many.
        tied: whether the embedding is the head.
        rope_freqs: whether there is a tensor of factors for the rotation.
        quantised: matrices as Q8_0, all else as F32.
        context_tokens: that it says it was trained with.
        seed: of the weights.
        scale: of the feed-forward's weights; a large one lets its numbers overflow.
        writes: the tokens are bytes, so that it takes any text; its answers are of letters, digits and punctuation, and
            end now and then, unless `ends` is False. It has a chat template. `vocabulary` and `tied` are ignored.
        quiet_from: the layers from this one on change little, so that the first ones alone often choose the same token.
        more: further metadata: whole numbers, lists of them, floats or texts.
        tensors: further tensors, random, by name with numpy's shape.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    head, kv = hidden // heads, hidden // heads * (heads // 2)
    writer.add_name("Tiny")
    writer.add_block_count(layers)
    writer.add_context_length(context_tokens)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads // 2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in (more or {}).items():
        kinds = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        kinds[type(value)](name, value)
    writer.add_tokenizer_model("llama")
    characters = ["\u2581", *string.ascii_lowercase, *string.digits]
    words = [one.encode() for one in characters]
    words += [b"\xe2\x96\x81w%d" % number for number in range(3 + len(words), vocabulary)]
    kinds_of = [1] * len(words)
    if writes:
        printable = [bytes([one]) for one in range(33, 127)] + [b"\xe2\x96\x81"]  # the last is the space
        words = [b"<0x%02X>" % one for one in range(256)] + printable
        kinds_of = [6] * 256 + [1] * len(printable)
        tied, vocabulary = False, 3 + len(words)
        writer.add_chat_template(TEMPLATE)
        writer.add_add_space_prefix(False)
    writer.add_token_list([b"<unk>", b"<s>", b"</s>", *words])
    writer.add_token_scores([float(-n) for n in range(vocabulary)])
    writer.add_token_types([2, 3, 3, *kinds_of])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name: str, *shape: int, around: float = 0.0, by: float = 1.0) -> None:
        data = (around + rng.normal(0, 0.2 * by, shape)).astype(np.float32)
        quiet = quiet_from is not None and name in {
            f"blk.{number}.{part}.weight"
            for number in range(quiet_from, layers)
            for part in ("attn_output", "ffn_down")
        }
        if quiet:
            data *= 0.2
        if writes and name == "output.weight":
            data[[0, 1, *range(3, 259), *([] if ends else [2])]] = 0.0
        if quantised and len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data, raw_dtype=F32)

    add("token_embd.weight", vocabulary, hidden)
    add("output_norm.weight", hidden, around=1.0)
    if not tied:
        add("output.weight", vocabulary, hidden)
    if rope_freqs:
        add("rope_freqs.weight", head // 2, around=3.0)
    for number in range(layers):
        layer = f"blk.{number}."
        add(f"{layer}attn_norm.weight", hidden, around=1.0)
        add(f"{layer}ffn_norm.weight", hidden, around=1.0)
        for name, outputs in (("q", hidden), ("k", kv), ("v", kv)):
            add(f"{layer}attn_{name}.weight", outputs, hidden)
            if architecture == "qwen2":
                add(f"{layer}attn_{name}.bias", outputs)
        if architecture == "qwen3":
            add(f"{layer}attn_q_norm.weight", head, around=1.0)
            add(f"{layer}attn_k_norm.weight", head, around=1.0)
        add(f"{layer}attn_output.weight", hidden, hidden)
        for name, shape in (
            ("gate", (2 * hidden, hidden)),
            ("up", (2 * hidden, hidden)),
            ("down", (hidden, 2 * hidden)),
        ):
            add(f"{layer}ffn_{name}.weight", *shape, by=scale)
    for name, given in (tensors or {}).items():
        add(name, *given)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
