"""A real model as a command: the prompt on standard input, the answer on standard output, word by word."""

from __future__ import annotations

import sys

from disco import Disco
from disco.endpoints.host import HostEndpoint

if __name__ == "__main__":
    model = HostEndpoint(model="smollm2-135m", context_tokens=512, threads=1)
    asked = {"model": "any", "messages": [{"role": "user", "content": sys.stdin.read()}], "max_tokens": 24}
    with Disco(local=model, preset="private", state=False) as client:
        for chunk in client.chat.completions.create(**asked, temperature=0.0, stream=True):
            print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
