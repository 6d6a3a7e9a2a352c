"""Checks that a shared object is the llama.cpp that `declarations` describes, by a model whose logits are known.

A declaration that does not fit shows in no error: a flag is read as false, a number lands in another field, or memory
is overwritten. So the library is asked for what it should know: its structures' defaults; sizes and flags of a context,
as it understood them; and the logits of a model with one layer, which are worked out by hand.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from disco.endpoints.llamacpp.model.declarations import STRUCTURES, WheelLibrary

__all__ = ["DoesNotFit", "check"]

_HIDDEN: Final = 32
_WORDS: Final = ("<unk>", "<s>", "</s>", "\u2581", *"abcdefgh")
_TEMPLATE: Final = "{{ messages }}"
_TEXTS: Final = ("ab", "dg")  # of two sequences
_OFF_BY: Final = 0.01  # what a cache of 16 bits may change in a logit; the greatest is 3


class DoesNotFit(Exception):
    """The library is not as declared; the message says what differs."""


def check(library: WheelLibrary) -> None:
    """Compare a library with what is declared. Takes about 10 ms; its backend must have been started.

    Raises:
        DoesNotFit: something differs. A library that fits even less may end the process.
    """
    _check_defaults(library)
    folder = Path(tempfile.mkdtemp(prefix="disco-"))
    file = folder / "known.gguf"
    try:
        file.write_bytes(b"".join(_model_file()))
        _check_model(library, file)
    finally:
        file.unlink(missing_ok=True)
        folder.rmdir()


def _check_defaults(library: WheelLibrary) -> None:
    for name, structure in STRUCTURES.items():
        defaults = getattr(structure, "DEFAULTS", None)
        if defaults is None:
            continue
        given = getattr(library, name.replace("_params", "_default_params"))()
        for field, *_ in structure._fields_:
            value = getattr(given, field)
            if field not in defaults and not value:  # a pointer, a function or a number: none
                continue
            if value != defaults.get(field):
                raise DoesNotFit(f"the default of {field} in {name} is {value}, not {defaults.get(field, 0)}")


def _check_model(library: WheelLibrary, file: Path) -> None:
    told: list[float] = []
    lib: Any = library

    def on_progress(part: float, _data: object) -> bool:
        told.append(part)
        return True

    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    progress = lib.llama_progress_callback(on_progress)
    params.progress_callback = progress
    model = lib.llama_model_load_from_file(os.fsencode(file), params)
    if not model:
        raise DoesNotFit("a model that is known to be whole is not loaded")
    try:
        _expect("llama_model_load_from_file's progress", told[-1:], [1.0])
        vocab = lib.llama_model_get_vocab(model)
        _expect("llama_vocab_n_tokens", lib.llama_vocab_n_tokens(vocab), _HIDDEN)
        _expect("llama_model_n_ctx_train", lib.llama_model_n_ctx_train(model), 1024)
        _expect("llama_model_chat_template", lib.llama_model_chat_template(model, None), _TEMPLATE.encode())
        prompts = [_tokens(lib, vocab, text) for text in _TEXTS]
        _expect("llama_tokenize", prompts, [[_WORDS.index(one) for one in text] for text in _TEXTS])
        _check_context(lib, model, prompts)
    finally:
        lib.llama_model_free(model)


def _tokens(lib: Any, vocab: Any, text: str) -> list[int]:
    room = (lib.llama_token * 8)()
    count = lib.llama_tokenize(vocab, text.encode(), len(text), room, len(room), False, False)
    return list(room[: max(count, 0)])


def _check_context(lib: Any, model: Any, prompts: Sequence[Sequence[int]]) -> None:
    params = lib.llama_context_default_params()
    # Each differs from the default and from the others.
    wanted = {
        "n_ctx": 1024,
        "n_batch": 96,
        "n_ubatch": 64,
        "n_seq_max": 2,
        "n_threads": 2,
        "n_threads_batch": 1,
    }
    for name, value in wanted.items():
        setattr(params, name, value)
    params.kv_unified, params.offload_kqv = False, False
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise DoesNotFit("a context of 1,024 tokens cannot be made")
    try:
        for name, value in wanted.items():
            _expect(f"llama_{name}", getattr(lib, f"llama_{name}")(context), value)
        # Behind kv_unified, the last of the flags: with a common cache it would be all of the context.
        _expect("llama_n_ctx_seq", lib.llama_n_ctx_seq(context), 512)
        _check_logits(lib, context, prompts)
    finally:
        lib.llama_free(context)


def _check_logits(lib: Any, context: Any, prompts: Sequence[Sequence[int]]) -> None:
    ids = [token for prompt in prompts for token in prompt]
    places = [place for prompt in prompts for place in range(len(prompt))]
    last = [place == len(prompt) - 1 for prompt in prompts for place in range(len(prompt))]
    numbers = (lib.llama_seq_id * len(prompts))(*range(len(prompts)))
    one, pointer = ctypes.sizeof(lib.llama_seq_id), ctypes.POINTER(lib.llama_seq_id)
    whose = [
        ctypes.cast(ctypes.addressof(numbers) + one * slot, pointer)
        for slot, prompt in enumerate(prompts)
        for _ in prompt
    ]
    count = len(ids)
    batch = lib.llama_batch()
    batch.n_tokens = count
    batch.token, batch.pos = (lib.llama_token * count)(*ids), (lib.llama_pos * count)(*places)
    batch.n_seq_id, batch.seq_id = (ctypes.c_int32 * count)(*[1] * count), (pointer * count)(*whose)
    batch.logits = (ctypes.c_int8 * count)(*last)
    _expect("llama_decode", lib.llama_decode(context, batch), 0)
    end = -1
    for slot, prompt in enumerate(prompts):
        end += len(prompt)
        found = lib.llama_get_logits_ith(context, end)[:_HIDDEN]
        if max(abs(a - b) for a, b in zip(found, _logits(prompt), strict=True)) > _OFF_BY:
            raise DoesNotFit(f"the logits of a known model are others in sequence {slot}")
    memory = lib.llama_get_memory(context)
    found = [lib.llama_memory_seq_pos_max(memory, slot) for slot in range(len(prompts))]
    _expect("llama_memory_seq_pos_max", found, [len(prompt) - 1 for prompt in prompts])


def _expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise DoesNotFit(f"{what} gives {found}, not {wanted}")


def _logits(prompt: Sequence[int]) -> list[float]:
    """Return the known model's logits behind a prompt.

    Token n is the unit vector n, and so is its row of the head. All tokens attend to all tokens before them alike, for
    queries are zero; values are the normed vectors themselves. The feed-forward adds nothing.
    """
    state = [0.0] * _HIDDEN
    state[prompt[-1]] += 1.0
    for token in prompt:
        state[token] += math.sqrt(_HIDDEN) / len(prompt)
    size = math.sqrt(sum(value * value for value in state) / _HIDDEN)
    return [value / size for value in state]


# The file, in the format that `gguf_header` reads


def _model_file() -> Iterator[bytes]:
    unit = [float(row == column) for row in range(_HIDDEN) for column in range(_HIDDEN)]
    ones, zeros = [1.0] * _HIDDEN, [0.0] * (_HIDDEN * _HIDDEN)
    tensors = {
        "token_embd.weight": unit,
        "output_norm.weight": ones,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": zeros,
        "blk.0.attn_k.weight": zeros,
        "blk.0.attn_v.weight": unit,
        "blk.0.attn_output.weight": unit,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": zeros,
        "blk.0.ffn_up.weight": zeros,
        "blk.0.ffn_down.weight": zeros,
    }
    words = [*_WORDS, *(f"<{number}>" for number in range(len(_WORDS), _HIDDEN))]
    entries = {
        "general.architecture": _string("llama"),
        "llama.context_length": _number(1024),
        "llama.embedding_length": _number(_HIDDEN),
        "llama.block_count": _number(1),
        "llama.feed_forward_length": _number(_HIDDEN),
        "llama.attention.head_count": _number(1),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", _FLOAT, 1e-6),
        "tokenizer.chat_template": _string(_TEMPLATE),
        "tokenizer.ggml.model": _string("llama"),
        "tokenizer.ggml.add_space_prefix": struct.pack("<I?", _BOOL, False),
        "tokenizer.ggml.tokens": _array(_STRING, [_text(word) for word in words]),
        "tokenizer.ggml.scores": _array(_FLOAT, [struct.pack("<f", 0.0) for _ in words]),
        "tokenizer.ggml.token_type": _array(
            _INT, [struct.pack("<i", 3 if "<" in word else 1) for word in words]
        ),
        "tokenizer.ggml.bos_token_id": _number(1),
        "tokenizer.ggml.eos_token_id": _number(2),
    }
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(entries))]
    head += [_text(key) + value for key, value in entries.items()]
    at = 0
    for name, values in tensors.items():
        shape = [_HIDDEN] * (1 if values is ones else 2)
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at))
        at += 4 * len(values)  # a multiple of the alignment, 32
    whole = b"".join(head)
    yield whole + bytes(-len(whole) % 32)
    for values in tensors.values():
        yield struct.pack(f"<{len(values)}f", *values)


_UINT, _INT, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _string(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _text(text)


def _number(number: int) -> bytes:
    return struct.pack("<II", _UINT, number)


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    return struct.pack("<IIQ", _ARRAY, kind, len(values)) + b"".join(values)
