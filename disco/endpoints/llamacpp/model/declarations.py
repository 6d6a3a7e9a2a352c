"""The part of llama.cpp's C interface that disco uses, declared for the shared object in the wheel `xllamacpp`.

The names are those of llama.h, and of the package llama_cpp, in whose place a `WheelLibrary` stands. What is declared
here holds for the versions in `VERSIONS`. CONTRIBUTING.md says how
another version is added.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_bool,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, ClassVar, Final

__all__ = ["FUNCTIONS", "STRUCTURES", "VERSIONS", "WheelLibrary"]

VERSIONS: Final = ("2026.10.11549",)
"""Versions of xllamacpp whose header is as declared here, and with which disco's tests have passed."""

_Token = _Pos = _SeqId = c_int32
_LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
_ProgressCallback = ctypes.CFUNCTYPE(c_bool, c_float, c_void_p)
_AbortCallback = ctypes.CFUNCTYPE(c_bool, c_void_p)
_EvalCallback = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)


class _ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int32),
        ("load_mode", c_int32),
        ("lazy_mode", c_int32),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", _ProgressCallback),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]
    DEFAULTS: ClassVar = {
        "n_gpu_layers": -1,
        "split_mode": 1,
        "load_mode": -1,
        "lazy_mode": 1,
        "use_extra_bufts": True,
    }


class _ContextParams(ctypes.Structure):
    _fields_ = [
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int32),
        ("rope_scaling_type", c_int32),
        ("pooling_type", c_int32),
        ("attention_type", c_int32),
        ("flash_attn_type", c_int32),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", _EvalCallback),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("moe_cache_size", c_size_t),
        ("abort_callback", _AbortCallback),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]
    DEFAULTS: ClassVar = {
        "n_ctx": 512,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_seq_max": 1,
        "n_outputs_max_per_seq": 1,
        "n_threads": 4,
        "n_threads_batch": 4,
        "rope_scaling_type": -1,
        "pooling_type": -1,
        "attention_type": -1,
        "flash_attn_type": -1,
        "yarn_ext_factor": -1.0,
        "yarn_attn_factor": -1.0,
        "yarn_beta_fast": -1.0,
        "yarn_beta_slow": -1.0,
        "defrag_thold": -1.0,
        "type_k": 1,
        "type_v": 1,
        "offload_kqv": True,
        "no_perf": True,
        "op_offload": True,
        "swa_full": True,
    }


class _ChainParams(ctypes.Structure):
    _fields_ = [("no_perf", c_bool)]
    DEFAULTS: ClassVar = {"no_perf": True}


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(_Token)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(_Pos)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(_SeqId))),
        ("logits", POINTER(c_int8)),
    ]


class _TokenData(ctypes.Structure):
    _fields_ = [("id", _Token), ("logit", c_float), ("p", c_float)]


class _TokenDataArray(ctypes.Structure):
    _fields_ = [("data", POINTER(_TokenData)), ("size", c_size_t), ("selected", c_int64), ("sorted", c_bool)]


class _LogitBias(ctypes.Structure):
    _fields_ = [("token", _Token), ("bias", c_float)]


STRUCTURES: Final[dict[str, type[ctypes.Structure]]] = {
    "llama_model_params": _ModelParams,
    "llama_context_params": _ContextParams,
    "llama_sampler_chain_params": _ChainParams,
    "llama_batch": _Batch,
    "llama_token_data": _TokenData,
    "llama_token_data_array": _TokenDataArray,
    "llama_logit_bias": _LogitBias,
}
"""The structures by their names in llama.h. Where one has `DEFAULTS`, a function returns it with these values, and all
other fields are zero."""

_Model = _Context = _Vocab = _Memory = _Sampler = _Tensor = _Adapter = c_void_p

FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    # The result, then the arguments.
    "llama_backend_init": (None,),
    "llama_log_set": (None, _LogCallback, c_void_p),
    "llama_model_default_params": (_ModelParams,),
    "llama_context_default_params": (_ContextParams,),
    "llama_sampler_chain_default_params": (_ChainParams,),
    # The model and its vocabulary
    "llama_model_load_from_file": (_Model, c_char_p, _ModelParams),
    "llama_model_free": (None, _Model),
    "llama_model_get_vocab": (_Vocab, _Model),
    "llama_model_n_ctx_train": (c_int32, _Model),
    "llama_model_n_params": (c_uint64, _Model),
    "llama_model_has_encoder": (c_bool, _Model),
    "llama_model_has_decoder": (c_bool, _Model),
    "llama_model_chat_template": (c_char_p, _Model, c_char_p),
    "llama_vocab_n_tokens": (c_int32, _Vocab),
    "llama_vocab_get_text": (c_char_p, _Vocab, _Token),
    "llama_vocab_is_eog": (c_bool, _Vocab, _Token),
    "llama_vocab_bos": (_Token, _Vocab),
    "llama_vocab_eos": (_Token, _Vocab),
    "llama_vocab_get_add_bos": (c_bool, _Vocab),
    "llama_tokenize": (c_int32, _Vocab, c_char_p, c_int32, POINTER(_Token), c_int32, c_bool, c_bool),
    "llama_token_to_piece": (c_int32, _Vocab, _Token, c_char_p, c_int32, c_int32, c_bool),
    # The context and its sequences
    "llama_init_from_model": (_Context, _Model, _ContextParams),
    "llama_free": (None, _Context),
    "llama_n_ctx": (c_uint32, _Context),
    "llama_n_ctx_seq": (c_uint32, _Context),
    "llama_n_batch": (c_uint32, _Context),
    "llama_n_ubatch": (c_uint32, _Context),
    "llama_n_seq_max": (c_uint32, _Context),
    "llama_n_threads": (c_int32, _Context),
    "llama_n_threads_batch": (c_int32, _Context),
    "llama_get_memory": (_Memory, _Context),
    "llama_memory_clear": (None, _Memory, c_bool),
    "llama_memory_seq_rm": (c_bool, _Memory, _SeqId, _Pos, _Pos),
    "llama_memory_seq_cp": (None, _Memory, _SeqId, _SeqId, _Pos, _Pos),
    "llama_memory_seq_pos_max": (_Pos, _Memory, _SeqId),
    "llama_state_seq_get_size": (c_size_t, _Context, _SeqId),
    "llama_state_seq_get_data": (c_size_t, _Context, POINTER(c_uint8), c_size_t, _SeqId),
    "llama_state_seq_set_data": (c_size_t, _Context, POINTER(c_uint8), c_size_t, _SeqId),
    # LoRA adapters; the model frees them
    "llama_adapter_lora_init": (_Adapter, _Model, c_char_p),
    "llama_adapter_get_alora_n_invocation_tokens": (c_uint64, _Adapter),
    "llama_set_adapters_lora": (c_int32, _Context, POINTER(_Adapter), c_size_t, POINTER(c_float)),
    # Computation
    "llama_batch_get_one": (_Batch, POINTER(_Token), c_int32),  # for examples/papers
    "llama_decode": (c_int32, _Context, _Batch),
    "llama_synchronize": (None, _Context),
    "llama_set_abort_callback": (None, _Context, _AbortCallback, c_void_p),
    "llama_get_logits": (POINTER(c_float), _Context),
    "llama_get_logits_ith": (POINTER(c_float), _Context, c_int32),
    "ggml_get_name": (c_char_p, _Tensor),
    "ggml_nbytes": (c_size_t, _Tensor),
    "ggml_backend_tensor_get": (None, _Tensor, c_void_p, c_size_t, c_size_t),
    # Samplers
    "llama_sampler_chain_init": (_Sampler, _ChainParams),
    "llama_sampler_chain_add": (None, _Sampler, _Sampler),
    "llama_sampler_init_greedy": (_Sampler,),
    "llama_sampler_init_top_k": (_Sampler, c_int32),
    "llama_sampler_init_top_p": (_Sampler, c_float, c_size_t),
    "llama_sampler_init_min_p": (_Sampler, c_float, c_size_t),
    "llama_sampler_init_temp": (_Sampler, c_float),
    "llama_sampler_init_penalties": (_Sampler, c_int32, c_int32, c_float, c_float, c_float),
    "llama_sampler_init_logit_bias": (_Sampler, c_int32, c_int32, POINTER(_LogitBias)),
    "llama_sampler_accept": (None, _Sampler, _Token),
    "llama_sampler_apply": (None, _Sampler, POINTER(_TokenDataArray)),
    "llama_sampler_clone": (_Sampler, _Sampler),
    "llama_sampler_reset": (None, _Sampler),
    "llama_sampler_free": (None, _Sampler),
}


class WheelLibrary:
    """llama.cpp in a shared object, with the names that the package llama_cpp gives them.

    Nothing is called: whoever makes one checks it (`library_check.check`).

    Args:
        path: of the shared object.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: a function is missing; the message names it.
    """

    llama_token = _Token
    llama_pos = _Pos
    llama_seq_id = _SeqId
    llama_log_callback = _LogCallback
    llama_progress_callback = _ProgressCallback
    ggml_abort_callback = _AbortCallback
    ggml_backend_sched_eval_callback = _EvalCallback
    llama_batch = _Batch
    llama_token_data_array = _TokenDataArray
    llama_token_data_p = POINTER(_TokenData)
    llama_logit_bias = _LogitBias

    def __init__(self, path: Path) -> None:
        shared = ctypes.CDLL(str(path))
        for name, (result, *arguments) in FUNCTIONS.items():
            function = shared[name]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not declared in disco/endpoints/llamacpp/model/declarations.py")
