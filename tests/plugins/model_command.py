"""A real model as a command: the prompt on standard input, the answer on standard output, word by word."""

from __future__ import annotations

import sys

from llama_cpp import Llama

from disco.endpoints.llamacpp.model.model_files import resolve_model

if __name__ == "__main__":
    model = Llama(str(resolve_model("smollm2-135m")), n_ctx=512, n_threads=1, verbose=False)
    messages = [{"role": "user", "content": sys.stdin.read()}]
    for chunk in model.create_chat_completion(messages, max_tokens=24, temperature=0.0, stream=True):
        print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
