"""llama.cpp's own server out of the `xllamacpp` wheel, as a process.

`llama_server_child.py MODEL N_CTX SLOTS FLASH [TEMPLATE]` prints its address once it serves, on one thread, and ends
when its standard input does. FLASH: whether to use flash attention, "on" or "off". TEMPLATE: of chats, in place of the
model's.
"""

from __future__ import annotations

import os
import sys

import xllamacpp

if __name__ == "__main__":
    params = xllamacpp.CommonParams()
    params.model.path, context_tokens, slots, flash, *template = sys.argv[1:]
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = (
        kinds.LLAMA_FLASH_ATTN_TYPE_AUTO if flash == "on" else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    if template:
        params.chat_template, params.use_jinja = template[0], True
    params.model_alias = {"smollm2-135m"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any that is free
    params.n_parallel = int(slots)
    params.n_ctx = int(context_tokens) * params.n_parallel  # shared out among the slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 4
    params.cache_ram_mib = 0
    params.n_batch = params.n_ubatch = 128  # it looks whether its client has left between two batches
    params.fit_params = False  # take the sizes as given
    params.ui = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its destructor waits for a request that is being worked on
